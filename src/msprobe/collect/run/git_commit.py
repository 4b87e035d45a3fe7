"""The git commit of the script, read from its repository without starting git: a process would cost the run time."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path
from typing import Optional

_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?\Z")
_MOST_BYTES = 1 << 24


def commit_of_script() -> Optional[str]:
    """The commit that is checked out where the script is; None outside of a repository. Uncommitted changes are not
    seen."""
    script = Path(sys.argv[0] or ".").absolute()
    return commit_of(script.parent if script.is_file() else Path.cwd())


@functools.lru_cache(maxsize=8)
def commit_of(directory: Path) -> Optional[str]:
    try:
        found = next((one / ".git" for one in (directory, *directory.parents) if (one / ".git").exists()), None)
        return None if found is None else _read(found)
    except OSError:
        return None


def _read(git: Path) -> Optional[str]:
    if git.is_file():  # a worktree or a submodule: "gitdir: path"
        git = git.parent / _text(git).partition("gitdir:")[2].strip()
    head = _text(git / "HEAD")
    if not head.startswith("ref:"):
        return _checked(head)
    name = head[len("ref:") :].strip()
    common = git / _text(git / "commondir") if (git / "commondir").is_file() else git
    for place in (git, common):
        if (place / name).is_file():
            return _checked(_text(place / name))
    packed = _text(common / "packed-refs") if (common / "packed-refs").is_file() else ""
    return next((_checked(line.split()[0]) for line in packed.splitlines() if line.endswith(f" {name}")), None)


def _text(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(_MOST_BYTES).strip()


def _checked(text: str) -> Optional[str]:
    return text if _COMMIT.match(text) else None
