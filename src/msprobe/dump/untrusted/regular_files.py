"""Opens files of an untrusted dump: only regular files, and none outside of the dump.

Reading a pipe could wait forever, a device could fill the memory, and a symbolic link could lead to a private file of
the reader. A file that is larger than the memory allows is refused before it is read: a sparse file of 64 GiB takes no
space on the disk. All readers open files here. A problem is an OSError, whose text the callers show.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path
from typing import IO, Any, Optional

import numpy as np

from msprobe.system.memory import largest_text, size_text


def open_regular(path: Path, inside: Optional[Path] = None) -> IO[bytes]:
    """Opens a file for reading. With `inside`, links may not lead out of that directory."""
    if inside is not None and not is_inside(path, inside):
        raise OSError(errno.ELOOP, "it is a link that leads out of the dump")
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def read_regular(path: Path, inside: Optional[Path] = None, limit: int = -1) -> bytes:
    """The content of a file; with `limit`, only its first bytes. Without, a file that is too large is an OSError."""
    with open_regular(path, inside) as file:
        size = os.fstat(file.fileno()).st_size
        if limit < 0 and size > largest_text():
            raise OSError(errno.EFBIG, _too_large(size))
        return file.read(size if limit < 0 else min(limit, size))


def _too_large(size: int) -> str:
    return (
        f"it has {size_text(size)}, and msprobe reads up to {size_text(largest_text())} on this machine (an eighth of "
        'its memory). Use a machine with more memory, or collect fewer calls ("scope", "list")'
    )


def open_text(path: Path, inside: Optional[Path] = None) -> IO[str]:
    """Opens a text file for the csv module. Bytes that are not UTF-8 become replacement characters."""
    return io.TextIOWrapper(open_regular(path, inside), encoding="utf-8", errors="replace", newline="")


def is_inside(path: Path, directory: Path) -> bool:
    """Whether a path, with all links resolved, lies in a directory."""
    if _is_below_without_links(path, directory):
        return True
    try:
        real, above = os.path.realpath(path), os.path.realpath(directory)
    except ValueError:  # a null character
        return False
    return os.path.commonpath([real, above]) == above


def _is_below_without_links(path: Path, directory: Path) -> bool:
    """Whether a path begins with the directory and no part after it is a link: then nothing needs to be resolved."""
    above = directory.parts
    below = path.parts[len(above) :]
    if not above or not below or path.parts[: len(above)] != above or os.pardir in below:
        return False
    at = os.fspath(directory)
    try:
        for part in below:
            at = f"{at}{os.sep}{part}"
            if stat.S_ISLNK(os.lstat(at).st_mode):
                return False
    except (OSError, ValueError):  # it does not exist, or a null character
        return False
    return True


def read_raw(file: IO[bytes], start: int, size: int, mmap: bool) -> np.ndarray[Any, Any]:
    """The bytes of an open file as an array: mapped with `mmap`, otherwise copied."""
    if mmap and size:
        return np.memmap(file, dtype=np.uint8, mode="r", offset=start, shape=(size,))
    file.seek(start)
    return np.frombuffer(bytearray(file.read(size)), dtype=np.uint8)
