"""The demo for MindSpore: the same mistake as in demo.py, found in the same way.

    python examples/mindspore_demo.py

The demo trains a small language model twice in dynamic-graph mode. In the second run one LayerNorm has
epsilon 1e-3 instead of 1e-5. The demo dumps and compares both runs; the comparison must name that LayerNorm.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from msprobe.cli import main as msprobe
from msprobe.mindspore import PrecisionDebugger, seed_all

TEXT = "the quick brown fox jumps over the lazy dog. " * 40
OUTPUT = Path("mindspore_demo_output")
STEPS = 3


class Block(nn.Cell):
    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm([width], epsilon=1e-5)
        self.query, self.key, self.value = (nn.Dense(width, width) for _ in range(3))
        self.norm2 = nn.LayerNorm([width], epsilon=epsilon)
        self.mlp = nn.SequentialCell(nn.Dense(width, 4 * width), nn.GELU(), nn.Dense(4 * width, width))

    def construct(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        scores = ops.matmul(self.query(y), self.key(y).swapaxes(-1, -2)) / x.shape[-1] ** 0.5
        x = x + ops.matmul(ops.softmax(scores, -1), self.value(y))
        return x + self.mlp(self.norm2(x))


class LanguageModel(nn.Cell):
    def __init__(self, symbols: int, epsilon_of_block_1: float, width: int = 64) -> None:
        super().__init__()
        self.symbols = nn.Embedding(symbols, width)
        self.blocks = nn.SequentialCell(Block(width, 1e-5), Block(width, epsilon_of_block_1))
        self.head = nn.Dense(width, symbols)

    def construct(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.symbols(tokens)))


def train(dump_path: Path, epsilon_of_block_1: float) -> list[float]:
    """An ordinary training loop. msprobe needs only the lines with `debugger`."""
    seed_all(1234)
    alphabet = sorted(set(TEXT))
    letters = np.array([alphabet.index(letter) for letter in TEXT])
    data = np.stack([letters[start : start + 45] for start in range(0, len(letters) - 45, 7)]).astype(np.int32)
    model = LanguageModel(len(alphabet), epsilon_of_block_1)
    optimizer = nn.AdamWeightDecay(model.trainable_params(), learning_rate=1e-3)

    def forward(tokens: Tensor, targets: Tensor) -> Tensor:
        return ops.cross_entropy(model(tokens).reshape(-1, len(alphabet)), targets.reshape(-1))

    differentiate = ms.value_and_grad(forward, None, optimizer.parameters)
    debugger = PrecisionDebugger(dump_path=str(dump_path), task="statistics", level="mix")
    losses = []
    for step in range(STEPS):
        debugger.start(model)
        batch = data[8 * step : 8 * step + 8]
        loss, gradients = differentiate(Tensor(batch[:, :-1]), Tensor(batch[:, 1:]))
        optimizer(gradients)
        debugger.stop()
        debugger.step()
        losses.append(float(loss.asnumpy()))
    return losses


def main() -> int:
    shutil.rmtree(OUTPUT, ignore_errors=True)
    golden, target = OUTPUT / "golden", OUTPUT / "target"
    print("\n=== Training twice with the same seed and data; the second model has one wrong epsilon\n", flush=True)
    right, wrong = train(golden, 1e-5), train(target, 1e-3)
    print("step   loss, right   loss, wrong")
    for step, (one, other) in enumerate(zip(right, wrong)):
        print(f"{step:4d}   {one:11.6f}   {other:11.6f}")
    print(f"\n=== msprobe compare {target} {golden}\n", flush=True)
    return 0 if msprobe(["compare", str(target), str(golden)]) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
