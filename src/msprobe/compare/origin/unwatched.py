"""A model that is called in place of a different one that msprobe does not watch (the policy for its reference).

Calls inside a model that was not passed to start() have no module, but run in the same functions of the script as
those inside a model that was. So each run is a sequence of models called, watched or not. Where one run calls the
watched model and the other one an unwatched one, the answer names this call and not the numbers that follow from it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Optional

from msprobe.compare.calls import FORWARD, Call
from msprobe.compare.origin.source import Function, user_frames_of
from msprobe.compare.origin.structure import candidate
from msprobe.compare.origin.trace import Trace
from msprobe.compare.origin.wording import Candidate
from msprobe.dump.stack_frames import Frame
from msprobe.messages import Message


class _Run(NamedTuple):
    """A model that runs: its calls, and the frames of the script that call it, innermost first."""

    calls: list[Call]
    frames: tuple[Frame, ...]

    @property
    def is_watched(self) -> bool:
        return any(call.parent is not None for call in self.calls)

    @property
    def keys(self) -> list[str]:
        return [call.key for call in self.calls]


def other_model(trace: Trace, entered: Sequence[int]) -> Optional[Candidate]:
    """The first model that is watched in one run only, if both run the same code there. `entered`: where differences
    entered; one before it explains more."""
    if not entered or trace.facts is None:
        return None
    calls = [_calls(trace, golden) for golden in (False, True)]
    alone = [sum(call.parent is None for call in made) for made in calls]
    if alone[0] == alone[1]:  # calls of a model that is not watched have no module
        return None
    for ours, theirs in zip(*map(_runs, calls, trace.stacks)):
        if ours.keys != theirs.keys:
            return None
        if ours.is_watched == theirs.is_watched:
            continue
        watched = ours if ours.is_watched else theirs
        index = next(i for i, (match, _) in enumerate(trace.groups) if watched.calls[0] in (match.target, match.golden))
        if any(i < index for i in entered):
            return None
        said = Message("origin.watched_in_target" if ours.is_watched else "origin.watched_in_golden")
        pairs = list(zip(ours.frames, theirs.frames))
        shown = next((pair for pair in pairs if pair[0].text != pair[1].text), pairs[0])
        texts = [f"{frame.file}:{frame.line}: {frame.text}" for frame in shown]
        target, golden = (f"{frame.file}:{frame.line} in {frame.function}" for frame in shown)
        evidence = Message("evidence.called_at", target=texts[0], golden=texts[1])
        made = candidate("replaced", index, None, trace, (evidence,))
        return replace(made, said=said, lines=(target, golden))
    return None


def _calls(trace: Trace, golden: bool) -> list[Call]:
    """The API calls of the forward of a run, in their order."""
    calls = [call for match, _ in trace.groups if (call := match.golden if golden else match.target) is not None]
    found = [call for call in calls if call.direction == FORWARD and call.kind == "api" and not call.recompute]
    return sorted(found, key=lambda call: call.order)


def _runs(calls: Sequence[Call], stacks: Mapping[str, list[str]]) -> Iterator[_Run]:
    own = {call.name: user_frames_of(stacks, call) for call in calls}
    inner = {name: (known[0].file, known[0].function) for name, known in own.items() if known}
    inside = {inner[call.name] for call in calls if call.parent is not None and call.name in inner}
    inside = {one for one in inside if one[1] != "<module>"}
    run: Optional[_Run] = None
    for call in calls:
        frames = _around(own[call.name], inside) if inner.get(call.name) in inside else ()
        if run is not None and run.frames != frames:
            yield run
            run = None
        if frames:
            run = run or _Run([], frames)
            run.calls.append(call)
    if run is not None:
        yield run


def _around(frames: Sequence[Frame], functions: Collection[Function]) -> tuple[Frame, ...]:
    """The frames that call the outermost of these functions, innermost first, up to the script."""
    inside = [place for place, frame in enumerate(frames) if (frame.file, frame.function) in functions]
    around = frames[max(inside, default=-1) + 1 :]
    script = next((place for place, frame in enumerate(around) if frame.function == "<module>"), len(around))
    return tuple(around[: script + 1])
