"""Level L0 inside compiled graphs: makes records from the values of the taps, with the names of a dynamic run.

A forward record is written when its last output has arrived. Unused gradients never arrive. So backward records are
written at the end of the step, the last call first, in the order of a backward pass.
"""

from __future__ import annotations

import itertools
import json
import threading
import traceback
from typing import Any, Optional

import numpy as np

from msprobe.collect.records.recorder import Recorder
from msprobe.collect.records.values import quoted
from msprobe.dump.names import FORWARD, backward_of
from msprobe.frameworks.mindspore.tensors import Array, bits
from msprobe.mindspore.cells.cell_calls import titles_above
from msprobe.mindspore.graph.call_templates import CallTemplate, CallTemplates
from msprobe.mindspore.tensors.tensor_text import TensorTexts
from msprobe.stats import CRC

NO_CALL = -1
_MEMBERS = {"output": "input", "input": "output"}  # the inputs of a backward record are gradients of outputs
_numbers = itertools.count()  # numbers of calls, unique in this process: those of older steps match no call


class _Call:
    __slots__ = ("gradients", "name", "parents", "templates", "texts", "title", "wanted", "wanted_backward", "written")

    def __init__(self, title: str, name: str, parents: list[str], wanted: bool) -> None:
        self.title = title
        self.name = name
        self.parents = parents
        self.wanted = wanted
        self.wanted_backward: Optional[bool] = None
        self.templates: dict[str, CallTemplate] = {}
        self.texts: dict[str, dict[int, str]] = {}
        self.gradients: dict[str, dict[int, str]] = {}
        self.written = False


class GraphCells:
    """The listener of one step. Calls begin only while it is `open`; their values may arrive later."""

    def __init__(self, recorder: Recorder, texts: TensorTexts, templates: CallTemplates) -> None:
        self.open = False
        self.entered = 0
        self._recorder = recorder
        self._texts = texts
        self._templates = templates
        self._lock = threading.Lock()
        self._calls: dict[int, _Call] = {}
        self._around: list[_Call] = []
        self._events: list[tuple[_Call, bool]] = []  # begin (True) and end of calls whose backward is not decided
        self._parameters: dict[int, tuple[str, str]] = {}
        self._batch: Optional[_Call] = None
        self._digests: dict[int, str] = {}

    # Called by the taps.

    def enter(self, title: str) -> int:
        recorder = self._recorder
        if not self.open or recorder.closed:
            return NO_CALL
        try:
            with self._lock:
                return self._enter(title)
        except Exception:
            recorder.fault(title, traceback.format_exc())
            return NO_CALL

    def see(self, number: int, template: CallTemplate, slot: int, array: Any) -> None:
        call = self._calls.get(number)
        if call is None or self._recorder.closed:
            return
        try:
            with self._lock:
                self._see(call, template, slot, array)
        except Exception:
            self._recorder.fault(call.name, traceback.format_exc())

    def gradient(self, number: int, template: CallTemplate, slot: int, array: Any) -> None:
        call = self._calls.get(number)
        if self._recorder.closed or (call is None and template.side in _MEMBERS):
            return
        try:
            with self._lock:
                if call is None:
                    self._parameter(template, array)
                else:
                    self._gradient(call, template, slot, array)
        except Exception:
            self._recorder.fault(template.title, traceback.format_exc())

    def close(self) -> None:
        """Called at the end of the step: writes all remaining records."""
        with self._lock:
            for call in self._calls.values():
                if not call.written:
                    self._write(call)
            for call in reversed(self._calls.values()):
                if call.gradients:
                    self._write_backward(call)
            records: dict[str, list[str]] = {}
            for _, (record, text) in sorted(self._parameters.items()):
                records.setdefault(record, []).append(text)
            for record, texts in records.items():
                self._recorder.write_record(record, None, ", ".join(texts))
            self._calls.clear()

    # Forward.

    def _enter(self, title: str) -> int:
        recorder = self._recorder
        selection = recorder.selection
        name = f"{title}.{FORWARD}.{recorder.numbers.take(title)}"
        parents = [call.name for call in self._around]
        wanted = selection.everything or selection.enter(name, parents)
        call = _Call(title, name, parents, wanted and selection.forward)
        number = next(_numbers) & 0x7FFFFFFF
        self._calls[number] = call
        self._around.append(call)
        self._events.append((call, True))
        if not self.entered:
            self._batch = call
        self.entered += 1
        return number

    def _see(self, call: _Call, template: CallTemplate, slot: int, array: Any) -> None:
        recorder = self._recorder
        side = template.side
        if call is self._batch and side == "input":
            self._first_batch(template, slot, array)
        if side == "output" and call in self._around:
            self._leave(call)
        call.templates[side] = template
        texts = call.texts.setdefault(side, {})
        text = ""
        if call.wanted and (recorder.with_outputs if side == "output" else recorder.with_inputs):
            path = recorder.tensors_path(call.name, side)
            text = self._text(template, slot, array, f"{path}.{template.slots[slot].path}" if path else "")
        texts[slot] = text
        if side == "output" and len(texts) == template.shown:
            self._write(call)

    def _leave(self, call: _Call) -> None:
        """A call has returned, and so have the calls inside it that had no output to tap."""
        while True:
            ended = self._around.pop()
            self._events.append((ended, False))
            if not self._recorder.selection.everything:
                self._recorder.selection.leave(ended.name)
            if ended is call:
                return

    def _write(self, call: _Call) -> None:
        call.written = True
        if not call.wanted:
            return
        recorder = self._recorder
        parts = []
        if recorder.with_inputs:
            parts.append(self._side(call, "input"))
        if recorder.with_outputs:
            parts.append(self._side(call, "output"))
        if recorder.with_inputs and "parameters" in call.templates:
            parts.append(f'"parameters": {self._side(call, "parameters")}')
        text = ", ".join(part for part in parts if part)
        recorder.write_record(call.name, call.parents[-1] if call.parents else None, text)

    def _side(self, call: _Call, side: str) -> str:
        template = call.templates.get(side) or self._templates.find_without_tensors(call.title, side)
        return "" if template is None else template.fill(call.texts.get(side, {}))

    def _first_batch(self, template: CallTemplate, slot: int, array: Any) -> None:
        """The digests of the inputs of the first Cell in the step, for run.json."""
        self._digests[slot] = self._text(template, slot, array, "", TensorTexts(CRC, None))
        if len(self._digests) == template.shown:
            callback, self._recorder.on_first_batch = self._recorder.on_first_batch, None
            self._batch = None
            if callback is not None:
                found = json.loads(f"{{{template.fill(self._digests)}}}")
                callback([*found["input_args"], *found["input_kwargs"].values()])

    # Backward.

    def _gradient(self, call: _Call, template: CallTemplate, slot: int, array: Any) -> None:
        recorder = self._recorder
        if not recorder.selection.backward or not self._wants_backward(call):
            return
        member = _MEMBERS[template.side]
        text = "null"
        if recorder.with_inputs if member == "input" else recorder.with_outputs:
            path = recorder.tensors_path(backward_of(call.name), member)
            text = self._text(template, slot, array, f"{path}.{slot}" if path else "")
        call.gradients.setdefault(member, {})[slot] = text

    def _wants_backward(self, call: _Call) -> bool:
        """Whether the selection wants the backward of this call. A scope needs an order of calls, and the operators of
        a backward graph have none: the reverse order of the forward is used."""
        if self._recorder.selection.everything:
            return True
        if call.wanted_backward is None:
            self._select_backward()
        return bool(call.wanted_backward)

    def _select_backward(self) -> None:
        """Decides about all calls so far, once: the end of a forward call may be seen after its first gradient."""
        selection = self._recorder.selection
        events = [*self._events, *((one, False) for one in reversed(self._around))]
        decided = {one for one, _ in events if one.wanted_backward is not None}
        for one, begins in reversed([event for event in events if event[0] not in decided]):
            name = backward_of(one.name)
            if begins:
                selection.leave(name)
            else:
                one.wanted_backward = selection.enter(name, [backward_of(parent) for parent in one.parents])
        self._events.clear()

    def _write_backward(self, call: _Call) -> None:
        recorder = self._recorder
        parts = []
        for side, member, wanted in (
            ("output", "input", recorder.with_inputs),
            ("input", "output", recorder.with_outputs),
        ):
            template = call.templates.get(side) or self._templates.find_without_tensors(call.title, side)
            if wanted and template is not None:
                texts = call.gradients.get(member, {})
                parts.append(
                    f'"{member}": [{", ".join(texts.get(slot, "null") for slot in range(len(template.slots)))}]'
                )
        parent = backward_of(call.parents[-1]) if call.parents else None
        recorder.write_record(backward_of(call.name), parent, ", ".join(parts))

    def _parameter(self, template: CallTemplate, array: Any) -> None:
        recorder = self._recorder
        record = f"{template.title}.{template.side}"
        selection = recorder.selection
        if not selection.backward or not selection.outputs:
            return
        if not selection.everything:
            self._select_backward()  # a scope has ended before the gradients of parameters come
            if not selection.enter(record, titles_above(template.title, self._templates.titles)):
                return
        name = template.slots[0].path
        text = self._text(template, 0, array, recorder.tensors_path(record, name)) if recorder.with_outputs else "null"
        self._parameters[template.number] = (record, f"{quoted(name)}: [{text}]")

    def _text(
        self, template: CallTemplate, slot: int, array: Any, path: str, texts: Optional[TensorTexts] = None
    ) -> str:
        known = template.slots[slot]
        assert known.row is not None
        values: Array = bits(np.asarray(array), known.row)
        if not known.shape:
            values = values.reshape(())
        return (texts or self._texts).array_text(values, known.row, path)
