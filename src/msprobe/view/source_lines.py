"""Frames of a stack for the page, and the lines around the user's line.

The lines are those that the dump has recorded. No source file is opened: its path comes from the dump, which is not
trusted, and what the page shows may be sent back to the author of the dump.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from msprobe.compare.calls import FORWARD
from msprobe.compare.origin.source import library_frame
from msprobe.compare.result import UnitResult
from msprobe.compare.rows import Row
from msprobe.dump.errors import DumpError
from msprobe.dump.reader import RankDump, open_dump
from msprobe.dump.source_lines import AROUND, LONGEST, Lines
from msprobe.dump.stack_frames import Frame, is_library, parse_frame
from msprobe.view.argument import argument_in

MOST_FRAMES = 200
MOST_RANKS = 4


def frames_of(stack: list[str]) -> list[dict[str, Any]]:
    """The frames of a stack in order, innermost first; `user` marks those outside installed packages."""
    found = []
    for text in stack[:MOST_FRAMES]:
        frame = parse_frame(text)
        if frame is None:
            found.append({"text": text[:LONGEST], "file": "", "line": 0, "function": "", "user": False})
        else:
            found.append(
                {
                    "file": frame.file[:LONGEST],
                    "line": frame.line,
                    "function": frame.function[:LONGEST],
                    "text": frame.text[:LONGEST],
                    "user": not is_library(frame.file),
                }
            )
    return found


def excerpt_of(stack: list[str], recorded: Iterable[Lines] = ()) -> Optional[dict[str, Any]]:
    """The user's line with the recorded lines around it. If there are none, `note` says so."""
    frame = next((one for one in _parsed(stack) if not is_library(one.file)), None)
    if frame is None:
        return None
    first, shown, note = frame.line, [frame.text], "unread"
    lines = next((found for known in recorded if _has(found := known.get(frame.file, {}), frame)), None)
    if lines is not None:
        first = next(
            n for n in range(frame.line - AROUND, frame.line + 1) if all(m in lines for m in range(n, frame.line))
        )
        shown, note = [], ""
        for number in range(first, frame.line + AROUND + 1):
            if number not in lines:
                break
            shown.append(lines[number])
    texts = [line[:LONGEST] for line in shown]
    return {"file": frame.file[:LONGEST], "line": frame.line, "first": first, "lines": texts, "note": note}


def _parsed(stack: list[str]) -> Iterator[Frame]:
    return (frame for text in stack[:MOST_FRAMES] if (frame := parse_frame(text)) is not None)


def _has(lines: Mapping[int, str], frame: Frame) -> bool:
    """Whether these are the lines of the run that made the frame: the other run may have a different text there."""
    here = lines.get(frame.line, "").strip()
    return bool(here) and (not frame.text or frame.text.startswith(here))


def code_of(
    stacks: Sequence[list[str]],
    recorded: Sequence[list[Lines]],
    row: Optional[Row] = None,
    made: Sequence[Optional[Frame]] = (None, None),
    model: Sequence[Optional[Frame]] = (None, None),
) -> Optional[dict[str, Any]]:
    """For each run, the user's line with the lines around it, the innermost line if a library has it, and the lines
    that made the module and the model; None where a run does not make the call. The innermost line has the words of the
    argument of `row`."""
    sides: dict[str, Any] = {}
    calls = (None, None) if row is None else (row.match.target, row.match.golden)
    slots = ("", "") if row is None else (row.slot, row.golden_slot)
    sources = zip(("target", "golden"), stacks, recorded, calls, slots, made, model)
    for name, stack, lines, call, slot, origin, whole in sources:
        inside = _one_line(library_frame(_parsed(stack)))
        own = excerpt_of(stack, lines)
        innermost = inside or own
        if innermost is not None and call is not None and call.direction == FORWARD:
            line = innermost["lines"][innermost["line"] - innermost["first"]]
            innermost["argument"] = argument_in(line.strip(), call.key, slot)
        lines_of_side = {"own": own, "library": inside, "made": _one_line(origin), "model": _one_line(whole)}
        sides[name] = lines_of_side if own or inside else None
    return sides if any(sides.values()) else None


def _one_line(frame: Optional[Frame]) -> Optional[dict[str, Any]]:
    if frame is None:
        return None
    place = {"file": frame.file[:LONGEST], "line": frame.line, "first": frame.line, "note": ""}
    return {**place, "lines": [frame.text[:LONGEST]]}


class Recorded:
    """What two dumps have recorded of their runs: lines and facts, read when they are first needed. Thread-safe."""

    def __init__(self, *paths: Optional[Path]) -> None:
        self._paths = [path for path in paths if path is not None]
        self._ranks: Optional[list[list[RankDump]]] = None
        self._lock = threading.Lock()

    def _opened(self) -> list[list[RankDump]]:
        if self._ranks is None:
            self._ranks = [_ranks_of(path) for path in self._paths]
        return self._ranks

    def of(self, unit: UnitResult) -> list[list[Lines]]:
        """The lines of a unit, those of each run: of its rank, or of a few ranks in its step if it has several."""
        with self._lock:
            found = []
            for ranks in self._opened():
                near = [rank for rank in ranks if rank.step == unit.step]
                same = [rank for rank in near if rank.rank == unit.rank]
                found.append([lines for rank in (same or near)[:MOST_RANKS] if (lines := rank.sources)])
            return found

    def runs(self) -> list[dict[str, Any]]:
        """run.json of the first rank of each run; empty without one."""
        with self._lock:
            found = []
            for ranks in self._opened():
                try:
                    found.append(ranks[0].run if ranks else {})
                except DumpError:
                    found.append({})
            return found


def _ranks_of(path: Path) -> list[RankDump]:
    try:
        return open_dump(path).ranks
    except DumpError:  # a Graph-mode Dump
        return []
