"""What a script that `msprobe precision --emulate` starts has to do; the process of the script reads it from a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class EmulationOrder:
    """`format` is empty for the run that it is compared with. The script ends after `steps` optimizer steps.
    `stochastic`: gradients are rounded so."""

    format: str
    keep: tuple[str, ...]
    steps: int
    report: str
    stochastic: bool = False

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        path.chmod(0o640)


def read_order(path: Path) -> EmulationOrder:
    """Reads a file that `EmulationOrder.write` wrote."""
    value = json.loads(path.read_text(encoding="utf-8"))
    return EmulationOrder(
        str(value["format"]), tuple(value["keep"]), int(value["steps"]), str(value["report"]), bool(value["stochastic"])
    )
