"""overflow_check: which calls make, or hand on, NaN and infinity; only those are recorded, with their tensors.

A call overflows when an output holds NaN or infinity. It is the **producer** when what it received was
finite, a **propagator** otherwise. Infinities that the user handed in (a mask of -inf, `masked_fill` with
-inf) and that a call only hands on are no overflow, until a call of this run has made an infinity (own_infinities
tells one from the other); a NaN that comes of them (a softmax over a row of -inf) has its producer there.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional, Protocol
from weakref import ref

from msprobe.collect.names import forward_of
from msprobe.collect.recorder import Recorder, Writer
from msprobe.collect.selection import Selection
from msprobe.collect.stacks import Stacks
from msprobe.collect.values import Values
from msprobe.dump import layout
from msprobe.dump.stack_frames import source_line
from msprobe.stats.dtype_ranges import Ranges
from msprobe.stats.finiteness import FINITE, INFINITE, WORDS
from msprobe.tasks.overflow_check.open_calls import Holder, OpenCall, numbers_state
from msprobe.tasks.overflow_check.own_infinities import Signs, call_makes_own
from msprobe.tasks.overflow_check.run import OverflowRun

PRODUCER, PROPAGATOR = "producer", "propagator"


class OverflowStop(RuntimeError):
    """overflow_nums overflows were found: everything is on disk, and training ends here on purpose."""


class TensorInspector(Protocol):
    """What a framework brings: its tensors, and a look at one."""

    budget: int  # bytes of forward arguments that may be held strongly, for a replay of a gradient

    def arguments(self, args: Any, kwargs: Any) -> list[Any]:
        """The tensors among arguments, however nested."""

    def look(self, tensor: Any, ranges: Optional[Ranges] = None, title: str = "") -> int:
        """FINITE, INFINITE or NAN; `ranges` is told how near to its dtype's ends a named output is."""

    def infinities(self, tensor: Any) -> Optional[Signs]:
        """1, -1 or 0 for each of its elements; None where there are none to read."""

    def version(self, tensor: Any) -> int: ...

    def remembers(self, tensor: Any) -> bool:
        """Whether `version` tells when this tensor has changed."""

    def versions(self, tensors: list[Any]) -> list[tuple[Any, int]]: ...

    def copy(self, tensor: Any) -> Any: ...

    def hold(self, tensor: Any) -> Optional[Holder]:
        """The tensor for later, weakly; None for what is no tensor."""

    def size(self, tensor: Any) -> int: ...

    def fresh(self) -> None:
        """What was remembered of tensors may be stale: before a record is rendered."""

    def circumstances(self) -> str:
        """JSON members of what a replay must set up (autocast), or nothing."""


class StepWriter(Writer, Protocol):
    """The writer of one step: what stopping needs of it beyond recording."""

    directory: Path

    def flush(self) -> None: ...

    def finish(self) -> Any: ...


class OverflowRecorder(Recorder):
    """A recorder that keeps a record only of what overflowed. `writes` says which calls are looked at beforehand."""

    def __init__(
        self,
        writer: StepWriter,
        values: Values,
        selection: Selection,
        inspector: TensorInspector,
        run: OverflowRun,
        *,
        with_stacks: bool,
        batch: Optional[Values] = None,
    ) -> None:
        super().__init__(
            writer, values, selection, with_data=True, with_stacks=False, saves=lambda name: True, batch=batch
        )
        self.step_writer = writer
        self.inspector = inspector
        self.run = run
        self.under_scaler = False
        self.scaling = False  # the loss is being scaled right now
        self.met_bad = False  # a bad gradient came by that has no record
        self._gradients_bad = False
        self._scaled = False
        self._frames: dict[int, Callable[[], Sequence[str]]] = {}
        self._places = Stacks(self._frames.__setitem__)
        self._writes_stacks = with_stacks
        self._announced: set[int] = set()
        self._opened: dict[int, OpenCall] = {}
        self._flagged: set[str] = set()
        self._around: set[str] = set()  # modules in which one was flagged
        self._beside: Mapping[str, Any] = {}
        self.known: dict[int, tuple[Any, int]] = {}  # finite after an in-place call, at this version

    @property
    def with_inputs(self) -> bool:
        """Parameters are not rendered with every module: they are looked at (`beside`)."""
        return False

    # What the frontends call.

    def enter(self, name: str, parent: Optional[str], args: Any, kwargs: Any, depth: int = 1) -> int:
        """A call of which nothing is known (a module, an opaque region): what it receives is looked at now."""
        return self.begin(name, parent, args, kwargs, depth + 1, writes=True, keeps=0)

    def begin(
        self,
        name: str,
        parent: Optional[str],
        args: Any,
        kwargs: Any,
        depth: int,
        *,
        writes: bool,
        written: Sequence[Any] = (),
        more: Optional[Mapping[str, Any]] = None,
        keeps: int = 64 << 20,
        random: Any = None,
    ) -> int:
        """A call begins, and its number is what `leave` is told. `more`: what it may change that is no argument, by
        name (the parameters of a compiled region); the rest is as for `open`."""
        call = self.open(args, kwargs, writes, written, keeps)
        self.locate(call, name, parent, depth + 1)
        call.random = random
        if more:
            call.more = more
            call.given = max(call.given, *map(self.inspector.look, more.values()))
        return self.under_way(call)

    def under_way(self, call: OpenCall) -> int:
        """The number by which `leave`, `fail` and `release` know it."""
        number = next(self._calls)
        self._opened[number] = call
        return number

    def open(self, args: Any, kwargs: Any, writes: bool, written: Sequence[Any], keeps: int) -> OpenCall:
        """A call begins. `writes`: it may change its arguments, `written` if that is known and any otherwise; they
        are looked at now, and copied for a replay where they take no more than `keeps` bytes."""
        call = OpenCall(args, kwargs)
        call.flagged = len(self._flagged)
        inspector = self.inspector
        tensors = inspector.arguments(args, kwargs)
        if writes:
            changing = call.changing = written or tensors
            call.written = written
            room = keeps
            targets = [id(tensor) for tensor in inspector.arguments((kwargs["out"],), None)] if "out" in kwargs else ()
            for tensor in changing:
                state = FINITE if id(tensor) in targets else self._state(tensor)  # what lies there is not read
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

    def locate(self, call: OpenCall, name: str, parent: Optional[str], depth: int) -> None:
        """Where a call is; `depth` frames of ours lie between it and here."""
        call.name = name
        call.parent = parent
        call.stack = self._places.number(depth + 1)

    def result(self, output: Any, title: str) -> Optional[int]:
        """The worst of the tensors that a call returned, None where it returned none."""
        inspector, found = self.inspector, None
        for tensor in inspector.arguments((output,), None):
            state = inspector.look(tensor, self.run.ranges, title)
            if found is None or state > found:
                found = state
        return found

    def passed(self, call: OpenCall) -> None:
        """What a call returned is finite, so that what it wrote is known to be."""
        for tensor in call.written:
            self.remember(tensor, self.inspector.version(tensor))

    def remember(self, tensor: Any, version: int) -> None:
        """It is finite at this version: the next call that writes it need not look."""
        known = self.known.get(id(tensor))
        if known is not None and known[0]() is tensor:
            self.known[id(tensor)] = (known[0], version)
        elif self.inspector.remembers(tensor):
            self.known[id(tensor)] = (ref(tensor), version)

    def release(self, call: int) -> None:
        """The call has returned and is under way still (an asynchronous collective): its tensors are not kept."""
        opened = self._opened.get(call)
        if opened is not None:
            opened.release(self.inspector.hold)

    def _state(self, tensor: Any) -> int:
        """A look that an in-place call before this one may have had already."""
        known = self.known.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == self.inspector.version(tensor):
            return FINITE
        return self.inspector.look(tensor)

    def set_parameters(self, tensors: Mapping[str, Any]) -> None:
        """The parameters of the module that `leave` is about to end."""
        self._beside = tensors

    def leave(self, call: int, name: str, output: Any, extra: str = "") -> None:
        self.close(self._opened.pop(call), name, output, self.result(output, name), extra)

    def close(self, opened: OpenCall, name: str, output: Any, result: Optional[int], extra: str = "") -> None:
        """A call has returned; `result` is what is in `output`."""
        beside, self._beside = self._beside, {}
        found = result or FINITE
        inspector = self.inspector
        changed, bad = opened.more, {}
        if result is None and opened.changing:  # it returns nothing: what it wrote is its result
            changed = {**changed, **{str(number): tensor for number, tensor in enumerate(opened.changing)}}
        if changed:
            bad = {key: tensor for key, tensor in changed.items() if inspector.look(tensor) != FINITE}
            found = max([found, *map(inspector.look, bad.values())])
        if found == FINITE:
            self.passed(opened)
            return
        self.known.clear()  # it may have been written by another name
        whole = opened.restore() if opened.loosened else True
        inside = len(self._flagged) > opened.flagged
        role = self._role(found, self._given(opened, beside), inside)
        if role is None:
            if inside or opened.lost or not call_makes_own(inspector, name, *opened.original(), output):
                return
            role = PRODUCER
        members = self._members(opened, output, role)
        if not whole:
            members.append('"inputs_gone": true')
        if bad:
            members.append(f'"changed": {self.values.mapping(bad, f"{name}.changed")}')
        if beside:  # only a producer is ever replayed: its parameters get files
            path = f"{name}.parameters" if role == PRODUCER else ""
            members.append(f'"parameters": {self.values.mapping(beside, path)}')
        if extra:
            members.append(extra)
        self.keep(name, opened.parent, opened.stack, ", ".join(members), found, role)

    def fail(self, call: int, error: BaseException, extra: str = "") -> None:
        self._opened.pop(call, None)

    def unwaited(self, call: int) -> None:
        self._opened.pop(call, None)

    def fault(self, name: str, trace: str) -> None:
        """A fault of ours is logged; the stop, which is on purpose, goes on to the script."""
        error = sys.exc_info()[1]
        if isinstance(error, OverflowStop):
            raise error
        super().fault(name, trace)

    # Backward: the frontend has the gradients, the rules are the same.

    def late_role(self) -> str:
        """The role of a parameter's gradient, which comes after the gradients that made it."""
        return PROPAGATOR if self._flagged or self.met_bad else PRODUCER

    def judge_gradients(self, name: str, given: int, found: int) -> Optional[str]:
        """The role of a backward whose outgoing gradients are `found`; NaN of the forward is not made here."""
        return self._role(found, given, name in self._around or forward_of(name) in self._flagged)

    def keep(
        self,
        name: str,
        parent: Optional[str],
        stack: Optional[int],
        text: str,
        found: int,
        role: str,
        back: bool = False,
    ) -> None:
        """Writes the record of an overflow, counts it, and stops where that was the last one wanted."""
        run = self.run
        again = name in self._flagged  # a further parameter of the same module
        self._flagged.add(name)
        if parent is not None:
            self._around.add(parent)
        scaled = self._is_scaled(role, back)
        if found == INFINITE and not back and not scaled:
            run.made_infinity = True
        self._gradients_bad = self._gradients_bad or back
        run.producers += role == PRODUCER and not again
        run.propagators += role == PROPAGATOR and not again
        if stack is not None and self._writes_stacks and stack not in self._announced:
            self._announced.add(stack)
            self.writer.stack(stack, self._frames[stack])
        self.write_record(name, parent, text, stack if self._writes_stacks else None)
        verb = "made" if role == PRODUCER else "handed on"
        told = f"{name} {verb} {WORDS[found]}, {self._where()}, {self._line(stack)}"
        run.first = run.first or told
        if again:
            return
        if scaled:
            run.scaled += 1
            return
        run.counted += 1
        if 0 < run.limit <= run.counted:
            self.closed = True
            self.step_writer.finish()
            raise OverflowStop(
                f"overflow_check: {told}. That is overflow {run.counted} of overflow_nums {run.limit}, so training "
                f"stops; what was found is in {self.step_writer.directory}. `msprobe overflow` analyses it; "
                '"overflow_nums": -1 never stops.'
            )

    def _is_scaled(self, role: str, back: bool) -> bool:
        """Of a scaled loss: itself, its gradients, and what only hands these on (unscaling, clipping)."""
        scaled = self.scaling or (self.under_scaler and (back or (self._scaled and role == PROPAGATOR)))
        self._scaled = self._scaled or scaled
        return scaled

    def _role(self, found: int, given: int, inside: bool) -> Optional[str]:
        """None where nothing overflowed: an infinity that was handed in is handed on."""
        if found == FINITE:
            return None
        handed_in = given == INFINITE and not self.run.made_infinity and not self._gradients_bad
        if handed_in and found == INFINITE:
            return None
        return PRODUCER if not inside and (given == FINITE or handed_in) else PROPAGATOR

    def _given(self, call: OpenCall, beside: Mapping[str, Any]) -> int:
        inspector = self.inspector  # an argument that the call has changed unannounced can no longer say what it was
        unchanged = [tensor for tensor, version in call.versions if inspector.version(tensor) == version]
        given = max([call.given, *map(inspector.look, (*unchanged, *beside.values()))])
        return max(given, numbers_state((call.args, call.kwargs)))

    def _members(self, call: OpenCall, output: Any, role: str) -> list[str]:
        self.inspector.fresh()
        path = f"{call.name}.input"
        args, kwargs = call.original()
        members = [
            f'"input_args": {self.values.sequence(args, path)}',
            f'"input_kwargs": {self.values.mapping(kwargs, path)}',
            f'"output": {self.values.result(output, f"{call.name}.output")}',
            f'"overflow": "{role}"',
        ]
        if call.random is not None:
            members.append(f'"random_state": {self.values.value(call.random, f"{call.name}.random_state")}')
        if call.lost or any(self.inspector.version(tensor) != version for tensor, version in call.versions):
            members.append('"inputs_may_be_changed": true')
        around = self.inspector.circumstances()
        return [*members, around] if around else members

    def _where(self) -> str:
        directory = self.step_writer.directory
        step, rank = layout.parse_step(directory.parent.name), layout.parse_rank(directory.name)
        return f"step {step}" if rank is None else f"step {step}, rank {rank}"

    def _line(self, stack: Optional[int]) -> str:
        frames = self._frames[stack]() if stack is not None and stack in self._frames else ()
        return source_line(frames) or "from a place that is not known"

    def stack_of(self, call: int) -> Optional[int]:
        """The number of an open call's stack, for a gradient that may come later."""
        return self._opened[call].stack
