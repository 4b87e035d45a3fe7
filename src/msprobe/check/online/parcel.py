"""A parcel: one call, with its records and tensor files, packed by the sender and unpacked by the checker.

A parcel is a JSON text and the contents of files. The output of one call is often the input of the next, so each
content is sent once. The text gives each file the number of its content; new contents follow in the order of their
numbers. The text also lists the contents that the checker can drop after this call. The checker unpacks a parcel into a
rank directory of its own, and examines it like any other dump.
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
    """The parcels for the calls of one rank directory. `number` is the number of the first content that was not sent
    yet."""

    def __init__(self, rank: RankDump, tasks: Sequence[Task], number: int = 0) -> None:
        self.number = number
        self._directory = rank.path / layout.TENSORS
        self._files = [self._find_files(rank, task) for task in tasks]
        self._left = Counter(where for files in self._files for _, _, where in files)
        self._numbers: dict[tuple[int, int], int] = {}

    def __iter__(self) -> Iterator[tuple[list[File], list[int], list[File]]]:
        """For each call: its files, the contents that can be dropped after it, and the files with new contents."""
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
        except OSError as error:  # not an error of the connection: sending again would not help
            raise DumpError(f"{self._directory}/{name} cannot be read: {error.strerror or error}") from None

    def _find_files(self, rank: RankDump, task: Task) -> list[tuple[str, int, tuple[int, int]]]:
        """Name, size and inode of each file. A file that was not written because the disk was full is left out."""
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
    """The contents that a checker keeps for one connection, because later parcels refer to them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._paths: dict[int, tuple[Path, int]] = {}
        self._new: dict[int, tuple[Path, int]] = {}
        self.number = 0

    def is_new(self, file: File) -> bool:
        return file.content == self.number + len(self._new)

    def count_new_bytes(self, files: Sequence[File]) -> int:
        """The number of bytes of new contents for these files."""
        number, size = self.number, 0
        for file in files:
            if file.content == number:
                number, size = number + 1, size + file.size
        return size

    def add(self, path: Path, size: int) -> None:
        """Adds a content of this parcel. It counts when the complete parcel is accepted."""
        self._new[self.number + len(self._new)] = (path, size)

    def link(self, file: File, path: Path) -> None:
        source, size = self._new.get(file.content) or self._paths.get(file.content) or (None, 0)
        if source is None or size != file.size:
            raise Refused("a parcel refers to a content that was not sent")
        link(str(source), str(path))

    def settle(self, last: Sequence[int]) -> None:
        """The parcel is accepted: keeps the contents for later parcels and drops those that end with it."""
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
    """Makes a hard link. Copies the file if that is not possible: another file system, or one without hard links."""
    try:
        os.link(source, path, follow_symlinks=False)
    except OSError:
        with Path(source).open("rb") as file:
            write(Path(path), file.read, os.fstat(file.fileno()).st_size)


def write(path: Path, take: Callable[[int], Any], size: int) -> None:
    """Writes a new file with the next `size` bytes."""
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
    """Reads a parcel of `length` bytes into a new directory. Returns the call and the contents that end with it.

    Raises Refused; then the directory may remain.
    """
    (size,) = LENGTH.unpack(_take_all(take, LENGTH.size))
    if size > min(length - LENGTH.size, frames.LARGEST_JSON):
        raise Refused("the text of a parcel is longer than the parcel")
    task, files, last = read_text(_take_all(take, size))
    if kept.count_new_bytes(files) != length - LENGTH.size - size:
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


def _take_all(take: Callable[[int], bytearray], size: int) -> bytes:
    parts = []
    while size:
        parts.append(take(size))
        size -= len(parts[-1])
    return b"".join(parts)


def read_text(text: bytes) -> tuple[Task, list[File], list[int]]:
    """The call, its files and the contents to drop, after every value in the text was checked."""
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
    """The tasks to send from a finished rank directory, in order."""
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
