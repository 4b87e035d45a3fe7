"""nfs_path: the online check through a directory that both sides can use. Both ends are in this file.

A parcel is a directory with `call.json` and the tensor files under their numbers: hard links to the dump if both are on
one file system. A parcel gets its name when it is complete, and the checker removes it when it has the result. The
permissions of the directory decide who may write there; the checker still checks everything it finds.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

from msprobe.check.online import frames, parcel
from msprobe.check.online.frames import Refused, Session
from msprobe.check.online.inbox import Arrival, Inbox
from msprobe.config.settings import RunUtSettings
from msprobe.dump import layout
from msprobe.dump.errors import DumpError

MOST_PARCELS = 64
_TEXT = "call.json"
_HOME = re.compile(r"([0-9a-f]{32})-(\d{1,9})\Z")
_PARCEL = re.compile(r"\d{12}\.parcel\Z")


class Outbox:
    """The sender's end."""

    def __init__(self, root: Path, session: Session) -> None:
        self.home = root / f"{session.name}-{session.rank}"
        layout.make_directory(self.home)
        self._count = 0

    def waiting(self) -> int:
        with os.scandir(self.home) as found:
            return sum(1 for entry in found if _PARCEL.match(entry.name))

    def put(self, task: parcel.Task, files: list[parcel.File], source: Path) -> None:
        """Writes a parcel. `source` is the directory of the tensor files."""
        unfinished = self.home / f".{self._count:012d}"
        unfinished.mkdir(mode=layout.DIRECTORY_MODE)
        for number, file in enumerate(files):
            parcel.link(f"{source}/{file.name}", f"{unfinished}/{number}")
        layout.write_file(unfinished / _TEXT, [parcel.text_of(task, files, [])])
        unfinished.rename(self.home / f"{self._count:012d}.parcel")
        self._count += 1

    def end(self) -> None:
        layout.write_file(self.home / f"{self._count:012d}.end", [b""])


class SharedDirectory:
    """The checker's end."""

    def __init__(self, settings: RunUtSettings, inbox: Inbox) -> None:
        assert settings.nfs_path is not None
        self._root, self._inbox, self._ranks = settings.nfs_path, inbox, settings.rank_list
        if not self._root.is_dir():
            raise DumpError(f"nfs_path {self._root} is not a directory.")
        self._taken: set[Path] = set()
        threading.Thread(target=self._look, daemon=True).start()

    def close(self) -> None:
        self._inbox.stopped.set()

    def _look(self) -> None:
        while not self._inbox.stopped.is_set():
            found = 0
            try:
                for home in sorted(self._root.iterdir()):
                    named = _HOME.match(home.name)
                    if named and int(named[2]) in self._ranks and home.is_dir() and not home.is_symlink():
                        found += self._take_all(home, Session(named[1], int(named[2])))
            except OSError as error:
                self._inbox.log(f"{self._root} cannot be read: {error.strerror or error}.")
            if not found:
                time.sleep(0.05)

    def _take_all(self, home: Path, session: Session) -> int:
        found = 0
        taken = self._taken.copy()  # Before the listing: an answer may remove a path that is still listed.
        for path in sorted(home.iterdir()):
            if path in taken:
                continue
            if _PARCEL.match(path.name):
                self._taken.add(path)
                found += self._take(path, session)
            elif path.suffix == ".end" and not any(_PARCEL.match(one.name) for one in home.iterdir()):
                self._taken.add(path)
                self._inbox.put(Arrival(session, None, _remover(home)))
        return found

    def _take(self, path: Path, session: Session) -> int:
        spool = self._inbox.new_spool()
        try:
            task = _unpack(path, spool)
        except (Refused, OSError) as error:
            shutil.rmtree(spool, ignore_errors=True)
            self._inbox.log(f"{path} was refused: {error}.")
            with contextlib.suppress(OSError):
                path.rename(path.with_suffix(".refused"))
            return 0

        def answer() -> None:
            _remover(path)()
            self._taken.discard(path)

        self._inbox.put(Arrival(session, task, answer))
        return 1


def _remover(path: Path) -> Callable[[], None]:
    return lambda: shutil.rmtree(path, ignore_errors=True)


def _unpack(path: Path, spool: Path) -> parcel.Task:
    """Copies a parcel to a directory where only we write. Raises Refused or OSError; then the copy may remain."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with _open_plain(directory, _TEXT) as (text, size):
            if size > frames.LARGEST_JSON:
                raise Refused(f"a text of {size} bytes; at most {frames.LARGEST_JSON} are allowed")
            task, files, _ = parcel.read_text(os.pread(text, size, 0))
        data = spool / layout.TENSORS
        layout.make_directory(data)
        for number, file in enumerate(files):
            with _open_plain(directory, str(number)) as (source, size):
                if size != file.size:
                    raise Refused("the files of a parcel do not match its list")
                parcel.write(data / file.name, lambda most, fd=source: os.read(fd, most), size)  # type: ignore[misc]
    finally:
        os.close(directory)
    return {**task, "rank": str(spool)}


@contextlib.contextmanager
def _open_plain(directory: int, name: str) -> Iterator[tuple[int, int]]:
    """Opens a plain file and returns it with its size. Follows no link and opens nothing that could block."""
    fd = layout.open_file(name, os.O_RDONLY | os.O_NONBLOCK, dir_fd=directory)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise Refused(f"{name} in it is not a file")
        yield fd, found.st_size
    finally:
        os.close(fd)
