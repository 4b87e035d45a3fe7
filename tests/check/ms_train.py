"""MindSpore training runs for the tests of the check, each a process of its own.

python ms_train.py planted CONFIG           the calls of ms_wrong, with its faults
python ms_train.py right CONFIG             the same calls without them
python ms_train.py mlp|conv|transformer CONFIG [float16|bfloat16]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("GLOG_v", "4")
sys.path.insert(0, str(Path(__file__).parent))

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops

from msprobe.mindspore import PrecisionDebugger

_random = np.random.RandomState(2)


class Mlp(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Dense(12, 32), nn.Dense(32, 5)
        self.act = nn.GELU()

    def construct(self, x: Any) -> Any:
        h = self.act(self.up(x))
        h = mint.sigmoid(h) * h + ops.tanh(h)
        return self.down(h)


class Conv(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, pad_mode="same"), nn.Conv2d(8, 8, 3, pad_mode="valid", stride=2)
        self.norm, self.pool, self.head = nn.BatchNorm2d(8), nn.MaxPool2d(2, 2), nn.Dense(8 * 2 * 2, 5)

    def construct(self, x: Any) -> Any:
        x = self.pool(ops.relu(self.norm(self.first(x))))
        x = ops.silu(self.second(x))
        return self.head(x.reshape(x.shape[0], -1))


class Transformer(nn.Cell):
    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.tokens = nn.Embedding(20, width)
        self.ln1, self.ln2 = nn.LayerNorm((width,)), nn.LayerNorm((width,))
        self.qkv, self.proj = nn.Dense(width, 3 * width), nn.Dense(width, width)
        self.up, self.down, self.head = nn.Dense(width, 32), nn.Dense(32, width), nn.Dense(width, 5)

    def construct(self, tokens: Any) -> Any:
        x = self.tokens(tokens)
        batch, length, width = x.shape
        parts = mint.chunk(self.qkv(self.ln1(x)), 3, -1)
        q, k, v = (mint.transpose(t.reshape(batch, length, self.heads, -1), 1, 2) for t in parts)
        scores = mint.matmul(q, mint.transpose(k, 2, 3)) / float((width // self.heads) ** 0.5)
        weights = mint.nn.functional.softmax(scores, dim=-1)
        mixed = mint.transpose(mint.matmul(weights, v), 1, 2).reshape(batch, length, width)
        x = x + self.proj(mixed)
        x = x + self.down(ops.gelu(self.up(self.ln2(x))))
        return self.head(mint.mean(x, dim=1))


def batch(kind: str, dtype: Any) -> Any:
    if kind == "transformer":
        return Tensor(_random.randint(0, 20, (3, 6)), ms.int32)
    shape = {"mlp": (6, 12), "conv": (4, 3, 12, 12)}[kind]
    return Tensor(_random.randn(*shape).astype(np.float32)).astype(dtype)


def train(kind: str, config: str, dtype: Any, steps: int = 1) -> None:
    ms.set_seed(1)
    net = {"mlp": Mlp, "conv": Conv, "transformer": Transformer}[kind]().to_float(dtype)
    net.set_train()
    for parameter in net.get_parameters():
        parameter.set_dtype(dtype)
    debugger = PrecisionDebugger(config)

    def loss(x: Any) -> Any:
        answer = net(x)
        target = Tensor(np.arange(len(answer)) % 5, ms.int32)
        return ops.cross_entropy(answer, target)

    step = ms.value_and_grad(loss, None, net.trainable_params())
    for _ in range(steps):
        debugger.start(net)
        step(batch(kind, dtype))
        debugger.stop()
        debugger.step()


def main() -> None:
    kind, config = sys.argv[1:3]
    if kind in ("planted", "right"):
        import ms_wrong

        if kind == "right":
            ms_wrong.take_out()
        debugger = PrecisionDebugger(config)
        debugger.start()
        ms_wrong.steps()
        debugger.stop()
        debugger.step()
        print(*sorted(ms_wrong.FORWARD))
        print(*sorted(ms_wrong.BACKWARD))
        return
    train(kind, config, ms.float32, int(os.environ.get("STEPS", "1")))


if __name__ == "__main__":
    main()
