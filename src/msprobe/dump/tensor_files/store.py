"""The files in dump_tensor_data: each content once; further names are hard links.

The writer thread calls this. For a tensor in host memory, the thread that runs the call does: writing directly costs
less than a copy for later. A file is complete before the journal names it; no record names a file that a crash cut off.
After the first write that fails for lack of space or permission, later writes are skipped and counted: ten thousand
attempts would only slow the training down.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import mmap
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Optional

import xxhash

from msprobe.dump import layout
from msprobe.dump.tensor_files.codec import Payload, encode
from msprobe.dump.writing.descriptors import Descriptor
from msprobe.system.interrupts import let_through

_NO_MORE_LINKS = {errno.EMLINK, errno.EXDEV, errno.EPERM, errno.ENOTSUP}

Key = tuple[str, tuple[int, ...], str, bytes]


@dataclass
class Counts:
    """`bytes` is the number of bytes on disk: a link adds none. `dropped` files were not attempted."""

    files: int = 0
    links: int = 0
    bytes: int = 0
    dropped: int = 0


class TensorStore:
    """Saves payloads in one directory, which is created for the first one."""

    def __init__(self, directory: Path, fail: Callable[[str, BaseException], None]) -> None:
        self.directory = directory
        self.counts = Counts()
        self._fail = fail
        self._fd: Optional[Descriptor] = None
        self._broken = False
        self._known: dict[Key, str] = {}
        self._holds: dict[str, Key] = {}
        self._linked: set[str] = set()
        self._lock = threading.RLock()  # a signal handler may save a tensor while this thread saves another
        self._closing = False

    def save(self, name: str, file_name: str, payload: Payload) -> None:
        def work(fd: int) -> None:
            digest = xxhash.xxh3_128_digest(payload.data)
            key = (payload.dtype, payload.shape, payload.format, digest)
            known = self._known.get(key)
            if known == file_name:
                return
            self._forget(file_name)
            if known is None or not self._hard_link(fd, known, file_name):
                self.counts.bytes += self._write(fd, file_name, encode(payload))
                self.counts.files += 1
                self._known[key] = file_name
                self._holds[file_name] = key

        self._guarded(name, file_name, work)

    def link(self, name: str, file_name: str, existing: str) -> None:
        def work(fd: int) -> None:
            if file_name == existing:
                return
            self._forget(file_name)
            if not self._hard_link(fd, existing, file_name):
                self.counts.bytes += self._copy(fd, existing, file_name)
                self.counts.files += 1

        self._guarded(name, file_name, work)

    def close(self) -> None:
        """Closes the store: at once, or, if a thread is saving (and may wait for the caller), when it has finished."""
        self._closing = True
        if self._lock.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._lock.release()

    def _close(self) -> None:
        self._closing = False
        if self._fd is not None:
            self._fd.close()
            self._fd = None

    def _forget(self, file_name: str) -> None:
        """A name gets new content: nothing may be linked to its old content from now on."""
        key = self._holds.pop(file_name, None)
        if key is not None and self._known.get(key) == file_name:
            del self._known[key]
        self._linked.discard(file_name)

    def _guarded(self, name: str, file_name: str, work: Callable[[int], None]) -> None:
        with self._lock:
            if self._broken:
                self.counts.dropped += 1
                return
            try:
                if self._fd is None or not self._fd.is_ours():
                    layout.make_directory(self.directory)
                    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
                    self._fd = Descriptor(os.open(self.directory, flags))
                work(self._fd.number)
                if layout.is_over_long(name, file_name[file_name.rfind(".") :]):
                    self._list_in_mapping(self._fd.number, file_name, name)
            except Exception as error:
                let_through(error)
                self._broken = isinstance(error, OSError) and error.errno != errno.ENOENT
                self._fail("tensor files", error)
            if self._closing:
                self._close()

    def _hard_link(self, fd: int, existing: str, file_name: str) -> bool:
        """Makes a hard link. Returns False if that is not possible; then the content is written again."""
        try:
            if existing not in self._linked:
                mode = os.stat(existing, dir_fd=fd, follow_symlinks=False).st_mode
                os.chmod(existing, mode & layout.LINKED_MODE, dir_fd=fd)
                self._linked.add(existing)
            try:
                os.link(existing, file_name, src_dir_fd=fd, dst_dir_fd=fd)
            except FileExistsError:
                os.unlink(file_name, dir_fd=fd)
                os.link(existing, file_name, src_dir_fd=fd, dst_dir_fd=fd)
        except OSError as error:
            if error.errno in _NO_MORE_LINKS:
                return False
            raise
        self._linked.add(file_name)
        self.counts.links += 1
        return True

    def _write(self, fd: int, file_name: str, parts: tuple[object, ...]) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            file = layout.open_file(file_name, flags, dir_fd=fd)
        except FileExistsError:  # the name is used again: files that are linked to the old content keep it
            os.unlink(file_name, dir_fd=fd)
            file = layout.open_file(file_name, flags, dir_fd=fd)
        try:
            return layout.write_all(file, *parts)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(file_name, dir_fd=fd)
            raise
        finally:
            os.close(file)

    def _copy(self, fd: int, existing: str, file_name: str) -> int:
        source = layout.open_file(existing, os.O_RDONLY, dir_fd=fd)
        try:
            with mmap.mmap(source, 0, access=mmap.ACCESS_READ) as content:
                return self._write(fd, file_name, (content,))
        finally:
            os.close(source)

    def _list_in_mapping(self, fd: int, file_name: str, name: str) -> None:
        row = io.StringIO()
        csv.writer(row, lineterminator="\n").writerow([file_name, name])
        file = layout.open_file(layout.MAPPING, os.O_WRONLY | os.O_CREAT | os.O_APPEND, dir_fd=fd)
        try:
            layout.write_all(file, row.getvalue().encode("utf-8", "backslashreplace"))
        finally:
            os.close(file)
