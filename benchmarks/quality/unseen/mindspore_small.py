"""The MindSpore side of mindspore_pair.py: python mindspore_small.py WEIGHTS DUMP LEVEL FAULT."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from msprobe.mindspore import PrecisionDebugger

NAMES = {"gamma": "weight", "beta": "bias", "embedding_table": "weight"}


class Small(nn.Cell):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.symbols = nn.Embedding(40, 16)
        self.norm1 = nn.LayerNorm([16], epsilon=1e-5)
        self.query = nn.Dense(16, 16)
        self.key = nn.Dense(16, 16)
        self.value = nn.Dense(16, 16)
        self.norm2 = nn.LayerNorm([16], epsilon=1e-2 if fault == "eps" else 1e-5)
        self.fc1 = nn.Dense(16, 32)
        self.fc2 = nn.Dense(32, 16)
        self.head = nn.Dense(16, 40)

    def construct(self, tokens: Tensor) -> Tensor:
        x = self.symbols(tokens)
        y = self.norm1(x)
        scores = ops.matmul(self.query(y), self.key(y).swapaxes(-1, -2)) * (0.5 if self.fault == "scale" else 0.25)
        x = x + ops.matmul(ops.softmax(scores, -1), self.value(y))
        hidden = self.fc1(self.norm2(x))
        x = x + self.fc2(ops.gelu(hidden) if self.fault == "gelu" else ops.relu(hidden))
        return self.head(x)


def main(data: str, dump: str, level: str, fault: str = "") -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    stored = np.load(data)
    model = Small(fault)
    for parameter in model.get_parameters():
        owner, _, name = parameter.name.rpartition(".")
        value = stored[f"{owner}.{NAMES.get(name, name)}"]
        assert parameter.shape == value.shape, parameter.name
        parameter.set_data(Tensor(value))
    tokens = Tensor(stored["tokens"])
    Path(dump).mkdir(parents=True, exist_ok=True)
    config = Path(dump).with_name(Path(dump).name + "-mindspore.json")
    config.write_text(json.dumps({"task": "statistics", "level": level, "dump_path": dump, "statistics": {}}))
    debugger = PrecisionDebugger(config_path=str(config))

    def forward(ids: Tensor) -> Tensor:
        logits = model(ids)
        return ops.cross_entropy(logits.reshape(-1, 40), ids.reshape(-1))

    gradients = ms.value_and_grad(forward, None, model.trainable_params())
    debugger.start(model)
    gradients(tokens)
    debugger.stop()
    debugger.step()


if __name__ == "__main__":
    main(*sys.argv[1:])
