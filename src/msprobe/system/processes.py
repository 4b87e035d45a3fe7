"""Starts Python processes of msprobe, never with the current directory on their path, and ends them.

`python -c` and `python -m` look for modules in the current directory first. A user may be in a dump that somebody else
wrote, and a file there with the name of a module must not run.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_ABOVE_PACKAGE = Path(__file__).resolve().parents[2]


def python_command(code: str) -> list[str]:
    """The command that runs one line of Python. The option `-P` would do the same, but needs Python 3.11."""
    return [sys.executable, "-c", f"import sys; sys.path[:] = filter(None, sys.path); {code}"]


def python_environment(**variables: str) -> dict[str, str]:
    """The environment of this process with `variables`, and its module path without the current directory."""
    return {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(safe_path())}


def safe_path() -> list[str]:
    """sys.path without the current directory; always with the directory of msprobe itself."""
    here = Path.cwd()
    entries = [Path(entry).resolve() for entry in sys.path if entry]
    kept = [entry for entry in entries if entry != here or entry == _ABOVE_PACKAGE]
    return [str(entry) for entry in dict.fromkeys([*kept, _ABOVE_PACKAGE])]


def adopt_orphans() -> None:
    """From now on, a process that this one started stays below it when its own parent ends: `end_tree` finds it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_tree(root: int) -> None:
    """Kills a process and all below it, also those in groups or sessions of their own: torchrun gives each worker one.
    Without /proc, only the group of `root`. The caller waits for `root`."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(root, signal.SIGSTOP)  # it starts nothing more, and still adopts
        while below := _running_below(root):
            for pid in below:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        os.killpg(root, signal.SIGKILL)


def _running_below(root: int) -> list[int]:
    """The processes below one, without those that have ended."""
    parents: dict[int, int] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state, parent = file.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                parents[int(file.parent.name)] = int(parent)
    found: list[int] = []
    level = [root]
    while level:
        level = [pid for pid, parent in parents.items() if parent in level]
        found += level
    return found
