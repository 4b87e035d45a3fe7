"""Runs a script as it is and once for each emulated format, and compares the losses."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from msprobe.config.emulation import EmulationOrder
from msprobe.dump.errors import DumpError
from msprobe.dump.plural import count
from msprobe.rerun.launch import Script
from msprobe.stats.formats import Format
from msprobe.system.processes import python_command

_CHILD = "msprobe.cli.emulated_run"
_LAST = 0.1
"""The loss of a run is the mean of this part of its steps, the last ones."""


@dataclass(frozen=True)
class EmulatedRun:
    """One run. `format` is empty for the script as it is. `stochastic`: gradients were rounded so."""

    format: str
    losses: list[float]
    emulated: list[str]
    kept: list[str]
    stochastic: bool = False

    @property
    def final(self) -> float:
        """The mean loss of the last steps; NaN if one of them is not finite."""
        last = self.losses[-max(round(_LAST * len(self.losses)), 1) :]
        return sum(last) / len(last) if all(map(math.isfinite, last)) else math.nan

    def gap(self, bare: EmulatedRun) -> float:
        return self.final - bare.final

    def as_record(self, bare: EmulatedRun) -> dict[str, Any]:
        return {
            "format": self.format, "steps": len(self.losses), "loss": self.final, "gap": self.gap(bare),
            "emulated": self.emulated, "kept": self.kept, "stochastic": self.stochastic, "losses": self.losses,
        }  # fmt: skip


def emulate_script(
    script: Script,
    forms: Sequence[Format],
    keep: Sequence[str],
    steps: int,
    stochastic: bool,
    directory: Path,
    say: Callable[[str], None],
) -> list[EmulatedRun]:
    """The run of the script as it is, then one for each format. Raises DumpError if one cannot be compared."""
    runs = []
    for name in ("", *(form.name for form in forms)):
        say(f"running {script} " + (f"with its Linear modules in emulated {name}" if name else "as it is"))
        order = EmulationOrder(name, tuple(keep), steps, str(directory / "report.json"), stochastic and bool(name))
        runs.append(_run(script, order, directory))
        if name and not runs[-1].emulated:
            matched = f": --keep leaves out all {len(runs[-1].kept)}" if runs[-1].kept else ""
            raise DumpError(f"no torch.nn.Linear of the script computed in {name}{matched}")
    bare = runs[0]
    for run in runs[1:]:
        if len(run.losses) != len(bare.losses):
            raise DumpError(
                f"the run in {run.format} has {count(len(run.losses), 'step')}, the script as it is has "
                f"{len(bare.losses)}: give --steps a number that both reach"
            )
    return runs


def _run(script: Script, order: EmulationOrder, directory: Path) -> EmulatedRun:
    file, report = directory / "order.json", Path(order.report)
    order.write(file)
    report.unlink(missing_ok=True)
    words = ["-m", *script.words] if script.module else list(script.words)
    sys.stdout.flush()
    command = [*python_command(f"from {_CHILD} import main; main()"), str(file), *words]
    code = subprocess.run(command, env=dict(os.environ), stdout=sys.stderr, check=False).returncode
    if code:
        raise DumpError(f"the script ended with exit code {code}" + (f" in {order.format}" if order.format else ""))
    try:
        found = json.loads(report.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise DumpError("the script never imported torch: only PyTorch scripts can be emulated") from None
    if not found["losses"]:
        raise DumpError("the script made no optimizer step after a backward of a loss: there is nothing to compare")
    return EmulatedRun(order.format, found["losses"], found["emulated"], found["kept"], order.stochastic)
