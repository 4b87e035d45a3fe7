"""Which lines changed since the baseline's commit, those nearest to the origin first. Without git there are none."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from msprobe.dump.stack_frames import Frame

_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+(\d+)(?:,(\d+))? @@")
_COMMIT = re.compile(r"[0-9a-f]{4,64}\Z")
_WORD = re.compile(r"[A-Za-z_]\w{2,}")
_SECONDS = 30
_LARGEST_DIFF = 16 << 20
_LONGEST = 160
_COMMON = frozenset(("self", "the", "and", "not", "forward", "input", "output", "Module", "with", "was", "called"))


@dataclass(frozen=True)
class Change:
    """Changed lines at one place: `removed` and `added` are the first such lines; `commit` is `hash subject`, or empty
    for lines that are not committed."""

    file: str
    line: int
    lines: int
    removed: str
    added: str
    commit: str = ""


def current_commit(directory: Path) -> Optional[str]:
    found = _git(directory, "rev-parse", "--verify", "HEAD")
    return found.strip() if found is not None else None


def project_root(directory: Path) -> Path:
    """The top of the git repository, or the directory itself."""
    found = _git(directory, "rev-parse", "--show-toplevel")
    return Path(found.strip()) if found and found.strip() else directory


def changed_lines(
    directory: Path, since: Optional[str], frames: Sequence[Frame], sentence: str, most: int = 3
) -> tuple[list[Change], int]:
    """The nearest changes since a commit, or since the one before HEAD if that commit is unknown, and how many changes
    there are."""
    root = project_root(directory)
    since = since if since is not None and _COMMIT.match(since) else None
    known = [one for one in (since, "HEAD~1") if one and _git(root, "cat-file", "-e", f"{one}^{{commit}}") is not None]
    if not known:
        return [], 0
    text = _git(
        root,
        "diff",
        "--unified=0",
        "--no-color",
        "--no-ext-diff",
        "--no-textconv",
        known[0],
        "--",
        "*.py",
        "*.yaml",
        "*.json",
    )
    found = list(_parse(text)) if text is not None and len(text) < _LARGEST_DIFF else []
    places = [(os.path.relpath(os.path.realpath(frame.file), root), frame.line) for frame in frames]
    words = set(_WORD.findall(sentence)) - _COMMON
    nearest = sorted(found, key=lambda change: _order(change, places, words))[:most]
    return [replace(change, commit=_commit_of(root, change)) for change in nearest], len(found)


def _order(change: Change, places: Sequence[tuple[str, int]], words: set[str]) -> tuple[bool, int, bool, int]:
    lines = [line for file, line in places if file == change.file]
    here = any(change.line <= line < change.line + max(change.lines, 1) for line in lines)
    shared = len(words & set(_WORD.findall(f"{change.removed} {change.added}")))
    distance = min((abs(line - change.line) for line in lines), default=0)
    return not here, -shared, not lines, distance


def _parse(diff: str) -> Iterator[Change]:
    file: Optional[str] = None
    change: Optional[Change] = None
    for line in diff.splitlines():
        hunk = _HUNK.match(line)
        if hunk is not None and file is not None:
            if change is not None:
                yield change
            change = Change(file, int(hunk[1]), int(hunk[2] or 1), "", "")
        elif line.startswith("diff --git "):
            if change is not None:
                yield change
            file = change = None
        elif change is None and line.startswith("+++ b/"):
            file = line[len("+++ b/") :].rstrip("\t")
        elif change is not None and line[:1] == "-" and not change.removed:
            change = replace(change, removed=line[1:].strip()[:_LONGEST])
        elif change is not None and line[:1] == "+" and not change.added:
            change = replace(change, added=line[1:].strip()[:_LONGEST])
    if change is not None:
        yield change


def _commit_of(root: Path, change: Change) -> str:
    if not change.lines:
        return ""
    text = _git(root, "blame", "--porcelain", "-L", f"{change.line},+1", "--", change.file)
    if not text or text.startswith("0000000"):
        return ""
    subject = next((line[len("summary ") :] for line in text.splitlines() if line.startswith("summary ")), "")
    return f"{text[:9]} {subject}"[:_LONGEST]


def _git(directory: Path, *words: str) -> Optional[str]:
    """What git prints; None if it fails, is not installed or takes too long."""
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *words],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None
