"""Finishes a dump in place after a crash: makes the json files from the journal and leaves damaged lines out."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from msprobe.dump import journal, layout
from msprobe.dump.errors import DumpError
from msprobe.dump.json_files import write_results
from msprobe.dump.untrusted.regular_files import open_regular
from msprobe.messages import Message


@dataclass(frozen=True)
class Recovered:
    """The result for one rank directory, with sentences for the user."""

    path: Path
    records: int
    unfinished: int
    troubles: list[str] = field(default_factory=list)


def recover(rank_dir: Path) -> Recovered:
    """Makes dump.json and the other json files. Raises DumpError if that is not possible."""
    file = rank_dir / layout.JOURNAL
    if is_being_written(file):
        raise DumpError(f"{rank_dir} is still being written by a running process; wait until it ends.")
    try:
        found = journal.scan_file(file, check=True)
        if not found.head:
            raise DumpError(f"{file} has lost its first line, which says what kind of dump it is.")
        write_results(rank_dir, found)
        for directory in (rank_dir, rank_dir / layout.TENSORS):
            if directory != rank_dir and directory.is_symlink():
                continue  # the target of a link is not ours to clean up
            for left in directory.glob(".*.tmp"):
                with contextlib.suppress(OSError):
                    left.unlink()
    except OSError as error:
        raise DumpError(f"{rank_dir} cannot be recovered: {error.strerror or error}.") from None
    unfinished = sum(entry.unfinished for entry in found.records.values())
    troubles = found.troubles()
    if found.torn:
        troubles.append(Message("dump.cut_line"))
    return Recovered(rank_dir, len(found.records) + len(found.debugs), unfinished, troubles)


def is_being_written(file: Path) -> bool:
    """Whether a running writer holds the lock on the journal."""
    try:
        with open_regular(file, file.parent) as opened:
            return not layout.lock(opened.fileno(), wait=False)
    except OSError:
        return False
