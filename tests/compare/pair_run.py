"""The same small network in PyTorch and in MindSpore, for tests: `pair_run.py FRAMEWORK DUMP FAULT`.

Weights and data are numpy's, so that both start from the same numbers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

WIDTH = 16


def numbers() -> dict[str, Any]:
    generator = np.random.default_rng(5)

    def draw(*shape: int) -> Any:
        return (generator.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    return {
        "fc1.weight": draw(2 * WIDTH, WIDTH),
        "fc1.bias": draw(2 * WIDTH),
        "norm.weight": 1 + 0.1 * draw(2 * WIDTH),
        "norm.bias": 0.1 * draw(2 * WIDTH),
        "fc2.weight": draw(WIDTH, 2 * WIDTH),
        "fc2.bias": draw(WIDTH),
        "head.weight": draw(5, WIDTH),
        "head.bias": draw(5),
        "x": draw(8, WIDTH) * 4,
        "y": generator.integers(0, 5, 8).astype(np.int32),
    }


def config(dump: str, framework: str) -> str:
    path = Path(f"{dump}.{framework}.json")
    path.write_text(
        json.dumps({"task": "statistics", "level": "mix", "dump_path": dump, "step": [0], "statistics": {}})
    )
    return str(path)


def run_pytorch(dump: str, fault: str) -> None:
    import torch
    import torch.nn.functional as F
    from torch import nn

    from msprobe.pytorch import PrecisionDebugger

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1 = nn.Linear(WIDTH, 2 * WIDTH)
            self.norm = nn.LayerNorm(2 * WIDTH, eps=1e-5)
            self.fc2 = nn.Linear(2 * WIDTH, WIDTH)
            self.head = nn.Linear(WIDTH, 5)

        def forward(self, x: Any) -> Any:
            h = self.fc2(torch.tanh(self.norm(self.fc1(x))))
            return self.head(F.relu(h + x))

    given = numbers()
    net = Net()
    net.load_state_dict({name: torch.from_numpy(value) for name, value in given.items() if "." in name})
    debugger = PrecisionDebugger(config(dump, "pytorch"))
    debugger.start(net)
    loss = F.cross_entropy(net(torch.from_numpy(given["x"])), torch.from_numpy(given["y"]).long())
    loss.backward()
    debugger.stop()
    debugger.step()


def run_mindspore(dump: str, fault: str) -> None:
    import mindspore as ms
    from mindspore import Tensor, mint, nn, ops

    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.fc1 = nn.Dense(WIDTH, 2 * WIDTH)
            self.norm = nn.LayerNorm((2 * WIDTH,), epsilon=1e-2 if fault == "wrong eps" else 1e-5)
            self.fc2 = nn.Dense(2 * WIDTH, WIDTH)
            self.head = nn.Dense(WIDTH, 5)

        def construct(self, x: Any) -> Any:
            h = self.norm(self.fc1(x))
            h = mint.sigmoid(h) if fault == "changed activation" else mint.tanh(h)
            h = self.fc2(h)
            if fault == "missing scale":
                h = h * 0.5
            h = h if fault == "missing residual" else h + x
            return self.head(mint.nn.functional.relu(h))

    given = numbers()
    if fault == "changed weight":
        given["fc2.weight"] = given["fc2.weight"] * 1.01
    net = Net()
    names = {"norm.weight": "norm.gamma", "norm.bias": "norm.beta"}
    for name, value in given.items():
        if "." in name:
            dict(net.parameters_and_names())[names.get(name, name)].set_data(Tensor(value))
    data, labels = Tensor(given["x"]), Tensor(given["y"])
    from msprobe.mindspore import PrecisionDebugger

    debugger = PrecisionDebugger(config(dump, "mindspore"))
    debugger.start(net)

    def forward(x: Any, y: Any) -> Any:
        return ops.cross_entropy(net(x), y)

    ms.value_and_grad(forward, None, net.trainable_params())(data, labels)
    debugger.stop()
    debugger.step()


if __name__ == "__main__":
    {"pytorch": run_pytorch, "mindspore": run_mindspore}[sys.argv[1]](sys.argv[2], sys.argv[3])
