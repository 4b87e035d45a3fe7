"""The journal: one JSON array a line, appended only; what a crash leaves is still a dump.

The lines are listed in docs/architecture.md. Writing takes text that is already JSON and never
encodes it again; reading finds where a record's body starts by looking at the regular head of its
line and copies the body as it is, so making dump.json parses no record.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii as quote
from pathlib import Path
from typing import Any, Callable, Optional, Union

from msprobe.dump import layout

FORMAT = 1
READ_UP_TO = 64 << 20
Buffer = Union[bytes, mmap.mmap]
Span = tuple[int, int]


@dataclass(frozen=True)
class Head:
    """What dump.json says before its records; `extra_info` False leaves stack and construct out."""

    task: str
    level: str
    framework: str
    dump_data_dir: Optional[str] = None
    extra_info: bool = True

    def members(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "level": self.level,
            "framework": self.framework,
            "dump_data_dir": self.dump_data_dir,
        }


def head_line(head: Head) -> str:
    members = {"format": FORMAT, **head.members(), "extra_info": head.extra_info}
    return f'["head", {json.dumps(members)}]\n'


def begin_line(call: int, name: str, parent: Optional[str], stack: Optional[int], text: str) -> str:
    up = "null" if parent is None else quote(parent)
    return f'["begin", {call}, {quote(name)}, {up}, {"null" if stack is None else stack}, {{{text}}}]\n'


def end_line(call: int, text: str) -> str:
    return f'["end", {call}, {{{text}}}]\n'


def drop_line(call: int) -> str:
    return f'["drop", {call}]\n'


def record_line(name: str, parent: Optional[str], stack: Optional[int], text: str) -> str:
    up = "null" if parent is None else quote(parent)
    return f'["record", {quote(name)}, {up}, {"null" if stack is None else stack}, {{{text}}}]\n'


def stack_line(number: int, frames: Union[Sequence[str], Callable[[], Sequence[str]]]) -> str:
    listed = frames() if callable(frames) else frames
    return f'["stack", {number}, {json.dumps(list(listed))}]\n'


def debug_line(name: str, text: str) -> str:
    return f'["debug", {quote(name)}, {text}]\n'


@dataclass(frozen=True)
class Entry:
    """One record: where its members stand in the journal (each span includes the braces)."""

    parent: str
    stack: Optional[int]
    bodies: tuple[Span, ...]
    unfinished: bool = False


@dataclass
class Scan:
    """What a journal holds, as positions in it; names are JSON strings, quoted as they stand there."""

    data: Buffer
    head: dict[str, Any] = field(default_factory=dict)
    records: dict[str, Entry] = field(default_factory=dict)
    stacks: dict[int, Span] = field(default_factory=dict)
    debugs: dict[str, Span] = field(default_factory=dict)
    duplicates: list[str] = field(default_factory=list)
    damaged: int = 0
    torn: bool = False

    def body(self, entry: Entry) -> bytes:
        """The record as one JSON object: the begin's members, then the end's."""
        parts = [self.data[start + 1 : end - 1].strip() for start, end in entry.bodies]
        if entry.unfinished:
            parts.append(b'"unfinished": true')
        return b"{" + b", ".join(part for part in parts if part) + b"}"

    def text(self, span: Span) -> bytes:
        return self.data[span[0] : span[1]]

    def troubles(self) -> list[str]:
        """What a person should be told about this journal, one sentence each."""
        told = []
        if self.damaged:
            told.append(f"{self.damaged} damaged lines of {layout.JOURNAL} were left out")
        if self.duplicates:
            told.append(
                f"{len(self.duplicates)} names were recorded more than once and the last record was kept, "
                f"first {json.loads(self.duplicates[0])}"
            )
        return told


_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_KIND = re.compile(rb'\["([a-z]+)",[ ]?')
_CALL = re.compile(rb"(-?\d+)(?:,[ ]?)?")
_NAMED = re.compile(rb"(" + _STRING + rb"),[ ]?(?:(" + _STRING + rb"|null),[ ]?(-?\d+|null),[ ]?(?=\{))?", re.DOTALL)


def scan(data: Buffer, check: bool = False) -> Scan:
    """Reads a journal, or as much of it as there is.

    A line that was cut short by a crash can only be the last; it is noted and left out. Any other
    line that cannot be understood is counted as damaged. `check` also parses every body, for a
    journal that may have suffered more than a crash.
    """
    found = Scan(data)
    begun: dict[int, tuple[str, Entry]] = {}
    for start, end in _lines(data, found):
        if not _take(found, begun, start, end, check):
            found.damaged += 1
    for name, entry in begun.values():
        _keep(found, name, Entry(entry.parent, entry.stack, entry.bodies, unfinished=True))
    return found


def scan_file(path: Path, check: bool = False) -> Scan:
    """The same for a file, mapped where it is large; a journal that is still written to may be scanned."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        if size <= READ_UP_TO:
            return scan(file.read(size), check)
        return scan(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), check)


def _lines(data: Buffer, found: Scan) -> Iterator[Span]:
    position, size = 0, len(data)
    while position < size:
        end = data.find(b"\n", position)
        if end < 0:
            found.torn = True
            return
        if end > position:
            yield position, end
        position = end + 1


def _take(found: Scan, begun: dict[int, tuple[str, Entry]], start: int, end: int, check: bool) -> bool:
    data = found.data
    kind = _KIND.match(data, start, end)
    if kind is None or data[end - 1 : end] != b"]":
        return False
    word, position, stop = kind[1], kind.end(), end - 1
    if word in (b"begin", b"end", b"drop", b"stack"):
        number = _CALL.match(data, position, stop)
        if number is None:
            return False
        call, position = int(number[1]), number.end()
        if word == b"drop":
            return begun.pop(call, None) is not None
        if word == b"stack":
            if not _is_sound(data, position, stop, b"[]", check):
                return False
            found.stacks[call] = (position, stop)
            return True
        if word == b"end":
            opened = begun.pop(call, None) if _is_sound(data, position, stop, b"{}", check) else None
            if opened is None:
                return False
            name, entry = opened
            _keep(found, name, Entry(entry.parent, entry.stack, (*entry.bodies, (position, stop))))
            return True
        named = _NAMED.match(data, position, stop)
        if named is None or named[2] is None or not _is_sound(data, named.end(), stop, b"{}", check):
            return False
        begun[call] = _entry(named, stop)
        return True
    if word == b"head":
        return _take_head(found, data[position:stop])
    named = _NAMED.match(data, position, stop)
    if named is None:
        return False
    if word == b"record":
        if named[2] is None or not _is_sound(data, named.end(), stop, b"{}", check):
            return False
        _keep(found, *_entry(named, stop))
        return True
    if word == b"debug" and _is_sound(data, named.end(), stop, b"", check):
        found.debugs[named[1].decode("utf-8", "replace")] = (named.end(), stop)
        return True
    return False


def _entry(named: re.Match[bytes], stop: int) -> tuple[str, Entry]:
    stack = None if named[3] == b"null" else int(named[3])
    parent = named[2].decode("utf-8", "replace")
    return named[1].decode("utf-8", "replace"), Entry(parent, stack, ((named.end(), stop),))


def _keep(found: Scan, name: str, entry: Entry) -> None:
    if found.records.pop(name, None) is not None:
        found.duplicates.append(name)
    found.records[name] = entry


def _take_head(found: Scan, text: bytes) -> bool:
    try:
        members = json.loads(text)
    except ValueError:
        return False
    if not isinstance(members, dict):
        return False
    found.head = members
    return True


def _is_sound(data: Buffer, start: int, stop: int, ends: bytes, check: bool) -> bool:
    if stop <= start or (ends and (data[start : start + 1] + data[stop - 1 : stop]) != ends):
        return False
    if check:
        try:
            json.loads(data[start:stop])
        except ValueError:
            return False
    return True
