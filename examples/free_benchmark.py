"""A naive variance in fp16, found without a golden run: the same call in higher precision gives another result."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch

from msprobe.pytorch import PrecisionDebugger


def naive_variance(x: torch.Tensor) -> torch.Tensor:
    return (x * x).mean() - x.mean() ** 2  # the difference of two large, almost equal numbers


def run(work: Path) -> None:
    config = work / "config.json"
    section = {"pert_mode": "improve_precision"}
    config.write_text(
        json.dumps(
            {"task": "free_benchmark", "level": "L1", "dump_path": str(work / "dump"), "free_benchmark": section}
        )
    )
    debugger = PrecisionDebugger(str(config))
    here = sys.modules[__name__]
    debugger.register_custom_api(here, "naive_variance", "Example")
    debugger.start()
    x = 100 + torch.linspace(0, 3, 64).half()
    here.naive_variance(x)
    x.var()
    debugger.stop()
    debugger.step()
    print((work / "dump" / "free_benchmark.csv").read_text())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        run(Path(directory))
