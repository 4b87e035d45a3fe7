"""A model that overflows in fp16: overflow_check stops, `msprobe overflow` finds the call, replay runs it again."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch

from msprobe.cli import main
from msprobe.pytorch import PrecisionDebugger


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(self.fc(x).half() + 12)  # e^12 is too large for fp16


def run(work: Path) -> None:
    config = work / "config.json"
    config.write_text(json.dumps({"task": "overflow_check", "level": "mix", "dump_path": str(work / "dump")}))
    debugger = PrecisionDebugger(str(config))
    model = Model()
    debugger.start(model)
    try:
        model(torch.ones(2, 8))
    except RuntimeError as stopped:
        print(stopped)
    debugger.stop()
    debugger.step()
    main(["overflow", str(work / "dump")])
    main(["overflow", "replay", str(work / "dump")])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        run(Path(directory))
