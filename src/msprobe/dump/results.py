"""dump.json, stack.json, construct.json and debug.json out of a journal, by copying its text.

Used by the writer when a step ends and by `msprobe recover` after a crash: one way to make them, so
both give the same bytes. Each file appears whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Union

from msprobe.dump import layout
from msprobe.dump.journal import Scan

HEAD_KEYS = ("task", "level", "framework", "dump_data_dir")


def write_results(directory: Path, found: Scan) -> list[Path]:
    """Makes the json files of one rank directory; dump.json (or debug.json) last: it says "finished"."""
    made: list[Path] = []

    def write(name: str, *parts: Union[bytes, bytearray]) -> None:
        layout.write_file(directory / name, *parts)
        made.append(directory / name)

    level = found.head.get("level")
    if level != "debug":
        if found.head.get("extra_info", True):
            write(layout.STACK, _object(_stacks(found)))
            write(layout.CONSTRUCT, _object([] if level == "L1" else _construct(found)))
        if found.debugs:
            write(layout.DEBUG, _with_head(found, _debugs(found)))
        write(layout.DUMP, _with_head(found, _records(found)))
    else:
        write(layout.DEBUG, _with_head(found, _debugs(found)))
    return made


def _records(found: Scan) -> Iterable[bytes]:
    return (name.encode() + b": " + found.body(entry) for name, entry in found.records.items())


def _debugs(found: Scan) -> Iterable[bytes]:
    return (name.encode() + b": " + found.text(span) for name, span in found.debugs.items())


def _construct(found: Scan) -> Iterable[bytes]:
    return (f"{name}: {entry.parent}".encode() for name, entry in found.records.items())


def _stacks(found: Scan) -> Iterable[bytes]:
    """Names grouped by stack, in the order in which each stack was first used."""
    names: dict[int, list[str]] = {}
    for name, entry in found.records.items():
        if entry.stack is not None:
            names.setdefault(entry.stack, []).append(name)
    for position, (number, listed) in enumerate(names.items()):
        frames = found.text(found.stacks[number]) if number in found.stacks else b"[]"
        yield b'"%d": [[%s], %s]' % (position, ", ".join(listed).encode(), frames)


def _object(members: Iterable[bytes]) -> bytearray:
    text = bytearray(b"{")
    for position, member in enumerate(members):
        text += b",\n " if position else b"\n "
        text += member
    text += b"\n}" if len(text) > 1 else b"}"
    return text


def _with_head(found: Scan, members: Iterable[bytes]) -> bytearray:
    text = bytearray(b"{\n")
    for key in HEAD_KEYS:
        text += f" {json.dumps(key)}: {json.dumps(found.head.get(key))},\n".encode()
    text += b' "data": {'
    empty = True
    for member in members:
        text += b"\n  " if empty else b",\n  "
        text += member
        empty = False
    text += b"}\n}" if empty else b"\n }\n}"
    return text
