"""The gradients of one call, read off MindSpore's backward graph; nothing is inserted into it.

Before a call the nodes that lead to its inputs are noted; after it, the graph is walked from its
outputs back to those nodes, and what lies between is hooked. A hook on the node where an output's
gradient comes in gives the record's `input`; one on the node whose edge leads to an input gives
that input's gradient *from this call*, whatever else the input feeds. It is the same for one
operator, a composite such as cross_entropy, a compiled region and a whole Cell.

Hooks hold a small record of text, never a node, an output or a tensor. Where an input is reached by
several edges their sum is kept in numpy memory of our own until the last of them has fired.
"""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np
from mindspore._c_expression import TensorPy

from msprobe.collect.recorder import Recorder
from msprobe.dump.names import backward_of
from msprobe.frameworks.mindspore.tensors import Array, copied, has_values
from msprobe.mindspore.executor import backward_pass, when_backward_ends
from msprobe.mindspore.gradients.backward_graph import LEAF, Graph, Inputs, node_of, tensors_in
from msprobe.mindspore.tensors.tensor_text import TensorTexts
from msprobe.stats import dtypes

# Which of a node's gradients belongs to which place of a record.
Places = list[tuple[int, int]]


class _Backward:
    """The backward record of one call while it is being put together, as text."""

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
        self.parent = parents[-1] if parents else None
        self.incoming: list[Any] = ["null"] * outputs
        self.outgoing: list[Any] = ["null"] * inputs
        self.remaining: dict[int, int] = {}
        self.held: dict[int, tuple[Array, dtypes.Dtype]] = {}
        self.shared: list[int] = []
        self.waiting = 0
        self.started = False
        self.unwanted = False
        self.done = False


class Gradients:
    """Hooks the graph of wanted calls and records what flows back."""

    def __init__(self, recorder: Recorder, texts: TensorTexts) -> None:
        self._recorder = recorder
        self._texts = texts
        self._pending: dict[int, dict[int, _Backward]] = {}
        self._graph = Graph()
        self._hooked: dict[tuple[int, int], list[tuple[_Backward, Places, Places]]] = {}
        self.latest = -1
        self.repeated = 0
        self.without_node: set[str] = set()

    def inputs(self, args: Any, kwargs: Any) -> Inputs:
        """What to hand to `watch` after the call."""
        return Inputs(args, kwargs, self.latest)

    def watch(self, name: str, parents: list[str], inputs: Inputs, output: Any) -> None:
        """Hooks the backward of a forward call that has just returned `output`."""
        recorder = self._recorder
        outputs = [output] if isinstance(output, TensorPy) else tensors_in(output, [])
        entries: dict[int, Any] = {}
        places: dict[int, Places] = {}
        unchanged = False
        for position, tensor in enumerate(outputs):
            node = node_of(tensor)
            if node is None:
                continue
            number = node._sequence_nr()
            if number == LEAF:
                continue
            if number > self.latest:
                self.latest = number
            key, slot = node._unique_id(), tensor._output_index
            if (key, slot) in inputs.edges:
                unchanged = True
                continue
            entries[key] = node
            places.setdefault(key, []).append((position, slot))
        if not entries:
            if unchanged:
                self.without_node.add(name)
            return
        above = [backward_of(parent) for parent in parents]
        backward = backward_of(name)
        if not recorder.selection.everything and not recorder.selection.may_want(backward, above):
            return
        record = _Backward(backward, above, len(outputs), inputs.count)
        exits = self._graph.exits(entries.values(), inputs) if inputs.edges else []
        _assign(record, exits)
        nodes: dict[int, tuple[Any, Places]] = {}
        for node, slot, positions in exits:
            leading = nodes.setdefault(node._unique_id(), (node, []))[1]
            leading.extend((slot, position) for position in positions)
        if not recorder.selection.everything:  # a scope asks in the order in which calls begin: before what is inside
            for key, node in entries.items():
                record.waiting += 1
                node.register_prehook(self._before(record, places[key]))
            places = {}
        for key, node in entries.items():
            leading = nodes.pop(key, (node, []))[1]
            if leading or key in places:
                self._hook(node, key, record, places.get(key, []), leading)
        for key, (node, leading) in nodes.items():
            self._hook(node, key, record, [], leading)

    def forget_graph(self) -> None:
        """The outermost call has returned: the graph is the framework's alone again."""
        self._graph.forget()

    def close(self) -> None:
        """The step ends: what has begun is written as it is."""
        for number in list(self._pending):
            self._finish_pass(number)

    # The hooks.

    def _hook(self, node: Any, key: int, record: _Backward, places: Places, leading: Places) -> None:
        """One hook a node, however many calls it is the edge of: Cells are nested, and an API ends where its Cell does.

        A hook costs MindSpore more than what it does here. The sequence number tells a node from an older one whose
        identity it has inherited.
        """
        identity = (key, node._sequence_nr())
        interests = self._hooked.get(identity)
        if interests is None:
            interests = self._hooked[identity] = []
            node.register_hook(self._after(interests))
        interests.append((record, places, leading))
        record.waiting += 1

    def _after(self, interests: list[tuple[_Backward, Places, Places]]) -> Any:
        def hook(grad_inputs: Any, grad_outputs: Any) -> None:
            with self._texts.unchanging():
                for record, places, leading in interests:
                    self._fire(record, places, grad_outputs, leading, grad_inputs)

        return hook

    def _before(self, record: _Backward, places: Places) -> Any:
        return lambda grad_outputs: self._fire(record, places, grad_outputs, [], ())

    def _fire(self, record: _Backward, places: Places, incoming: Any, leading: Places, outgoing: Any) -> None:
        if self._begins(record):
            try:
                self._take_incoming(record, places, incoming)
                self._take_outgoing(record, leading, outgoing)
                self._fired(record)
            except Exception:
                self._recorder.fault(record.name, traceback.format_exc())

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
            if not selection.everything and not selection.enter(record.name, record.parents):
                record.unwanted = True
                return False
        return True

    def _take_incoming(self, record: _Backward, places: Places, grads: Any) -> None:
        recorder = self._recorder
        if recorder.with_inputs:
            path = recorder.tensors_path(record.name, "input")
            for position, number in places:
                grad = grads[number]
                if grad is not None:
                    record.incoming[position] = recorder.values.value(grad, f"{path}.{position}" if path else "")

    def _take_outgoing(self, record: _Backward, leading: Places, grads: Any) -> None:
        recorder = self._recorder
        if not recorder.with_outputs:
            return
        for slot, position in leading:
            grad = grads[slot]
            left = record.remaining[position] = record.remaining[position] - 1
            held = record.held.get(position)
            if held is None and (not left or grad is None or not has_values(grad)):
                if grad is not None:
                    self._write_outgoing(record, position, grad)
                continue
            if grad is not None:
                record.held[position] = copied(grad) if held is None else _added(held, grad)
            if not left:
                self._write_sum(record, position, *record.held.pop(position))

    def _write_outgoing(self, record: _Backward, position: int, grad: Any) -> None:
        path = self._recorder.tensors_path(record.name, "output")
        record.outgoing[position] = self._recorder.values.value(grad, f"{path}.{position}" if path else "")

    def _write_sum(self, record: _Backward, position: int, array: Array, row: dtypes.Dtype) -> None:
        path = self._recorder.tensors_path(record.name, "output")
        record.outgoing[position] = self._texts.array_text(array, row, f"{path}.{position}" if path else "")

    def _fired(self, record: _Backward) -> None:
        record.waiting -= 1
        number = self._pass()
        if record.waiting:
            self._pending[number][id(record)] = record
        else:
            self._pending[number].pop(id(record), None)
            self._write(record)

    # The ends: of a record, of a backward pass.

    def _pass(self) -> int:
        """The backward pass that is running; at its end the unfinished records are written."""
        number = backward_pass()
        if number not in self._pending:
            self._pending[number] = {}
            when_backward_ends(lambda: self._end_pass(number))
        return number

    def _end_pass(self, number: int) -> None:
        try:
            self._finish_pass(number)
        except Exception:
            self._recorder.fault("backward", traceback.format_exc())

    def _finish_pass(self, number: int) -> None:
        for record in self._pending.pop(number, {}).values():
            for position in list(record.held):
                self._write_sum(record, position, *record.held.pop(position))
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
            parts.append(f'"shared_gradient": {record.shared}')
        recorder.write_record(record.name, record.parent, ", ".join(parts))
        if not recorder.selection.everything:
            recorder.selection.leave(record.name)


def _added(held: tuple[Array, dtypes.Dtype], grad: Any) -> tuple[Array, dtypes.Dtype]:
    array, row = held
    return np.add(array, copied(grad)[0], out=array), row


def _assign(record: _Backward, exits: list[tuple[Any, int, list[int]]]) -> None:
    """Which edge gives which argument its gradient.

    One argument, any number of edges: their sum. The same tensor given twice to one operator (`x * x`)
    has as many edges as arguments, in the same order: one each. Otherwise the sum goes to the first
    argument and the record says which arguments share it.
    """
    groups: dict[int, list[int]] = {}
    for number, (_, _, positions) in enumerate(exits):
        groups.setdefault(id(positions), []).append(number)
    for members in groups.values():
        node, _, positions = exits[members[0]]
        if len(positions) > 1:
            same_node = all(exits[member][0]._unique_id() == node._unique_id() for member in members)
            if same_node and len(members) == len(positions):
                for member, position in zip(members, positions):
                    exits[member] = (exits[member][0], exits[member][1], [position])
                    record.remaining[position] = 1
                continue
            record.shared.extend(positions)
            for member in members:
                exits[member] = (exits[member][0], exits[member][1], positions[:1])
        record.remaining[positions[0]] = len(members)
