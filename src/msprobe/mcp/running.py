"""Runs a verb of msprobe for an agent. Only for a server that was started with --allow-run."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from msprobe.dump.errors import DumpError
from msprobe.system.processes import end_tree, python_command

VERBS = ("run", "compare", "again", "prove", "replay", "check", "baseline", "run_ut", "overflow", "rollout", "weights")
_LONGEST = 6000
_CODE = (
    "from msprobe.system.processes import adopt_orphans; from msprobe.cli import main; adopt_orphans(); "
    "sys.exit(main(sys.argv[1:]))"
)


def run_verb(root: Path, verb: str, words: list[str], seconds: int = 600) -> dict[str, Any]:
    """Runs `msprobe VERB words…` in the first root; returns the exit code and the end of the output."""
    if verb not in VERBS:
        raise DumpError(f"{verb!r} cannot be run; choose from {', '.join(VERBS)}.")
    limit = max(1, min(seconds, 3600))
    with tempfile.TemporaryFile() as output:  # not in memory: a script may print any amount
        process = subprocess.Popen(
            [*python_command(_CODE), verb, *words],
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except BaseException as error:
            end_tree(process.pid)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise DumpError(f"msprobe {verb} took longer than {limit} s and was stopped.") from None
            raise
        output.seek(max(0, output.tell() - 4 * _LONGEST))
        text = output.read().decode("utf-8", "replace")
    return {"exit_code": code, "output": text[-_LONGEST:].splitlines()}
