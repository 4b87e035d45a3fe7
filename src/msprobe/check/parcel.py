"""One call on its way: its records and the tensor files they name, packed by the sender, unpacked into a spool.

A parcel is the length of a JSON text, the text, and the files one after the other. The spool of a parcel is a rank
directory of its own, so that it is examined like any other dump.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, Optional

from msprobe.check import frames
from msprobe.check.frames import Refused
from msprobe.check.framework import FRAMEWORKS
from msprobe.check.names import parse
from msprobe.dump import layout
from msprobe.dump.reader import RankDump

LENGTH = struct.Struct("<I")
MOST_FILES = 10_000
Task = dict[str, Any]


def names_of(value: Any) -> Iterator[str]:
    """Every data_name in a record."""
    if isinstance(value, list):
        for one in value:
            yield from names_of(one)
    elif isinstance(value, dict):
        name = value.get("data_name")
        if isinstance(name, str):
            yield name
        else:
            for one in value.values():
                yield from names_of(one)


def pack(task: Task, rank: RankDump) -> tuple[bytes, list[Path]]:
    """The first part of the body, and the files that follow."""
    names = list(dict.fromkeys(names_of([task["forward"], task["backward"]])))
    paths = [rank.tensor_path(name) for name in names]
    files = [[name, path.stat().st_size] for name, path in zip(names, paths)]
    text = json.dumps({**task, "files": files}).encode()
    return LENGTH.pack(len(text)) + text, paths


def unpack(length: int, take: Callable[[int], bytes], spool: Path) -> Task:
    """Reads a parcel of `length` bytes into a new directory. Raises Refused; the directory may be left behind."""
    (size,) = LENGTH.unpack(_all(take, LENGTH.size))
    if size > min(length - LENGTH.size, frames.LARGEST_JSON):
        raise Refused("a parcel whose text is longer than the parcel")
    try:
        task = json.loads(_all(take, size))
    except (ValueError, RecursionError):
        raise Refused("a parcel whose text is no JSON") from None
    files = _checked(task, length - LENGTH.size - size)
    data = spool / layout.TENSORS
    layout.make_directory(data)
    for name, wanted in files:
        fd = layout.open_file(str(data / name), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            while wanted:
                part = take(wanted)
                layout.write_all(fd, part)
                wanted -= len(part)
        finally:
            os.close(fd)
    keys = ("framework", "call", "title", "step", "forward", "backward")
    return {key: task[key] for key in keys} | {"rank": str(spool)}


def _all(take: Callable[[int], bytes], size: int) -> bytes:
    parts = []
    while size:
        parts.append(take(size))
        size -= len(parts[-1])
    return b"".join(parts)


def _checked(task: Any, left: int) -> list[tuple[str, int]]:
    """The files of a parcel, after everything that its text says was found to be of the right kind."""
    if not isinstance(task, dict):
        raise Refused("a parcel that is no object")
    if task.get("framework") not in FRAMEWORKS:
        raise Refused("a parcel of no framework that is checked")
    name = parse(f"{task.get('call')}.forward")
    if name is None or name.title != task.get("title"):
        raise Refused("a parcel without a proper name")
    if type(task.get("step")) is not int or not 0 <= task["step"] < 1 << 60:
        raise Refused("a parcel without a step")
    if not isinstance(task.get("forward"), dict) or not isinstance(task.get("backward"), (dict, type(None))):
        raise Refused("a parcel without records")
    files = task.get("files")
    if not isinstance(files, list) or len(files) > MOST_FILES:
        raise Refused("a parcel without a list of files")
    found: dict[str, int] = {}
    for entry in files:
        if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str) and type(entry[1]) is int):
            raise Refused("a parcel with an odd list of files")
        if not layout.is_plain_file_name(entry[0]) or len(entry[0].encode()) > 255 or entry[1] < 0:
            raise Refused("a parcel with a file name that is none")
        found[entry[0]] = entry[1]
    if len(found) != len(files) or sum(found.values()) != left:
        raise Refused("a parcel whose files are not what it says")
    return list(found.items())


def tasks_of(rank: RankDump, step: Optional[int]) -> Iterator[Task]:
    """What a finished rank directory has to send, in order."""
    from msprobe.check.plan import make_plan

    for task in make_plan(rank.records).tasks:
        yield {
            "framework": rank.head.get("framework"),
            "call": task.call,
            "title": task.title,
            "step": step or 0,
            "forward": task.forward,
            "backward": task.backward,
        }
