"""The answer of a check: same, same within rounding, or differs, with the place where it starts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from msprobe.compare import Comparison, Row, UnitResult, compare
from msprobe.dump.names import is_module, module_class, module_path, parse_name
from msprobe.dump.stack_frames import Frame, is_library, parse_frame
from msprobe.messages import Message

SAME = "same"
ROUNDING = "same within rounding"
DIFFERS = "differs"
NOT_COMPARED = "not compared"
_CALL = re.compile(r"\.(forward|backward)(\.\d+)?\Z")


@dataclass(frozen=True)
class Place:
    """A call in the run that was checked. `source` is `file:line in function` of the user's code."""

    call: str
    module: Optional[str]
    step: Optional[int]
    rank: Optional[int]
    source: Optional[str]
    frames: tuple[Frame, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Answer:
    """`passed` is what CI needs. `place` is the origin of a difference, or the first call whose bytes differ.
    `is_other_model`: it differs, and no origin can be named: few calls have a counterpart, or no module has one."""

    verdict: str
    passed: bool
    sentence: Message
    place: Optional[Place]
    other_bytes: int
    comparison: Comparison = field(repr=False)

    @property
    def is_other_model(self) -> bool:
        return self.verdict == DIFFERS and (self.comparison.origin is None or self.place is None)

    @property
    def exit_code(self) -> int:
        if self.passed:
            return 0
        return 2 if self.verdict == NOT_COMPARED else 1


def check(target: Path, golden: Path, bitwise: bool, other_layout: bool = False) -> Answer:
    """Compares a run with the dump of a baseline. `bitwise`: bytes that differ are a failure too.
    `other_layout`: values that only one of the two layouts has are no failure."""
    comparison = compare(target, golden)
    origin, notes = comparison.origin, comparison.notes
    count, first = _other_bytes(comparison)
    if origin is not None and not other_layout:
        ours, theirs = _modules(comparison)
        if ours and theirs and not ours & theirs:
            said = Message("baseline.other_model", number=len(theirs))
            return Answer(DIFFERS, False, said, None, count, comparison)
    if origin is not None:
        frames = _frames(comparison, origin.name, origin.step, origin.rank)
        place = Place(origin.name, origin.module, origin.step, origin.rank, origin.source, frames)
        return Answer(DIFFERS, False, origin.sentence, place, count, comparison)
    if comparison.exit_code == 1:
        why = notes[0] if notes else Message("baseline.no_origin")
        return Answer(DIFFERS, False, why, first, count, comparison)
    if comparison.exit_code == 2:
        passed = other_layout and comparison.counts["pass"] > 0
        return Answer(NOT_COMPARED, passed, _explain_gaps(comparison), None, count, comparison)
    if not count or first is None:
        return Answer(SAME, True, Message("baseline.same"), None, 0, comparison)
    sentence = Message("baseline.rounding", call=first.call)
    return Answer(ROUNDING, not bitwise, sentence, first, count, comparison)


def _modules(comparison: Comparison) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """The modules of both runs: the last part of the path, and the class. A wrapper changes neither."""
    found: tuple[set[tuple[str, str]], set[tuple[str, str]]] = (set(), set())
    for _, row in comparison.rows():
        for names, call in zip(found, (row.match.target, row.match.golden)):
            if call is not None and is_module(call.name):
                key = parse_name(call.name).key
                names.add((module_path(key).rpartition(".")[2], module_class(key)))
    return found


def _explain_gaps(comparison: Comparison) -> Message:
    """What is missing, if nothing differs."""
    rows = [f"{count} {reason}" for reason, count in comparison.reasons.items()]
    said = Message("baseline.gaps", reasons=rows)
    return Message("named", name=said, said=comparison.notes[0]) if comparison.notes else said


def _other_bytes(comparison: Comparison) -> tuple[int, Optional[Place]]:
    """How many compared values have other bytes, and the first call that returned such a value."""
    count, first = 0, None
    for unit, row in comparison.rows():
        if row.verdict == "not_compared" or not _has_other_bytes(row):
            continue
        count += 1
        if first is None and row.match.target is not None and not row.is_input:
            frames = _frames(comparison, row.match.target.name, unit.step, unit.rank)
            first = _place(unit, row, frames)
    return count, first


def _has_other_bytes(row: Row) -> bool:
    if row.target is None or row.golden is None:
        return False
    return any(row.target.get(key) != row.golden.get(key) for key in ("md5", "value", "dtype", "shape"))


def _place(unit: UnitResult, row: Row, frames: tuple[Frame, ...]) -> Place:
    call = row.match.call
    own = next((frame for frame in frames if not is_library(frame.file)), None)
    source = None if own is None else f"{own.file}:{own.line} in {own.function}"
    module = _CALL.sub("", call.parent) if call.parent else None
    return Place(call.name, module, unit.step, unit.rank, source, frames)


def _frames(comparison: Comparison, name: str, step: Optional[int], rank: Optional[int]) -> tuple[Frame, ...]:
    """The stack of a call, of its forward if it is a backward; of the golden run if only that one made the call."""
    names = [name, name.replace(".backward", ".forward")]
    for unit in comparison.units:
        if unit.step == step and (unit.rank == rank or rank is None):
            for stacks in unit.stacks:
                texts = next((stacks[one] for one in names if one in stacks), None)
                if texts:
                    return tuple(frame for frame in map(parse_frame, texts) if frame is not None)
    return ()
