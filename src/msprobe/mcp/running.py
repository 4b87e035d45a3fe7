"""Runs a verb of msprobe for an agent. Only for a server that was started with --allow-run."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from msprobe.dump.errors import DumpError
from msprobe.system.processes import python_command

VERBS = ("run", "compare", "again", "prove", "replay", "check", "baseline", "run_ut", "overflow", "rollout", "weights")
_LONGEST = 6000


def run_verb(root: Path, verb: str, words: list[str], seconds: int = 600) -> dict[str, Any]:
    """Runs `msprobe VERB words…` in the first root; returns the exit code and the end of the output."""
    if verb not in VERBS:
        raise DumpError(f"{verb!r} cannot be run; choose from {', '.join(VERBS)}.")
    try:
        done = subprocess.run(
            [*python_command("from msprobe.cli import main; sys.exit(main(sys.argv[1:]))"), verb, *words],
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=max(1, min(seconds, 3600)),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DumpError(f"msprobe {verb} took longer than {seconds} s and was stopped.") from None
    return {"exit_code": done.returncode, "output": done.stdout[-_LONGEST:].splitlines()}
