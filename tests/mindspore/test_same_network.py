"""One network, the same weights, in PyTorch and in MindSpore: the Module and Cell records agree."""

from __future__ import annotations

import json
import math
from typing import Any

import mindspore as ms
import numpy as np
import torch
from mindspore import Tensor, nn, ops
from mscollecting import STATISTICS, collecting

from msprobe.pytorch import PrecisionDebugger as TorchDebugger

RENAMED = {"Dense": "Linear", "SequentialCell": "Sequential"}
PARAMETERS = {"gamma": "weight", "beta": "bias"}


class Ours(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, pad_mode="valid", has_bias=True)
        self.norm = nn.LayerNorm([16], epsilon=1e-5)
        self.mlp = nn.SequentialCell(nn.Dense(16, 8), nn.GELU(approximate=False), nn.Dense(8, 16))
        self.head = nn.Dense(16, 3)

    def construct(self, x: Any) -> Any:
        x = self.norm(self.conv(x).reshape(x.shape[0], 4, 16))
        x = x + self.mlp(x)
        return self.head(ops.relu(x.mean(1)))


class Theirs(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(2, 4, 3)
        self.norm = torch.nn.LayerNorm(16)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.GELU(), torch.nn.Linear(8, 16))
        self.head = torch.nn.Linear(16, 3)

    def forward(self, x: Any) -> Any:
        x = self.norm(self.conv(x).reshape(x.shape[0], 4, 16))
        x = x + self.mlp(x)
        return self.head(torch.relu(x.mean(1)))


def translated(name: str) -> str:
    parts = name.split(".")
    parts[0] = "Module"
    return ".".join(RENAMED.get(part, part) for part in parts)


def close(found: Any, expected: Any) -> bool:
    return found == expected or math.isclose(found, expected, rel_tol=2e-4, abs_tol=2e-5)


def compare(found: Any, expected: Any, where: str) -> int:
    """How many tensors agree; fails at the first that does not."""
    if isinstance(expected, dict) and "Max" in expected:
        assert found["shape"] == expected["shape"], where
        for key in STATISTICS:
            assert close(found[key], expected[key]), (where, key, found, expected)
        return 1
    if isinstance(expected, list):
        assert len(found) == len(expected), where
        return sum(compare(a, b, f"{where}[{n}]") for n, (a, b) in enumerate(zip(found, expected)))
    if isinstance(expected, dict):
        found = {PARAMETERS.get(key, key): value for key, value in found.items()}
        return sum(compare(found[key], expected[key], f"{where}.{key}") for key in expected if key in found)
    return 0


def test_both_frameworks_give_the_same_records(tmp_path):
    theirs, ours = Theirs(), Ours()
    weights = dict(theirs.named_parameters())
    for parameter in ours.get_parameters():
        name, _, last = parameter.name.rpartition(".")
        parameter.set_data(Tensor(weights[f"{name}.{PARAMETERS.get(last, last)}"].detach().numpy()))
    images = np.random.default_rng(0).standard_normal((2, 2, 6, 6)).astype(np.float32)
    labels = np.array([0, 2])
    debugger = TorchDebugger(task="statistics", level="L0", dump_path=str(tmp_path / "torch"))
    debugger.start(theirs)
    batch = torch.tensor(images, requires_grad=True)
    torch.nn.functional.cross_entropy(theirs(batch), torch.tensor(labels)).backward()
    debugger.stop()
    debugger.step()
    TorchDebugger._current._lifecycle.close()
    TorchDebugger._current = None
    function = ms.value_and_grad(lambda x, y: ops.cross_entropy(ours(x), y), 0, ours.trainable_params())
    with collecting(tmp_path / "mindspore", ours, level="L0") as dump:
        function(Tensor(images), Tensor(labels, ms.int32))
    expected = json.loads((tmp_path / "torch/step0/rank/dump.json").read_text())["data"]
    found = {translated(name): record for name, record in dump.data.items()}
    assert set(found) == set(expected)
    tensors = sum(compare(found[name], record, name) for name, record in expected.items())
    assert tensors > 40
