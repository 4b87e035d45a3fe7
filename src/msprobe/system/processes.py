"""Starts Python processes of msprobe, never with the current directory on their path.

`python -c` and `python -m` look for modules in the current directory first. A user may be in a dump that somebody else
wrote, and a file there with the name of a module must not run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

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
