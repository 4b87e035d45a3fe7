"""`msprobe precision` reads dumps of MindSpore: saved tensors, and numbers recorded while training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from msprobe.cli import main
from msprobe.mindspore import PrecisionDebugger


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Dense(32, 64)
        self.down = nn.Dense(64, 8)

    def construct(self, x: Any) -> Any:
        return self.down(ms.ops.relu(self.up(x))).square().mean()


def collect(root: Path, task: str, **more: Any) -> None:
    ms.set_seed(0)
    net = Net()
    root.mkdir()
    config = {"task": task, "dump_path": str(root), "level": "L0", "step": [0], **more}
    (root / "config.json").write_text(json.dumps(config))
    debugger = PrecisionDebugger(config_path=str(root / "config.json"))
    gradients = ms.value_and_grad(net, None, net.trainable_params())
    batch = ms.Tensor(np.random.default_rng(0).normal(size=(16, 32)).astype(np.float32))
    debugger.start(net)
    gradients(batch)
    debugger.stop()
    debugger.step()


def test_saved_and_live_numbers_of_cells_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    collect(tmp_path / "saved", "tensor")
    collect(tmp_path / "live", "statistics", precision={"formats": ["nvfp4"]})
    found = []
    for side in ("saved", "live"):
        main(["precision", str(tmp_path / side), "--format", "nvfp4", "--json"])
        rows = json.loads(capsys.readouterr().out)["formats"][0]["rows"]
        found.append({(row["place"], row["role"]): row["snr"] for row in rows})
    assert set(found[0]) == {(place, role) for place in ("up", "down") for role in ("weights", "inputs", "gradients")}
    assert found[1] == pytest.approx(found[0], rel=1e-4)
