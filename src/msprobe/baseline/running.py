"""Runs a command and collects what it trains, whatever starts it: python, torchrun, accelerate, a shell script.

The command runs unchanged. Python reads a `sitecustomize` when it starts; ours is put before others on PYTHONPATH, and
collects in every process that imports torch and calls a model. So the process that trains is found by itself.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from msprobe.dump.errors import DumpError
from msprobe.dump.reader import open_dump

COLLECT = "MSPROBE_COLLECT"
"""The variable that names the config.json for processes of the command."""
_STARTED = Path(__file__).with_name("started")


class CommandFailed(DumpError):
    """The command itself failed, or ran nothing that can be collected."""


@dataclass(frozen=True)
class Run:
    dump: Path
    seconds: float
    """CPU time of all processes."""


def collect_run(
    command: Sequence[str], directory: Path, steps: Sequence[int], seed: Optional[int], quiet: bool = False
) -> Run:
    """Runs the command with a dump in `directory`, which must be empty. `quiet` sends its output to standard error."""
    dump = directory / "dump"
    config = directory / "config.json"
    settings = {
        "task": "statistics",
        "level": "mix",
        "dump_path": str(dump),
        "step": list(steps),
        "statistics": {"summary_mode": "md5"},
    }
    config.write_text(json.dumps(settings if seed is None else {**settings, "seed": seed}))
    path = os.pathsep.join(filter(None, (str(_STARTED), os.environ.get("PYTHONPATH"))))
    seconds = _run(command, {**os.environ, "PYTHONPATH": path, COLLECT: str(config)}, quiet)
    _check_dump(dump, directory)
    return Run(dump, seconds)


def bare_run(command: Sequence[str], quiet: bool = False) -> float:
    """Runs the command without msprobe; returns the CPU time of all its processes."""
    return _run(command, dict(os.environ), quiet)


def _run(command: Sequence[str], environment: dict[str, str], quiet: bool) -> float:
    before = _children_seconds()
    sys.stdout.flush()
    try:
        done = subprocess.run(list(command), env=environment, stdout=sys.stderr if quiet else None, check=False)
    except OSError as error:
        hint = f" Write: python {command[0]}" if command[0].endswith(".py") else ""
        raise CommandFailed(f"Cannot start {command[0]!r}: {error.strerror or error}.{hint}") from None
    if done.returncode:
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        raise CommandFailed(f"The command failed ({how}): {' '.join(command)}")
    return _children_seconds() - before


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _check_dump(dump: Path, directory: Path) -> None:
    if not dump.is_dir():
        raise CommandFailed(
            "Nothing was collected: the command called no torch.nn.Module with parameters, has its own "
            "PrecisionDebugger, or runs a Python without msprobe."
        )
    if len(list(directory.glob("dump*"))) > 1 or any(dump.glob("run-*")):
        raise CommandFailed("The command trains more than once; a baseline is of one training. Give each its own name.")
    empty = open_dump(dump).unread
    if empty:
        raise CommandFailed(f"The run was not collected completely: {empty[0].obstacle}.")
