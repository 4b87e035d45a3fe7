"""Helps a user who gave the directory above the dumps, or something else of msprobe, instead of a dump."""

from __future__ import annotations

from pathlib import Path

from msprobe.dump.errors import DumpError
from msprobe.dump.reader import Dump, open_dump

MOST_TRIED = 200
MOST_NAMED = 5


_OTHERS = (
    ("watch*.sqlite", "is a watched run", "msprobe watch"),
    ("accuracy_checking_result_*.csv", "has the results of run_ut", "msprobe view"),
)
"""Files of other parts of msprobe, what to say of their directory, and the verb that reads it."""
_DEPTHS = ("", "*/", "*/*/")
"""With several ranks, run_ut writes into `step0/rank1/` of its output directory."""


def open_or_explain(path: Path) -> Dump:
    """As `open_dump`; the error also says what the path is instead, and what to do."""
    try:
        return open_dump(path)
    except DumpError as error:
        raise explain_missing(path, error) from None


def explain_missing(path: Path, error: DumpError) -> DumpError:
    """The error of `open_dump`, or one that names the right verb, or the dumps one level below the path."""
    place = path if path.is_dir() else path.parent
    for pattern, what, verb in _OTHERS:
        inside = path.is_dir() and any(any(path.glob(depth + pattern)) for depth in _DEPTHS)
        if path.match(pattern) or inside:
            return DumpError(f"{path} {what}, not a dump. Use: {verb} {place}")
    dumps = _dumps_inside(path)
    if not dumps:
        return error
    return DumpError(f"{path} is not a dump, but contains some: {', '.join(dumps)}. Give one of them.")


def _dumps_inside(path: Path) -> list[str]:
    found: list[str] = []
    try:
        children = sorted(child for child in path.iterdir() if child.is_dir()) if path.is_dir() else []
    except OSError:
        return []
    for child in children[:MOST_TRIED]:
        if is_dump(child):
            found.append(child.name)
    return found[:MOST_NAMED]


def is_dump(path: Path) -> bool:
    try:
        open_dump(path)
    except DumpError:
        return False
    return True
