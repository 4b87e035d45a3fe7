"""How msprobe starts Python processes of its own: never with the current directory on their path.

`python -c` and `python -m` look for modules in the current directory first. A user may stand in a dump that somebody
else wrote, and a file in it that is called like a module must not run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_ABOVE_PACKAGE = Path(__file__).resolve().parents[2]


def python_command(code: str) -> list[str]:
    """The command that runs one line of Python. `-P` does the same, from Python 3.11 on only."""
    return [sys.executable, "-c", f"import sys; sys.path[:] = filter(None, sys.path); {code}"]


def python_environment(**variables: str) -> dict[str, str]:
    """This process' environment with `variables`, and with its module path but for the current directory."""
    return {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(safe_path())}


def safe_path() -> list[str]:
    """sys.path without the current directory; where msprobe itself lies is part of it in any case."""
    here = Path.cwd()
    entries = [Path(entry).resolve() for entry in sys.path if entry]
    kept = [entry for entry in entries if entry != here or entry == _ABOVE_PACKAGE]
    return [str(entry) for entry in dict.fromkeys([*kept, _ABOVE_PACKAGE])]
