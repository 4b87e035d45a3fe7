"""The Python stack of a call, read cheaply and written once.

A stack is identified by the (code, instruction) pairs of its frames. Line numbers are read when a stack is first seen;
the writer thread reads the source text when it writes the stack.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Hashable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from threading import get_ident
from types import CodeType, FrameType
from typing import Callable, Optional

from msprobe.dump.cells import lines_of, name_of
from msprobe.dump.stack_frames import frame_text

_OWN = str(Path(__file__).resolve().parents[2]) + os.sep
Position = tuple[str, int, str]


def _key(skip: int) -> Hashable:
    """Identifies a stack; the frame of the caller is the first to be skipped."""
    frame: Optional[FrameType] = sys._getframe(skip + 1)
    key: list[int] = []
    while frame is not None:
        key.append(id(frame.f_code))
        key.append(frame.f_lasti)
        frame = frame.f_back
    return tuple(key)


try:
    from msprobe.collect.records._frames import key as stack_key
except ImportError:
    stack_key = _key  # type: ignore[assignment]


class _KnownStacks:
    """The known stacks of this process: each step has the stacks of the step before it.

    An entry holds the code objects: an id is unique only while its object lives.
    """

    LIMIT = 4096

    def __init__(self) -> None:
        self._entries: dict[Hashable, tuple[tuple[Position, ...], tuple[CodeType, ...]]] = {}
        self._hidden: dict[str, bool] = {}
        self._endings: tuple[str, ...] = ()

    def hide_files(self, endings: tuple[str, ...]) -> None:
        new = tuple(ending for ending in endings if ending not in self._endings)
        if new:
            self._endings += new
            self._hidden.clear()
            self._entries.clear()

    def get(self, identity: Hashable, frame: FrameType) -> tuple[tuple[Position, ...], tuple[CodeType, ...]]:
        entry = self._entries.get(identity)
        if entry is None:
            if len(self._entries) >= self.LIMIT:
                self._entries.clear()
            entry = self._entries[identity] = self.look(frame)
        return entry

    def look(self, top: FrameType) -> tuple[tuple[Position, ...], tuple[CodeType, ...]]:
        positions: list[Position] = []
        codes: list[CodeType] = []
        frame: Optional[FrameType] = top
        while frame is not None:
            code = frame.f_code
            codes.append(code)
            if not self._is_hidden(code.co_filename):
                positions.append((name_of(code.co_filename), frame.f_lineno or 0, code.co_name))
            frame = frame.f_back
        return tuple(positions), tuple(codes)

    def _is_hidden(self, filename: str) -> bool:
        hidden = self._hidden.get(filename)
        if hidden is None:
            hidden = filename.startswith((_OWN, "<frozen ")) or filename.endswith(self._endings)
            self._hidden[filename] = hidden
        return hidden


_known = _KnownStacks()


def hide_files(*endings: str) -> None:
    """Leaves out files with these endings: those through which a framework calls msprobe."""
    _known.hide_files(tuple(ending.replace("/", os.sep) for ending in endings))


class Stacks:
    """Distinct stacks of one step, numbered from 0 in the order in which they are first seen."""

    def __init__(self, announce: Callable[[int, Callable[[], Sequence[str]]], None]) -> None:
        self._announce = announce
        self._numbers: dict[Hashable, int] = {}
        self._alive: list[object] = []
        self._sources: dict[int, tuple[Position, ...]] = {}

    def set_source(self, positions: Optional[tuple[Position, ...]]) -> None:
        """Sets the source positions of the next calls of this thread, innermost first: its frames show other code."""
        if positions is None:
            self._sources.pop(get_ident(), None)
        else:
            self._sources[get_ident()] = positions

    def number(self, depth: int = 1) -> int:
        """The number of the caller's stack, without the `depth` frames of msprobe at the top."""
        if self._sources:
            source = self._sources.get(get_ident())
            if source is not None:
                return self._number_source(source)
        identity = stack_key(depth + 1)
        number = self._numbers.get(identity)
        if number is None:
            number = self._numbers[identity] = len(self._numbers)
            positions, codes = _known.get(identity, sys._getframe(depth + 1))
            self._alive.append(codes)
            self._announce(number, partial(render_positions, positions))
        return number

    def _number_source(self, positions: tuple[Position, ...]) -> int:
        number = self._numbers.get(positions)
        if number is None:
            number = self._numbers[positions] = len(self._numbers)
            self._announce(number, partial(render_positions, positions))
        return number


def positions_of(frame: FrameType) -> tuple[Position, ...]:
    """The visible frames of a stack, innermost first."""
    return _known.look(frame)[0]


@lru_cache(maxsize=4096)
def render_positions(positions: tuple[Position, ...]) -> tuple[str, ...]:
    """The lines of stack.json, innermost first, with the source text. Cached: the next step has the same stacks."""
    lines = []
    for filename, line, function in positions:
        texts = lines_of(filename)
        text = texts[line - 1].strip() if 1 <= line <= len(texts) else ""
        lines.append(frame_text(filename, line, function, text))
    return tuple(lines)  # not from a generator: gc.get_objects() in a different thread makes that fail
