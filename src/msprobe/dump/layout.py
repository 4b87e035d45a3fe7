"""All file names in a dump directory, and how a name from a model becomes a file name.

The name of a record is data: it may have slashes, blanks or a kilobyte of text. Only `tensor_file_name` turns it into a
file name, without a table. A safe name stays unchanged. Any other name gets `~` and a hash of the full name. No safe
name has a `~`, so two names never share a file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Optional

from msprobe.config.errors import ConfigError, Problem

DUMP = "dump.json"
STACK = "stack.json"
SOURCE = "source.json"
CONSTRUCT = "construct.json"
DEBUG = "debug.json"
RUN = "run.json"
TRAINING = "training.json"
FLOW = "flow.json"
GENERATORS = "generators.json"
TOKENS = "tokens.json"
JOURNAL = "journal.jsonl"
ERRORS = "dump_error_info.log"
TENSORS = "dump_tensor_data"
MAPPING = "mapping.csv"
RESULTS = (DUMP, STACK, SOURCE, CONSTRUCT, DEBUG, TRAINING, FLOW)

MODE_PARENTS = ("graph", "pynative")
REGISTER = ".msprobe_run.json"
DIRECTORY_MODE = 0o750
FILE_MODE = 0o640
LINKED_MODE = 0o440
MAX_FILE_NAME = 255
CHUNK = 1 << 20

_STEP = re.compile(r"step(\d{1,18})\Z")
_RANK = re.compile(r"rank(\d{0,9})\Z|proc(\d{1,18})\Z")
_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=@,#-]*\Z")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.+=@,#-]+")


def step_name(step: int) -> str:
    return f"step{step}"


def rank_name(rank: Optional[int]) -> str:
    """`rank{R}` in a distributed run, `rank` in one without ranks."""
    return "rank" if rank is None else f"rank{rank}"


def rank_directory(dump_path: Path, step: int, rank: Optional[int], parent: Optional[str] = None) -> Path:
    """The directory of one process in one step. `parent` is `graph` or `pynative` if MindSpore has both."""
    root = dump_path / parent if parent else dump_path
    return root / step_name(step) / rank_name(rank)


def parse_step(name: str) -> Optional[int]:
    found = _STEP.match(name)
    return int(found[1]) if found else None


def is_rank_name(name: str) -> bool:
    return _RANK.match(name) is not None


def parse_rank(name: str) -> Optional[int]:
    """The number in `rank{R}`; None for `rank`, and for `proc{pid}` of the newest mindstudio-probe."""
    found = _RANK.match(name)
    return int(found[1]) if found and found[1] else None


def dump_root(rank_dir: Path) -> Path:
    """The dump_path above a rank directory."""
    root = rank_dir.parent.parent
    return root.parent if is_mode_parent(root) else root


def is_mode_parent(path: Path) -> bool:
    """Whether this is the `graph` or `pynative` directory in a dump, and not a dump_path with that name."""
    return path.name in MODE_PARENTS and not (path / REGISTER).exists()


def tensor_file_name(name: str, suffix: str) -> str:
    """The file name for the name of a tensor. The same name always gives the same file; two names never give one
    file."""
    plain = name + suffix
    if len(plain) <= MAX_FILE_NAME and ".." not in plain and _SAFE.match(name):
        return plain
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    room = MAX_FILE_NAME - len(suffix) - len(digest) - 1
    kept = re.sub(r"\.{2,}", "_", _UNSAFE.sub("_", name)).lstrip(".-+=@,#")[:room]
    return f"{kept or '_'}~{digest}{suffix}"


def is_over_long(name: str, suffix: str) -> bool:
    """Whether the full name is too long for a file, so that mapping.csv lists it."""
    return len(name.encode("utf-8", "surrogatepass")) + len(suffix) > MAX_FILE_NAME


def is_plain_file_name(name: str) -> bool:
    """Whether a name read from a file can be joined to a directory and stays inside it."""
    return (
        bool(name)
        and name not in (".", "..")
        and not any(c in name for c in "/\\\0")
        and len(name.encode("utf-8", "surrogatepass")) <= MAX_FILE_NAME
    )


def make_directory(path: Path) -> None:
    """Like makedirs, but every new directory has mode 0750 or stricter, not only the last."""
    missing = []
    probe = path
    while not probe.is_dir():
        missing.append(probe)
        if probe == probe.parent:
            break
        probe = probe.parent
    for directory in reversed(missing):
        try:
            directory.mkdir(mode=DIRECTORY_MODE)
        except FileExistsError:
            if not directory.is_dir():
                raise NotADirectoryError(
                    errno.ENOTDIR, "a file is in the place of this directory", str(directory)
                ) from None


def check_writable(path: Path) -> None:
    """Raises ConfigError if no directory can be made at `path`. Tries it beside: nothing is left there."""
    there = (one for one in (path, *path.parents) if os.path.exists(one))  # noqa: PTH110 - Path.exists raises for long names
    place = next(there, path)
    try:
        if not place.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{place} is a file")
        os.rmdir(tempfile.mkdtemp(prefix=".msprobe-", dir=place))  # noqa: PTH106
    except OSError as error:
        found = f"{path} cannot be written: {error.strerror or error}"
        raise ConfigError("dump_path", [Problem("dump_path", found, "give a directory that can be written")]) from None


def open_file(name: str, flags: int, dir_fd: Optional[int] = None) -> int:
    """Opens a file with our mode. Never follows a symbolic link that somebody planted there."""
    return os.open(name, flags | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0), FILE_MODE, dir_fd=dir_fd)


def lock(fd: int, wait: bool = True) -> bool:
    """Locks a file against other processes of msprobe. Returns False if another one has it and `wait` is False.

    On a file system without locks this returns True.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def unlock(fd: int) -> None:
    """Unlocks a file, also for children that inherited the descriptor in a fork and never close it."""
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)


def write_all(fd: int, *parts: Any) -> int:
    """Writes every byte of every part, even if the system writes only some of them at a time."""
    views = [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]
    total = 0
    while views:
        done = os.writev(fd, views)
        total += done
        while views and done >= len(views[0]):
            done -= len(views.pop(0))
        if done:
            views[0] = views[0][done:]
    return total


def write_file(path: Path, parts: Iterable[bytes]) -> None:
    """Writes a file in one step: a reader sees the old one or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        fd = open_file(str(temporary), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            chunk = bytearray()
            for part in parts:
                chunk += part
                if len(chunk) >= CHUNK:
                    write_all(fd, chunk)
                    chunk = bytearray()
            write_all(fd, chunk)
        finally:
            os.close(fd)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
