"""Where values come from that no recorded call produced: the member `made` of flow.json.

A link is a call that is not recorded (a view, an index, a creation): its name, plain arguments and line. A value is
what a link returned, with its shape and the tensors that it took. A slot of a recorded call names the value that it
received. The tensors that modules of the model hold are known by their memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

from msprobe.dump.errors import DumpError
from msprobe.dump.stack_frames import Frame
from msprobe.dump.untrusted.json_values import as_list, as_object, as_text, as_whole

MOST = 50_000
"""Values and tensors of a step that are written; what comes later is left out."""
MOST_LINKS = 8
"""Calls between a value and the tensor that a recorded call produced."""
LONGEST = 200
_LARGEST = 1 << 53


class Link(NamedTuple):
    """A call that is not recorded. `args` are its plain arguments as text."""

    api: str
    args: str
    frame: Frame


class Source(NamedTuple):
    """A tensor that a link took: the value of an earlier link (`part`: which of several), or the number of a recorded
    value, or only that of its memory."""

    value: Optional[int] = None
    part: int = -1
    id: Optional[int] = None
    memory: Optional[int] = None


class MadeValue(NamedTuple):
    """What a link returned. The first of `sources` is the tensor that it is about."""

    link: Link
    shape: tuple[int, ...]
    sources: tuple[Optional[Source], ...]


class Held(NamedTuple):
    """A tensor that a module of the model holds. `kind` is parameter, buffer or attribute."""

    name: str
    kind: str
    made: Optional[Frame] = None


@dataclass
class MadeValues:
    """`slots` are `Functional.linear.0.forward.input.0`. `complete`: nothing was left out."""

    slots: dict[str, Source] = field(default_factory=dict)
    values: dict[int, MadeValue] = field(default_factory=dict)
    held: dict[int, Held] = field(default_factory=dict)
    complete: bool = True


def read_made_values(entries: Any, where: str) -> MadeValues:
    """Raises DumpError if the list is damaged."""
    found = MadeValues()
    links: dict[int, Link] = {}
    for entry in as_list(entries, f"made in {where}"):
        one = as_object(entry, f"an entry of made in {where}")
        if "slot" in one:
            found.slots[as_text(one["slot"], where)] = _source(one, found.values, where)
        elif "value" in one:
            number = _number(one["value"], where)
            link = links.get(_number(one.get("link"), where))
            if link is None:
                raise DumpError(f"a value in {where} has a call that is not there.")
            shape = tuple(_number(size, where) for size in as_list(one.get("shape"), f"a shape in {where}"))
            taken = as_list(one.get("of"), f"the tensors of a value in {where}")
            found.values[number] = MadeValue(link, shape, tuple(_sources(taken, found.values, where)))
        elif "link" in one:
            links[_number(one["link"], where)] = _link(one, where)
        elif "memory" in one:
            frame = _link(one, where).frame if "line" in one else None
            held = Held(as_text(one.get("name"), where)[:LONGEST], as_text(one.get("kind"), where), frame)
            found.held.setdefault(_number(one["memory"], where), held)
        elif one.get("cut") is True:
            found.complete = False
        else:
            raise DumpError(f"an entry of made in {where} is of no known kind.")
    return found


def _link(one: dict[str, Any], where: str) -> Link:
    line = as_whole(one.get("line"), f"a line in {where}", 0, _LARGEST)
    texts = (as_text(one.get(name, ""), where) for name in ("file", "function", "text", "api", "args"))
    file, function, text, api, args = texts
    return Link(api[:LONGEST], args[:LONGEST], Frame(file, line, function[:LONGEST], text[: 2 * LONGEST]))


def _sources(taken: list[Any], values: dict[int, MadeValue], where: str) -> Iterable[Optional[Source]]:
    for one in taken:
        yield None if one is None else _source(as_object(one, f"a tensor in {where}"), values, where)


def _source(one: dict[str, Any], values: dict[int, MadeValue], where: str) -> Source:
    """A value must be there before it is named, so that no value can be made of itself."""
    value = None if one.get("value") is None else _number(one["value"], where)
    if value is not None and value not in values:
        raise DumpError(f"{where} names the value {value}, which is not there.")
    part = -1 if one.get("part") is None else _number(one["part"], where)
    id = None if one.get("id") is None else _number(one["id"], where)
    memory = None if one.get("memory") is None else _number(one["memory"], where)
    return Source(value, part, id, memory)


def _number(value: Any, where: str) -> int:
    return as_whole(value, f"a number in {where}", 0, _LARGEST)
