"""The journal: one JSON array per line, appended only. After a crash it is still a readable dump.

docs/architecture.md lists the lines. The writer takes text that is already JSON and never encodes it again. The reader
finds the body of a record from the regular start of its line and copies it: making dump.json parses no record.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quote
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

from msprobe.dump import layout, native
from msprobe.dump.phases import Phase, read_line
from msprobe.dump.untrusted.json_files import parse_json
from msprobe.dump.untrusted.regular_files import open_regular
from msprobe.messages import Message
from msprobe.system.memory import largest_text

FORMAT = 1
FLOW_FORMAT = 1
READ_UP_TO = 64 << 20
HEAD_UP_TO = 64 << 10
Buffer = Union[bytes, mmap.mmap]
Span = tuple[int, int]


@dataclass(frozen=True)
class Head:
    """The keys of dump.json before its records. With `extra_info` False there is no stack and construct. `flow` is 1 if
    the tensors have the numbers of their values and memory."""

    task: str
    level: str
    framework: str
    dump_data_dir: Optional[str] = None
    extra_info: bool = True
    flow: Optional[int] = None

    def members(self) -> dict[str, Any]:
        flow = {} if self.flow is None else {"flow": self.flow}
        return {
            "task": self.task,
            "level": self.level,
            "framework": self.framework,
            "dump_data_dir": self.dump_data_dir,
            **flow,
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


if native.journal is not None:
    begin_line, end_line, record_line = (
        native.journal.begin_line,
        native.journal.end_line,
        native.journal.record_line,
    )


def stack_line(number: int, frames: Sequence[str]) -> str:
    return f'["stack", {number}, {_listed(tuple(frames))}]\n'


@lru_cache(maxsize=4096)
def _listed(frames: tuple[str, ...]) -> str:
    """Cached: the next step has the same stacks."""
    return json.dumps(frames)


def source_line(file: str, text: str) -> str:
    return f'["source", {quote(file)}, {{{text}}}]\n'


def place_line(name: str, parent: Optional[str]) -> str:
    return f'["place", {quote(name)}, {"null" if parent is None else quote(parent)}]\n'


def debug_line(name: str, text: str) -> str:
    return f'["debug", {quote(name)}, {text}]\n'


def phase_line(text: str) -> str:
    return f'["phase", {{{text}}}]\n'


def made_line(text: str, source: str = "") -> str:
    more = f', "text": {quote(source)}' if source else ""
    return f'["made", {{{text}{more}}}]\n'


def training_line(text: str) -> str:
    return f'["training", {{{text}}}]\n'


class Entry(NamedTuple):
    """One record: the positions of its members in the journal (each span includes the braces)."""

    parent: bytes
    stack: Optional[int]
    bodies: tuple[Span, ...]
    unfinished: bool = False
    phase: Optional[Phase] = None


@dataclass
class Scan:
    """The content of a journal, as positions in it. Names and parents are JSON text, as in the file."""

    data: Buffer
    head: dict[str, Any] = field(default_factory=dict)
    records: dict[bytes, Entry] = field(default_factory=dict)
    stacks: dict[int, Span] = field(default_factory=dict)
    debugs: dict[bytes, Span] = field(default_factory=dict)
    places: dict[bytes, bytes] = field(default_factory=dict)
    training: list[tuple[bytes, Span]] = field(default_factory=list)
    """Each event with the record that ended last before it, as JSON."""
    made: list[Span] = field(default_factory=list)
    """Where values come from that no recorded call produced: the objects of flow.json."""
    sources: dict[bytes, list[Span]] = field(default_factory=dict)
    """Parts of a file's lines, each an object."""
    phase: Optional[Phase] = None
    """That of the calls that begin now."""
    duplicates: list[bytes] = field(default_factory=list)
    damaged: int = 0
    torn: bool = False

    def body(self, entry: Entry) -> bytes:
        """The record as one JSON object: the begin's members, then the end's."""
        data = self.data
        parts = [part for start, end in entry.bodies if (part := data[start + 1 : end - 1]) and not part.isspace()]
        if entry.unfinished:
            parts.append(b'"unfinished": true')
        return b"{%b}" % b", ".join(parts)

    def text(self, span: Span) -> bytes:
        return self.data[span[0] : span[1]]

    def troubles(self) -> list[str]:
        """Problems of this journal that the user should know, one sentence each."""
        problems: list[str] = []
        if self.damaged:
            problems.append(Message("dump.damaged_lines", number=self.damaged, file=layout.JOURNAL))
        if self.duplicates:
            first = str(json.loads(self.duplicates[0]))
            problems.append(Message("dump.duplicates", number=len(self.duplicates), first=first))
        return problems


_NUMBER = rb"(-?\d{1,18}),[ ]?"
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_PLACE = rb"(" + _STRING + rb"),[ ]?(" + _STRING + rb"|null),[ ]?(-?\d{1,18}|null),[ ]?(?=\{)"
_LINE = re.compile(
    rb'\["(?:'
    rb'begin",[ ]?' + _NUMBER + _PLACE + rb'|end",[ ]?' + _NUMBER + rb'(?=\{)|record",[ ]?' + _PLACE + rb"|"
    rb'drop",[ ]?(-?\d{1,18})(?=\])|stack",[ ]?' + _NUMBER + rb'(?=\[)|debug",[ ]?(' + _STRING + rb"),[ ]?|"
    rb'(head)",[ ]?(?=\{)|place",[ ]?(' + _STRING + rb"),[ ]?(" + _STRING + rb"|null)(?=\])|"
    rb'(training)",[ ]?(?=\{)|source",[ ]?(' + _STRING + rb'),[ ]?(?=\{)|(phase)",[ ]?(?=\{)|'
    rb'(made)",[ ]?(?=\{))',
    re.DOTALL,
)
# The last group of each.
_BEGIN, _END, _RECORD, _DROP, _STACK, _DEBUG = 4, 5, 8, 9, 10, 11
_HEAD, _PLACED, _TRAINING, _SOURCE, _PHASE, _MADE = 12, 14, 15, 16, 17, 18
_MEMBERS = {_BEGIN: 6, _END: 3, _RECORD: 5, _DROP: 2, _STACK: 3, _DEBUG: 3, _HEAD: 2, _PLACED: 3, _TRAINING: 2,
            _SOURCE: 3, _PHASE: 2, _MADE: 2}  # fmt: skip
_EVERY_BACKWARD = b'.parameters_grad"'  # every backward of a step writes these again; the last one counts
_BRACKET, _BRACE = ord("]"), ord("}")

Begun = tuple[bytes, bytes, bytes, Span, Optional[Phase]]


def scan(data: Buffer, check: bool = False) -> Scan:
    """Reads a journal, also an incomplete one.

    Only the last line can be cut off by a crash; it is noted and left out. Any other line that cannot be parsed counts
    as damaged. `check` also parses every body: for a journal with more damage than a crash causes. What follows a line
    that is too long for the memory is not read.
    """
    found = Scan(data)
    begun: dict[int, Begun] = {}
    position, match, longest = 0, _LINE.match, largest_text()
    take_regular = None if native.journal is None or check else native.journal.scan
    while True:
        if take_regular is not None:
            position = take_regular(data, position, longest, found.records, begun, found.phase, Entry)
        start, end = position, data.find(b"\n", position, position + longest)
        if end < 0:
            break
        position = end + 1
        line = match(data, start, end)
        whole = line is not None and data[end - 1] == _BRACKET and (not check or _is_sound(line))
        if line is None or not whole or not _take(found, begun, line, (line.end(), end - 1)):
            found.damaged += 1
    too_long = position + longest < len(data)
    found.torn = position < len(data) and not too_long
    found.damaged += too_long
    for name, parent, stack, body, phase in begun.values():
        _keep(found, name, Entry(parent, _number(stack), (body,), True, phase))
    return found


def has_head(path: Path) -> bool:
    """Whether a journal has its first line. Without it nothing can be read."""
    with open_regular(path, path.parent) as file:
        return bool(scan(file.readline(HEAD_UP_TO)).head)


def scan_file(path: Path, check: bool = False, ours: bool = False) -> Scan:
    """Reads a journal file. A large file is mapped. The file may still be written. `ours`: this process wrote the
    file."""
    with open_regular(path, None if ours else path.parent) as file:
        size = file.seek(0, 2)
        file.seek(0)
        if size <= READ_UP_TO:
            return scan(file.read(size), check)
        return scan(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), check)


def _take(found: Scan, begun: dict[int, Begun], line: re.Match[bytes], body: Span) -> bool:
    kind = line.lastindex or 0
    if kind <= _RECORD:
        if found.data[body[1] - 1] != _BRACE:
            return False
        if kind == _BEGIN:
            begun[int(line[1])] = (line[2], line[3], line[4], body, found.phase)
            return True
        if kind == _RECORD:
            _keep(found, line[6], Entry(line[7], _number(line[8]), (body,), False, found.phase))
            return True
        opened = begun.pop(int(line[_END]), None)
        if opened is None:
            return False
        name, parent, stack, first, phase = opened
        _keep(found, name, Entry(parent, _number(stack), (first, body), False, phase))
    elif kind == _DROP:
        return begun.pop(int(line[_DROP]), None) is not None
    elif kind == _STACK:
        found.stacks[int(line[_STACK])] = body
    elif kind == _DEBUG:
        found.debugs[line[_DEBUG]] = body
    elif kind == _PLACED:
        found.places[line[13]] = line[_PLACED]
    elif kind == _TRAINING:
        found.training.append((_last_call(found), body))
    elif kind == _MADE:
        found.made.append(body)
    elif kind == _SOURCE:
        found.sources.setdefault(line[_SOURCE], []).append(body)
    elif kind == _PHASE:
        return _take_phase(found, begun, read_line(found.text(body)))
    elif _is_sound(line):
        found.head = json.loads(found.text(body))
    else:
        return False
    return True


def _take_phase(found: Scan, begun: dict[int, Begun], line: Optional[tuple[Phase, Optional[int]]]) -> bool:
    """A phase begins: that of the calls after this line, and of the call that it names."""
    if line is None:
        return False
    found.phase, call = line
    if call in begun:
        begun[call] = (*begun[call][:4], found.phase)
    return True


def _number(text: bytes) -> Optional[int]:
    return None if text == b"null" else int(text)


def _keep(found: Scan, name: bytes, entry: Entry) -> None:
    if name in found.records:
        del found.records[name]
        if not name.endswith(_EVERY_BACKWARD):
            found.duplicates.append(name)
    found.records[name] = entry


def _last_call(found: Scan) -> bytes:
    """The record that ended last, as JSON."""
    return next((name for name in reversed(found.records) if not name.endswith(_EVERY_BACKWARD)), b"null")


def _is_sound(line: re.Match[bytes]) -> bool:
    """Whether a line is JSON with the right number of members for its kind: then its body is one value, and its
    names are valid."""
    try:
        members = parse_json(line.string[line.start() : line.endpos])
    except ValueError:
        return False
    return len(members) == _MEMBERS[line.lastindex or 0]
