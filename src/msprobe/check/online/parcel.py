"""One call on its way: its records and the tensor files they name, packed by the sender, unpacked into a spool.

A parcel is a JSON text and the contents of files. The output of one call is the input of the next, so that a content
travels once: the text gives each file the number of its content, the contents that are new follow in the order of their
numbers, and the text says after which of them the checker need not keep one any longer. The spool of a parcel is a rank
directory of its own, so that it is examined like any other dump.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

from msprobe.check.core.framework import FRAMEWORKS
from msprobe.check.core.plan import make_plan
from msprobe.check.online import frames
from msprobe.check.online.frames import Refused
from msprobe.dump import layout
from msprobe.dump.errors import DumpError
from msprobe.dump.names import parse_api_name
from msprobe.dump.reader import RankDump

LENGTH = struct.Struct("<I")
MOST_FILES = 10_000
MOST_KEPT = 100_000
Task = dict[str, Any]
_ENCODER = json.JSONEncoder(check_circular=False, separators=(",", ":"))
_KEYS = ("framework", "call", "title", "step", "forward", "backward")


class File(NamedTuple):
    """A file of a parcel: its name, its size in bytes, the number of its content."""

    name: str
    size: int
    content: int


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


class Shipment:
    """Calls of one rank directory on their way. `number` is that of the first content that the checker has not seen."""

    def __init__(self, rank: RankDump, tasks: Sequence[Task], number: int = 0) -> None:
        self.number = number
        self._directory = rank.path / layout.TENSORS
        self._files = [self._found(rank, task) for task in tasks]
        self._left = Counter(where for files in self._files for _, _, where in files)
        self._numbers: dict[tuple[int, int], int] = {}

    def __iter__(self) -> Iterator[tuple[list[File], list[int], list[File]]]:
        """For each call its files, the contents that end with it, and those of its files whose contents are new."""
        for found in self._files:
            files: list[File] = []
            last: list[int] = []
            new: list[File] = []
            for name, size, where in found:
                number = self._numbers.setdefault(where, self.number)
                files.append(File(name, size, number))
                if number == self.number:
                    self.number += 1
                    new.append(files[-1])
                self._left[where] -= 1
                if not self._left[where]:
                    last.append(number)
            yield files, last, new

    def open(self, name: str) -> int:
        try:
            return layout.open_file(f"{self._directory}/{name}", os.O_RDONLY)
        except OSError as error:  # not the connection's fault: sending it again would not help
            raise DumpError(f"{self._directory}/{name} cannot be read: {error.strerror or error}") from None

    def _found(self, rank: RankDump, task: Task) -> list[tuple[str, int, tuple[int, int]]]:
        """Names, sizes and where the content lies. A file that a full disk left out is not among them."""
        found = []
        directory = f"{self._directory}/"
        for name in dict.fromkeys(names_of([task["forward"], task["backward"]])):
            if not layout.is_plain_file_name(name):
                raise DumpError(f"{rank.path} names {name!r} as a tensor file, which is not a plain file name.")
            with contextlib.suppress(FileNotFoundError):
                stat = os.lstat(directory + name)
                found.append((name, stat.st_size, (stat.st_dev, stat.st_ino)))
        return found


def text_of(task: Task, files: Sequence[File], last: Sequence[int]) -> bytes:
    return _ENCODER.encode({**task, "files": files, "last": last}).encode()


class KeptFiles:
    """The contents that a checker holds for one connection, because later parcels name them again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._paths: dict[int, tuple[Path, int]] = {}
        self._new: dict[int, tuple[Path, int]] = {}
        self.number = 0

    def is_new(self, file: File) -> bool:
        return file.content == self.number + len(self._new)

    def coming(self, files: Sequence[File]) -> int:
        """How many bytes of contents these files bring."""
        number, size = self.number, 0
        for file in files:
            if file.content == number:
                number, size = number + 1, size + file.size
        return size

    def add(self, path: Path, size: int) -> None:
        """A content that came with this parcel; it counts when the complete parcel was accepted."""
        self._new[self.number + len(self._new)] = (path, size)

    def link(self, file: File, path: Path) -> None:
        source, size = self._new.get(file.content) or self._paths.get(file.content) or (None, 0)
        if source is None or size != file.size:
            raise Refused("a parcel refers to a content that was not sent")
        link(str(source), str(path))

    def settle(self, last: Sequence[int]) -> None:
        """The parcel was right: what later ones name stays, what ends with it goes."""
        self.number += len(self._new)
        ended = set(last)
        for number, (path, size) in self._new.items():
            if number not in ended:
                if len(self._paths) >= MOST_KEPT:
                    raise Refused(f"more than {MOST_KEPT} contents to keep")
                layout.make_directory(self._directory)
                link(str(path), str(self._directory / str(number)))
                self._paths[number] = (self._directory / str(number), size)
        self._new.clear()
        for number in ended & self._paths.keys():
            self._paths.pop(number)[0].unlink(missing_ok=True)

    def close(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


def link(source: str, path: str) -> None:
    """A second name for a file; a copy where it cannot have one: another file system, or one without hard links."""
    try:
        os.link(source, path, follow_symlinks=False)
    except OSError:
        with Path(source).open("rb") as file:
            write(Path(path), file.read, os.fstat(file.fileno()).st_size)


def write(path: Path, take: Callable[[int], Any], size: int) -> None:
    """A new file with the next `size` bytes."""
    fd = layout.open_file(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        while size:
            part = take(min(size, frames.CHUNK))
            if not part:
                raise OSError("a tensor file became shorter while it was read")
            layout.write_all(fd, part)
            size -= len(part)
    finally:
        os.close(fd)


def unpack(length: int, take: Callable[[int], bytearray], spool: Path, kept: KeptFiles) -> tuple[Task, list[int]]:
    """Reads a parcel of `length` bytes into a new directory: the call, and the contents that end with it.

    Raises Refused; the directory may be left behind.
    """
    (size,) = LENGTH.unpack(_all(take, LENGTH.size))
    if size > min(length - LENGTH.size, frames.LARGEST_JSON):
        raise Refused("the text of a parcel is longer than the parcel")
    task, files, last = read_text(_all(take, size))
    if kept.coming(files) != length - LENGTH.size - size:
        raise Refused("the files of a parcel do not match its list")
    data = spool / layout.TENSORS
    layout.make_directory(data)
    for file in files:
        path = data / file.name
        if not kept.is_new(file):
            kept.link(file, path)
            continue
        write(path, take, file.size)
        kept.add(path, file.size)
    return {**task, "rank": str(spool)}, last


def _all(take: Callable[[int], bytearray], size: int) -> bytes:
    parts = []
    while size:
        parts.append(take(size))
        size -= len(parts[-1])
    return b"".join(parts)


def read_text(text: bytes) -> tuple[Task, list[File], list[int]]:
    """The call, its files and what ends with it, after all that the text says was found to be of the right kind."""
    task = frames.read_object(text)
    if task.get("framework") not in FRAMEWORKS:
        raise Refused("a parcel of an unknown framework")
    name = parse_api_name(f"{task.get('call')}.forward")
    if name is None or name.title != task.get("title"):
        raise Refused("a parcel without a valid name")
    if type(task.get("step")) is not int or not 0 <= task["step"] < 1 << 60:
        raise Refused("a parcel without a step")
    if not isinstance(task.get("forward"), dict) or not isinstance(task.get("backward", ""), (dict, type(None))):
        raise Refused("a parcel without records")
    files, last = task.get("files"), task.get("last")
    if not isinstance(files, list) or len(files) > MOST_FILES:
        raise Refused("a parcel without a valid list of files")
    if not isinstance(last, list) or len(last) > MOST_FILES or not all(type(one) is int for one in last):
        raise Refused("a parcel without a valid list of contents to drop")
    found = [_file(entry) for entry in files]
    if len({file.name for file in found}) != len(found):
        raise Refused("the files of a parcel do not match its list")
    return {key: task[key] for key in _KEYS}, found, last


def _file(entry: Any) -> File:
    if not isinstance(entry, list) or [type(one) for one in entry] != [str, int, int]:
        raise Refused("a parcel without a valid list of files")
    file = File(*entry)
    if not layout.is_plain_file_name(file.name) or not 0 < len(file.name.encode("utf-8", "ignore")) <= 255:
        raise Refused("a parcel with a file name that is not valid")
    if any("\ud800" <= letter <= "\udfff" for letter in file.name):
        raise Refused("a parcel with a file name that is not valid")
    if file.size < 0 or file.content < 0:
        raise Refused("a parcel with a file without a valid size")
    return file


def tasks_of(
    rank: RankDump, step: Optional[int], white_list: Sequence[str] = (), black_list: Sequence[str] = ()
) -> list[Task]:
    """What a finished rank directory has to send, in order."""
    return [
        {
            "framework": rank.head.get("framework"),
            "call": task.call,
            "title": task.title,
            "step": step or 0,
            "forward": task.forward,
            "backward": task.backward,
        }
        for task in make_plan(rank.records, white_list, black_list).tasks
    ]
