"""overflow_check: the calls that have begun and not ended, and what is known to be finite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Optional
from weakref import ref

from msprobe.collect.records.stacks import Stacks
from msprobe.stats.dtype_ranges import Ranges
from msprobe.stats.finiteness import FINITE
from msprobe.tasks.overflow_check.inspector import TensorInspector
from msprobe.tasks.overflow_check.open_calls import OpenCall


class CallStates:
    """Looks at tensors before and after the calls of one step."""

    def __init__(self, inspector: TensorInspector, ranges: Ranges, stacks: Stacks, found: set[str]) -> None:
        """`found` grows with every overflow."""
        self.known: dict[int, tuple[Any, int]] = {}  # tensors, by id, that are finite at this version
        self._inspector = inspector
        self._ranges = ranges
        self._stacks = stacks
        self._found = found
        self._numbers = count()
        self._open: dict[int, OpenCall] = {}

    def open(self, args: Any, kwargs: Any, writes: bool, written: Sequence[Any], keeps: int) -> OpenCall:
        """A call begins. `writes`: it may change its arguments: `written` if known, otherwise any. They are
        inspected now, and copied for a replay if they take at most `keeps` bytes."""
        call = OpenCall(args, kwargs)
        call.found_before = len(self._found)
        inspector = self._inspector
        tensors = inspector.arguments(args, kwargs)
        if writes:
            changing = call.changing = written or tensors
            call.written = written
            room = keeps
            targets = [id(tensor) for tensor in inspector.arguments((kwargs["out"],), None)] if "out" in kwargs else ()
            for tensor in changing:
                state = FINITE if id(tensor) in targets else self._state(tensor)  # the call does not read `out`
                if state > call.given:
                    call.given = state
                room -= inspector.size(tensor)
            if keeps and room >= 0:
                call.copies = {id(tensor): inspector.copy(tensor) for tensor in changing}
            else:
                call.lost = keeps > 0
            ours = set(map(id, changing))
            tensors = [tensor for tensor in tensors if id(tensor) not in ours]
        call.versions = inspector.versions(tensors)
        return call

    def add_changing(self, call: OpenCall, tensors: Mapping[str, Any]) -> None:
        """The call may also change these tensors, which are not arguments: the parameters of a compiled region."""
        if tensors:
            call.more = tensors
            call.given = max(call.given, *map(self._inspector.look, tensors.values()))

    def locate(self, call: OpenCall, name: str, parent: Optional[str], depth: int) -> None:
        """Sets the place of a call. `depth` is the number of frames of msprobe between the call and here."""
        call.name = name
        call.parent = parent
        call.stack = self._stacks.number(depth + 1)

    def add(self, call: OpenCall) -> int:
        """Keeps a call until it ends. Returns its number."""
        number = next(self._numbers)
        self._open[number] = call
        return number

    def take(self, number: int) -> OpenCall:
        return self._open.pop(number)

    def drop(self, number: int) -> None:
        """It ended without a result."""
        self._open.pop(number, None)

    def release(self, number: int) -> None:
        """The call has returned but is still running (an asynchronous collective): its tensors are not kept alive."""
        call = self._open.get(number)
        if call is not None:
            call.release(self._inspector.hold)

    def result(self, output: Any, title: str) -> Optional[int]:
        """The worst state of the tensors that a call returned; None if it returned no tensor."""
        inspector, found = self._inspector, None
        for tensor in inspector.arguments((output,), None):
            state = inspector.look(tensor, self._ranges, title)
            if found is None or state > found:
                found = state
        return found

    def passed(self, call: OpenCall) -> None:
        """The results of a call are finite, and so is what it wrote."""
        for tensor in call.written:
            self.remember(tensor, self._inspector.version(tensor))

    def remember(self, tensor: Any, version: int) -> None:
        """Notes that a tensor is finite at this version: the next call that writes it need not inspect it."""
        known = self.known.get(id(tensor))
        if known is not None and known[0]() is tensor:
            self.known[id(tensor)] = (known[0], version)
        elif self._inspector.remembers(tensor):
            self.known[id(tensor)] = (ref(tensor), version)

    def _state(self, tensor: Any) -> int:
        """Inspects a tensor, unless an earlier in-place call left it finite."""
        known = self.known.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == self._inspector.version(tensor):
            return FINITE
        return self._inspector.look(tensor)
