"""Helps a user who gave the directory above the dumps instead of a dump."""

from __future__ import annotations

from pathlib import Path

from msprobe.dump.errors import DumpError
from msprobe.dump.reader import open_dump

MOST_TRIED = 200
MOST_NAMED = 5


def explain_missing(path: Path, error: DumpError) -> DumpError:
    """The error of `open_dump`, or one that names the dumps one level below the path."""
    inside = _dumps_inside(path)
    if not inside:
        return error
    return DumpError(f"{path} is not a dump, but contains some: {', '.join(inside)}. Give one of them.")


def _dumps_inside(path: Path) -> list[str]:
    found: list[str] = []
    try:
        children = sorted(child for child in path.iterdir() if child.is_dir()) if path.is_dir() else []
    except OSError:
        return []
    for child in children[:MOST_TRIED]:
        try:
            open_dump(child)
        except DumpError:
            continue
        found.append(child.name)
    return found[:MOST_NAMED]
