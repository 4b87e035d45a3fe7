"""The lines of the script around each call, recorded with the run: source.json.

A reader shows only these. It opens no source file: the path in a dump is chosen by the author of the dump and could be
any file of the reader.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Optional

from msprobe.dump.cells import lines_of
from msprobe.dump.stack_frames import Frame, user_frame

AROUND = 3
LONGEST = 400
MOST_LINES = 20_000
"""For one rank directory: a script with more lines around its calls is recorded without the rest."""

Lines = Mapping[str, Mapping[int, str]]
"""The text by file and line number."""


@lru_cache(maxsize=4096)
def user_frame_of(frames: tuple[str, ...]) -> Optional[Frame]:
    """Cached: the next step has the same stacks."""
    return user_frame(frames)


class SourceLines:
    """The lines of one rank directory: each line of a file once."""

    def __init__(self) -> None:
        self._known: dict[str, set[int]] = {}
        self._count = 0

    def add(self, frames: Sequence[str]) -> tuple[str, str]:
        """The user's file in a stack and its new lines, as JSON members; empty if all are known."""
        frame = user_frame_of(tuple(frames))
        if frame is None or self._count >= MOST_LINES:
            return "", ""
        known = self._known.setdefault(frame.file, set())
        near = range(max(frame.line - AROUND, 1), frame.line + AROUND + 1)
        if known.issuperset(near):
            return "", ""
        lines = lines_of(frame.file)
        new = [number for number in near if number not in known and number <= len(lines)]
        known.update(near)
        self._count += len(new)
        texts = (f'"{number}": {json.dumps(lines[number - 1].rstrip()[:LONGEST])}' for number in new)
        return frame.file, ", ".join(texts)


def read_lines(value: Mapping[str, Any]) -> Lines:
    """The content of source.json. Damaged entries are left out."""
    return {file: _numbered(lines) for file, lines in value.items() if isinstance(lines, dict)}


def _numbered(lines: Mapping[str, Any]) -> dict[int, str]:
    return {
        int(number): text
        for number, text in lines.items()
        if number.isdecimal() and number.isascii() and len(number) <= 18 and isinstance(text, str)
    }
