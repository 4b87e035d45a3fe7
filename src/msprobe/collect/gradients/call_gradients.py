"""The gradients of one call, read from the backward graph of the framework. Nothing is inserted into the graph.

Before a call the frontend notes the edges that lead to its inputs. After the call it walks the graph from the outputs
back to those edges and hooks the nodes that it finds. A hook on the node where the gradient of an output comes in gives
`input` of the record. A hook on a node with an edge to an input gives the gradient of that input *from this call*, no
matter which other calls use the input. This is the same for one operator, a composite such as cross_entropy, and a
module.

A frontend derives from `CallGradients` and adds `watch`, which reads its graph and registers `_fire` on the nodes.
"""

from __future__ import annotations

import traceback
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Callable, NamedTuple, Optional

from msprobe.collect.gradients.backward_record import BackwardRecord, Places
from msprobe.collect.records.recorder import Recorder
from msprobe.dump.names import backward_of

RECOMPUTED = '"is_recompute": true'
"""The JSON member of a forward call that a backward pass runs again."""


class BackwardEngine(NamedTuple):
    """Answers of the framework about backward passes."""

    running_pass: Callable[[], int]
    """The number of the backward pass that runs in this thread, -1 outside of one."""
    when_pass_ends: Callable[[Callable[[], None]], None]
    """Calls back at the end of the running pass."""
    differentiates: Callable[[], bool]
    """Whether what runs now becomes part of a backward graph."""
    aside: Callable[[], AbstractContextManager[Any]]
    """The context in which our hooks work, so that the framework's own hooks do not see what they do."""


class CallGradients:
    """Records the gradients of the calls of one step."""

    def __init__(self, recorder: Recorder, engine: BackwardEngine) -> None:
        self._recorder = recorder
        self._with_inputs = recorder.with_inputs
        self._with_outputs = recorder.with_outputs
        # Bound once: they are used at every call and every hook.
        self.running_pass, self._when_pass_ends, self.differentiates, self._aside = engine
        self._pending: dict[int, dict[int, BackwardRecord]] = {}
        self.repeated = 0
        self.without_node: set[str] = set()

    def close(self) -> None:
        """The step ends: writes the open records with the gradients that have come."""
        for number in list(self._pending):
            self._finish_pass(number)
        self.write_parameters()

    def recompute_member(self) -> str:
        """The JSON member of a forward call that a backward pass runs again, "" for others."""
        return RECOMPUTED if self.running_pass() >= 0 and self.recomputes() else ""

    # What a framework does in its own way.

    def inputs(self, args: Any, kwargs: Any) -> Any:
        """The edges that lead to the arguments of a call, taken before it; `watch` needs them after it."""
        raise NotImplementedError

    def watch(self, name: str, parents: list[str], inputs: Any, output: Any) -> None:
        """Hooks the backward of a forward call that has just returned `output`."""
        raise NotImplementedError

    def recomputes(self) -> bool:
        """Whether a call inside a backward pass is a recomputation."""
        return True

    def _hold(self, gradient: Any) -> Any:
        """The start of a sum over several edges; None for a gradient that cannot be added."""
        return gradient

    def _add(self, held: Any, gradient: Any) -> Any:
        raise NotImplementedError

    def _write_sum(self, record: BackwardRecord, position: int, held: Any) -> None:
        self._write_outgoing(record, position, held)

    def write_parameters(self) -> None:
        """Writes the gradients of parameters that came in the pass that has ended, where hooks collect them."""

    # The records.

    def _open_record(self, name: str, parents: list[str], outputs: int, inputs: int) -> Optional[BackwardRecord]:
        """The backward record of a forward call, or None if it is not wanted."""
        backward = backward_of(name)
        if not self._may_want(backward, parents):
            return None
        return BackwardRecord(backward, parents, outputs, inputs, self._recorder.chunk)

    def _may_want(self, backward: str, parents: list[str]) -> bool:
        """Asked when the forward call has returned; `parents` are those of the forward call."""
        selection = self._recorder.selection
        return selection.everything or selection.may_want(backward, list(map(backward_of, parents)))

    def _wants(self, record: BackwardRecord) -> bool:
        """Asked when the backward begins."""
        selection = self._recorder.selection
        return selection.everything or selection.enter(record.name, list(map(backward_of, record.parents)))

    def _fire(self, record: BackwardRecord, places: Places, leading: Places, outgoing: Any, incoming: Any) -> None:
        """A hook of one node fires. `incoming` and `outgoing` are all gradients of the node."""
        try:
            if not self._begins(record):
                return
            with self._aside():
                if places:
                    self._take_incoming(record, places, incoming)
                if leading:
                    self._take_outgoing(record, leading, outgoing)
                record.waiting -= 1
                number = self.running_pass()
                pending = self._pending.get(number)
                if pending is None:
                    pending = self._begin_pass(number)
                if record.waiting:
                    pending[id(record)] = record
                else:
                    pending.pop(id(record), None)
                    self._write(record)
        except Exception:
            self._recorder.fault(record.name, traceback.format_exc())

    def _begins(self, record: BackwardRecord) -> bool:
        """Whether this firing counts: the step is open and it is the first backward through this graph."""
        if self._recorder.closed or record.unwanted:
            return False
        if record.done:
            self.repeated += 1
            return False
        if not record.started:
            record.started = True
            if not self._wants(record):
                record.unwanted = True
                return False
        return True

    def _take_incoming(self, record: BackwardRecord, places: Places, grads: Any) -> None:
        if self._with_inputs:
            recorder = self._recorder
            path = recorder.tensors_path(record.name, "input")
            for position, number in places:
                grad = grads[number]
                if grad is not None:
                    record.incoming[position] = recorder.values.value(grad, f"{path}.{position}" if path else "")

    def _take_outgoing(self, record: BackwardRecord, leading: Places, grads: Any) -> None:
        if not self._with_outputs:
            return
        for slot, position in leading:
            grad = grads[slot]
            left = record.remaining[position] = record.remaining[position] - 1
            held = record.held.pop(position, None) if record.held else None
            if held is not None:
                total = held if grad is None else self._add(held, grad)
            elif grad is None:
                continue
            else:
                total = self._hold(grad) if left else None
                if total is None:
                    self._write_outgoing(record, position, grad)
                    continue
            if not left:
                self._write_sum(record, position, total)
                continue
            if record.held is None:
                record.held = {}
            record.held[position] = total

    def _write_outgoing(self, record: BackwardRecord, position: int, grad: Any) -> None:
        path = self._recorder.tensors_path(record.name, "output")
        record.outgoing[position] = self._recorder.values.value(grad, f"{path}.{position}" if path else "")

    def _write(self, record: BackwardRecord) -> None:
        record.done = True
        recorder = self._recorder
        if recorder.closed:
            return
        parts = []
        if self._with_inputs:
            parts.append(f'"input": [{", ".join(record.incoming)}]')
        if self._with_outputs:
            parts.append(f'"output": [{", ".join(record.outgoing)}]')
        if record.shared:
            parts.append(f'"shared_gradient": {list(record.shared)}')
        if record.chunk:
            parts.append(record.chunk)
        recorder.write_record(record.name, record.parent, ", ".join(parts))
        if not recorder.selection.everything:
            recorder.selection.leave(record.name)

    # The backward passes.

    def _begin_pass(self, number: int) -> dict[int, BackwardRecord]:
        """The first hook of a backward pass: at the end of the pass, unfinished records are written."""
        pending = self._pending[number] = {}
        if number >= 0:
            self._when_pass_ends(partial(self._end_pass, number))
        return pending

    def _end_pass(self, number: int) -> None:
        try:
            with self._aside():
                self._finish_pass(number)
                if not self._recorder.closed:
                    self.write_parameters()
        except Exception:
            self._recorder.fault("backward", traceback.format_exc())

    def _finish_pass(self, number: int) -> None:
        for record in self._pending.pop(number, {}).values():
            self._complete(record)

    def _complete(self, record: BackwardRecord) -> None:
        """Writes a record with the gradients that have come."""
        for position, held in (record.held or {}).items():
            self._write_sum(record, position, held)
        record.held = None
        self._write(record)
