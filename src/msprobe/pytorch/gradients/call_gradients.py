"""The gradients of one call, read off the autograd graph; nothing is inserted into it.

Before a call the edges that lead to its inputs are noted; after it, the graph is walked from its
outputs back to those edges, and the nodes found are hooked. A hook on the node where an output's
gradient comes in gives the record's `input`; one on the node whose edge leads to an input gives
that input's gradient *from this call*, whatever else the input feeds. It works the same for one
operator, a composite such as cross_entropy, and a whole module.

Hooks hold a small record of text, never a node, an output or a tensor: the graph is freed as
without us. Only where an input is reached by several edges is a gradient held, until the last of
them has fired.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from functools import partial
from typing import Any, Optional

import torch

from msprobe.collect.names import backward_of
from msprobe.collect.recorder import Recorder
from msprobe.collect.values import key_text
from msprobe.pytorch.gradients.backward_graph import Exit, Inputs, tensors_in, walk

_NoTorchFunction = torch._C.DisableTorchFunction
_gradient_edge = torch.autograd.graph.get_gradient_edge
_graph_task = torch._C._current_graph_task_id
_queue_callback = torch.autograd.Variable._execution_engine.queue_callback


class _Backward:
    """The backward record of one call while it is being put together, as text. `parents`: of the forward call."""

    __slots__ = (
        "done",
        "held",
        "incoming",
        "name",
        "outgoing",
        "parent",
        "parents",
        "remaining",
        "shared",
        "started",
        "unwanted",
        "waiting",
    )

    def __init__(self, name: str, parents: list[str], outputs: int, inputs: int) -> None:
        self.name = name
        self.parents = parents
        self.parent = backward_of(parents[-1]) if parents else None
        self.incoming: list[Any] = ["null"] * outputs
        self.outgoing: list[Any] = ["null"] * inputs
        self.remaining: dict[int, int] = {}
        self.held: Optional[dict[int, Any]] = None
        self.shared: tuple[int, ...] = ()
        self.waiting = 0
        self.started = False
        self.unwanted = False
        self.done = False


class Gradients:
    """Hooks the graph of wanted calls and records what flows back."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._pending: dict[int, dict[int, _Backward]] = {}
        self._parameters: dict[str, dict[str, str]] = {}
        self._changed: dict[str, None] = {}
        self._watched: list[tuple[Any, Any, Any]] = []
        self._forwards = 0
        self.came: dict[int, int] = {}  # id of a parameter: the forward after which its gradient came
        self._left: list[Any] = []
        self._graph_making: set[int] = set()
        self.repeated = 0
        self.without_node: set[str] = set()

    def watch(self, name: str, parents: list[str], inputs: Inputs, output: Any) -> None:
        """Hooks the backward of a forward call that has just returned `output`."""
        self._forwards += 1
        recorder = self._recorder
        outputs = [output] if isinstance(output, torch.Tensor) else tensors_in(output, [])
        entries: dict[Any, list[tuple[int, int]]] = {}
        for position, tensor in enumerate(outputs):
            node = tensor.grad_fn
            if node is None:
                continue
            if (id(node), tensor.output_nr) in inputs.edges:
                self.without_node.add(name)
                continue
            entries.setdefault(node, []).append((position, tensor.output_nr))
        if not entries:
            return
        if not recorder.selection.everything:
            above = [backward_of(parent) for parent in parents]
            if not recorder.selection.may_want(backward_of(name), above):
                return
        record = _Backward(backward_of(name), parents, len(outputs), inputs.count)
        leaving = _assign(record, walk(entries, inputs))
        apart = not recorder.selection.everything
        for node, places in entries.items():
            leading = leaving.pop(node, None)
            if leading is None or apart:
                node.register_prehook(partial(Gradients._incoming_hook, self, record, places))
                if leading is not None:
                    record.waiting += 1
                    node.register_hook(partial(Gradients._outgoing_hook, self, record, leading))
            else:
                node.register_hook(partial(Gradients._both_hook, self, record, places, leading))
        for node, leading in leaving.items():
            node.register_hook(partial(Gradients._outgoing_hook, self, record, leading))
        record.waiting += len(entries) + len(leaving)

    def watch_parameter(self, module: str, name: str, parameter: Any, above: Sequence[str] = ()) -> None:
        """Keeps the last local gradient of a parameter for `{module}.parameters_grad`; `above`: the modules around."""
        record = f"{module}.parameters_grad"
        self._parameters.setdefault(record, {})
        hook = partial(Gradients._parameter_hook, self, record, name, id(parameter), above)
        self._watched.append((parameter, hook, parameter.register_hook(hook)))

    def leave_parameters(self) -> None:
        """stop(): nothing stays on a parameter, but a graph that waits for its backward keeps ours on the node
        that takes the parameter's gradient; where there is no graph, that node dies at once."""
        with torch.inference_mode(False), torch.enable_grad(), _NoTorchFunction():
            for parameter, hook, handle in self._watched:
                handle.remove()
                has_come = self.came.get(id(parameter)) == self._forwards  # since the last forward
                if parameter.requires_grad and not has_come:
                    node = _gradient_edge(parameter).node
                    self._left.append(node.register_prehook(_on_first(hook)))
        self._watched.clear()

    def return_to_parameters(self) -> None:
        """start() again, or the end of the step: the nodes are let go."""
        for handle in self._left:
            handle.remove()
        self._left.clear()

    def close(self) -> None:
        """The step ends: what has begun is written as it is."""
        self.return_to_parameters()
        for task in list(self._pending):
            self._finish_task(task)
        self.write_parameters()

    def is_recomputing(self) -> bool:
        """Asked during a backward pass: gradients are on in it for a recomputation (checkpointing), or because the
        pass itself makes a graph (create_graph)."""
        return torch.is_grad_enabled() and _graph_task() not in self._graph_making

    # The hooks. They are made of functions, not of bound methods: there are thousands of them, and every object more
    # brings the garbage collector nearer.

    def _both_hook(self, record: _Backward, places: Any, leading: Any, grad_inputs: Any, grad_outputs: Any) -> None:
        if self._begins(record):
            try:
                with _NoTorchFunction():
                    self._take_incoming(record, places, grad_outputs)
                    self._take_outgoing(record, leading, grad_inputs)
                    self._fired(record)
            except Exception:
                self._recorder.fault(record.name, traceback.format_exc())

    def _incoming_hook(self, record: _Backward, places: Any, grad_outputs: Any) -> None:
        if self._begins(record):
            try:
                with _NoTorchFunction():
                    self._take_incoming(record, places, grad_outputs)
                    self._fired(record)
            except Exception:
                self._recorder.fault(record.name, traceback.format_exc())

    def _outgoing_hook(self, record: _Backward, leading: Any, grad_inputs: Any, grad_outputs: Any) -> None:
        if self._begins(record):
            try:
                with _NoTorchFunction():
                    self._take_outgoing(record, leading, grad_inputs)
                    self._fired(record)
            except Exception:
                self._recorder.fault(record.name, traceback.format_exc())

    def _parameter_hook(self, record: str, name: str, parameter: int, above: Sequence[str], gradient: Any) -> None:
        recorder = self._recorder
        if recorder.closed or not recorder.with_outputs:
            return
        if not recorder.selection.everything and not recorder.selection.enter(record, above):
            return
        try:
            with _NoTorchFunction():
                self.came[parameter] = self._forwards
                self._note_parameter(record, name, gradient)
                self._task()
        except Exception:
            recorder.fault(record, traceback.format_exc())

    def note_parameter(self, record: str, name: str, gradient: Any) -> None:
        """The gradient of a parameter that no hook of ours has seen."""
        selection = self._recorder.selection
        if selection.everything or selection.enter(record, ()):
            self._note_parameter(record, name, gradient)

    def _note_parameter(self, record: str, name: str, gradient: Any) -> None:
        path = self._recorder.tensors_path(record, "")[:-1]
        text = self._recorder.values.value(gradient, f"{path}.{name}" if path else "")
        self._parameters.setdefault(record, {})[name] = f"{key_text(name)}: [{text}]"
        self._changed[record] = None

    def _begins(self, record: _Backward) -> bool:
        """Whether this firing counts: the step is open and it is the first backward through this graph."""
        if self._recorder.closed:
            return False
        if record.unwanted:
            return False
        if record.done:
            self.repeated += 1
            return False
        if not record.started:
            record.started = True
            selection = self._recorder.selection
            if not selection.everything and not selection.enter(record.name, list(map(backward_of, record.parents))):
                record.unwanted = True
                return False
        return True

    def _take_incoming(self, record: _Backward, places: Any, grads: Any) -> None:
        recorder = self._recorder
        if recorder.with_inputs:
            path = recorder.tensors_path(record.name, "input")
            for position, number in places:
                grad = grads[number]
                if grad is not None:
                    where = f"{path}.{position}" if path else ""
                    record.incoming[position] = recorder.values.value(grad, where)

    def _take_outgoing(self, record: _Backward, leading: Any, grads: Any) -> None:
        recorder = self._recorder
        if not recorder.with_outputs:
            return
        for slot, position in leading:
            grad = grads[slot]
            left = record.remaining[position] = record.remaining[position] - 1
            held = record.held.pop(position, None) if record.held else None
            if held is not None:
                with torch.no_grad():
                    grad = held if grad is None else held + grad
            if left and grad is not None:
                if record.held is None:
                    record.held = {}
                record.held[position] = grad
            elif grad is not None:
                self._write_outgoing(record, position, grad)

    def _write_outgoing(self, record: _Backward, position: int, grad: Any) -> None:
        path = self._recorder.tensors_path(record.name, "output")
        where = f"{path}.{position}" if path else ""
        record.outgoing[position] = self._recorder.values.value(grad, where)

    def _fired(self, record: _Backward) -> None:
        record.waiting -= 1
        task = self._task()
        if record.waiting:
            self._pending[task][id(record)] = record
        else:
            self._pending[task].pop(id(record), None)
            self._write(record)

    # The ends: of a record, of a backward pass.

    def _task(self) -> int:
        """The backward pass that is running; at its end the unfinished records are written."""
        task = _graph_task()
        if task not in self._pending:
            self._pending[task] = {}
            if torch.is_grad_enabled():
                self._graph_making.add(task)
            if task >= 0:
                _queue_callback(lambda: self._end_task(task))
        return task

    def _end_task(self, task: int) -> None:
        try:
            with _NoTorchFunction():
                self._finish_task(task)
                if not self._recorder.closed:
                    self.write_parameters()
        except Exception:
            self._recorder.fault("backward", traceback.format_exc())

    def _finish_task(self, task: int) -> None:
        for record in self._pending.pop(task, {}).values():
            for position, grad in (record.held or {}).items():
                self._write_outgoing(record, position, grad)
            record.held = None
            self._write(record)

    def _write(self, record: _Backward) -> None:
        record.done = True
        recorder = self._recorder
        if recorder.closed:
            return
        parts = []
        if recorder.with_inputs:
            parts.append(f'"input": [{", ".join(record.incoming)}]')
        if recorder.with_outputs:
            parts.append(f'"output": [{", ".join(record.outgoing)}]')
        if record.shared:
            parts.append(f'"shared_gradient": {list(record.shared)}')
        recorder.write_record(record.name, record.parent, ", ".join(parts))
        if not recorder.selection.everything:
            recorder.selection.leave(record.name)

    def write_parameters(self) -> None:
        for name in self._changed:
            self._recorder.write_record(name, None, ", ".join(self._parameters[name].values()))
        self._changed.clear()


def _on_first(hook: Any) -> Any:
    def prehook(grads: Any) -> None:
        if grads[0] is not None:
            hook(grads[0])

    return prehook


def _assign(record: _Backward, exits: list[Exit]) -> dict[Any, list[tuple[int, int]]]:
    """Which edge gives which argument its gradient: node -> (slot of its edge, position of the argument).

    One argument, any number of edges: their sum. The same tensor given twice to one operator (`x * x`)
    has as many edges as arguments, in the same order: one each. Otherwise the sum goes to the first
    argument and the record says which arguments share it.
    """
    several: dict[int, list[int]] = {}
    for number, (_, _, positions) in enumerate(exits):
        if len(positions) > 1:
            several.setdefault(id(positions), []).append(number)
    taken: dict[int, int] = {}
    for members in several.values():
        positions = exits[members[0]][2]
        same_node = all(exits[member][0] is exits[members[0]][0] for member in members)
        if same_node and len(members) == len(positions):
            taken.update(zip(members, positions))
        else:
            record.shared += tuple(positions)
            taken.update(dict.fromkeys(members, positions[0]))
    remaining = record.remaining
    leaving: dict[Any, list[tuple[int, int]]] = {}
    for number, (node, slot, positions) in enumerate(exits):
        position = taken.get(number, positions[0]) if taken else positions[0]
        remaining[position] = remaining.get(position, 0) + 1
        leaving.setdefault(node, []).append((slot, position))
    return leaving
