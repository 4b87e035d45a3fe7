"""A model that is called in place of a different one that msprobe does not watch (the policy for its reference).

Calls inside a model that was not passed to start() have no module, but run in the same functions of the script as
those inside a model that was. So each run is a sequence of models called, watched or not. Where one run calls the
watched model and the other one an unwatched one, the answer names this call and not the numbers that follow from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Optional

from msprobe.compare.calls import FORWARD, Call
from msprobe.compare.origin.source import frames_outside, function_of
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
    for ours, theirs in zip(_runs(trace, False), _runs(trace, True)):
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


def _runs(trace: Trace, golden: bool) -> Iterator[_Run]:
    stacks = trace.stacks[golden]
    calls = [call for match, _ in trace.groups if (call := match.golden if golden else match.target) is not None]
    calls = [call for call in calls if call.direction == FORWARD and call.kind == "api" and not call.recompute]
    inside = {function_of(stacks, call) for call in calls if call.parent is not None}
    inside = {one for one in inside if one is not None and one[1] != "<module>"}
    run: Optional[_Run] = None
    for call in sorted(calls, key=lambda call: call.order):
        belongs = function_of(stacks, call) in inside
        frames = frames_outside(stacks, call, inside) if belongs else ()
        if run is not None and run.frames != frames:
            yield run
            run = None
        if frames:
            run = run or _Run([], frames)
            run.calls.append(call)
    if run is not None:
        yield run
