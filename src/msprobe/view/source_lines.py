"""Frames of a stack for the page, and the lines around the user's line.

The lines are those that the dump has recorded. No source file is opened: its path comes from the dump, which is not
trusted, and what the page shows may be sent back to the author of the dump.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Optional

from msprobe.compare.result import UnitResult
from msprobe.dump.errors import DumpError
from msprobe.dump.reader import RankDump, open_dump
from msprobe.dump.source_lines import AROUND, LONGEST, Lines
from msprobe.dump.stack_frames import is_library, parse_frame

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
    parsed = (parse_frame(text) for text in stack[:MOST_FRAMES])
    frame = next((one for one in parsed if one is not None and not is_library(one.file)), None)
    if frame is None:
        return None
    first, shown, note = frame.line, [frame.text], "unread"
    lines = next((known[frame.file] for known in recorded if frame.line in known.get(frame.file, ())), {})
    here = lines.get(frame.line, "").strip()
    if here and frame.text.startswith(here):
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


class Recorded:
    """The recorded lines of two dumps, read when they are first needed. Thread-safe."""

    def __init__(self, *paths: Optional[Path]) -> None:
        self._paths = [path for path in paths if path is not None]
        self._ranks: Optional[list[RankDump]] = None
        self._lock = threading.Lock()

    def of(self, unit: UnitResult) -> list[Lines]:
        """The lines of a unit on both sides: of its rank, or of a few ranks in its step if it has several."""
        with self._lock:
            if self._ranks is None:
                self._ranks = [rank for path in self._paths for rank in _ranks_of(path)]
            near = [rank for rank in self._ranks if rank.step == unit.step]
            same = [rank for rank in near if rank.rank == unit.rank]
            return [lines for rank in (same or near)[:MOST_RANKS] if (lines := rank.sources)]


def _ranks_of(path: Path) -> list[RankDump]:
    try:
        return open_dump(path).ranks
    except DumpError:  # a Graph-mode Dump
        return []
