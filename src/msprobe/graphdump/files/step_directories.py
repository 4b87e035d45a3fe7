"""The step directories of jit_level O2: `{time}/step_{n}/{operator}.{io}.{slot}.{format}.{dtype}.npy` in a rank.

Ascend's own dump writes `{time}/{device}/{model}/{model id}/{n}` with one asynchronous file for each operator. Such a
file is converted and then removed; a file that cannot be converted stays where it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msprobe.graphdump.files.convert import Job, Request, convert_all, plan

_ACL_TREE = re.compile(r"(?P<time>\d{1,20})/\d{1,9}/[^/]+/\d{1,20}/(?P<step>\d{1,18})")
_REQUEST = Request(kind="npy", ascend_names=True)


@dataclass
class Arranged:
    """The number of tensor files in step directories, and the files that stayed, with the reasons."""

    written: int = 0
    kept: list[tuple[Path, str]] = field(default_factory=list)


def arrange_steps(rank: Path) -> Arranged:
    """Puts all files of a finished dump in `rank` into step directories."""
    found = Arranged()
    jobs = [
        Job(job.source, job.name, rank / match["time"] / f"step_{match['step']}")
        for job in plan(rank, rank)[0]
        if (match := _ACL_TREE.fullmatch(job.source.parent.relative_to(rank).as_posix()))
    ]
    for outcome in convert_all(jobs, _REQUEST):
        found.written += len(outcome.written)
        if outcome.errors:
            found.kept.append((outcome.source, "; ".join(outcome.errors)))
        else:
            outcome.source.unlink()
    _remove_empty(rank, jobs)
    return found


def _remove_empty(rank: Path, jobs: Sequence[Job]) -> None:
    """Removes the directories of Ascend that have no file any more."""
    for folder in sorted({job.source.parent for job in jobs}, reverse=True):
        while folder != rank and not any(os.scandir(folder)):
            folder.rmdir()
            folder = folder.parent
