"""`make demo`: trains a small language model twice, the second time with a fault, and finds the fault with msprobe.

The second model has a mistake: one LayerNorm of the second block has eps 1e-3 instead of 1e-5. Both losses look normal.
The demo dumps both runs, shows and compares them; the comparison must name that LayerNorm.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from msprobe.cli import main as msprobe
from msprobe.pytorch import PrecisionDebugger, seed_all

TEXT = "the quick brown fox jumps over the lazy dog. " * 40
OUTPUT = Path("demo_output")
STEPS = 3


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, eps: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class LanguageModel(nn.Module):
    def __init__(self, symbols: int, eps_of_block_1: float, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.symbols = nn.Embedding(symbols, width)
        self.blocks = nn.ModuleList([Block(width, heads, 1e-5), Block(width, heads, eps_of_block_1)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.symbols(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def train(dump_path: Path, eps_of_block_1: float) -> list[float]:
    """An ordinary training loop. msprobe needs only the lines with `debugger`."""
    seed_all(1234)
    alphabet = sorted(set(TEXT))
    data = torch.tensor([alphabet.index(letter) for letter in TEXT]).unfold(0, 45, 7)
    model = LanguageModel(len(alphabet), eps_of_block_1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    debugger = PrecisionDebugger(dump_path=str(dump_path), task="statistics", level="mix")
    losses = []
    for step in range(STEPS):
        debugger.start(model)
        batch = data[8 * step : 8 * step + 8]
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()
        losses.append(loss.item())
    return losses


def title(text: str) -> None:
    print(f"\n=== {text}\n", flush=True)


def main() -> int:
    shutil.rmtree(OUTPUT, ignore_errors=True)
    golden, target = OUTPUT / "golden", OUTPUT / "target"
    title("Training twice with the same seed and data; the second model has one wrong eps")
    right, wrong = train(golden, 1e-5), train(target, 1e-3)
    print("step   loss, right   loss, wrong")
    for step, (one, other) in enumerate(zip(right, wrong)):
        print(f"{step:4d}   {one:11.6f}   {other:11.6f}")
    for dump in (golden, target):
        title(f"msprobe show {dump}")
        msprobe(["show", str(dump)])
    report = OUTPUT / "report.html"
    title(f"msprobe compare {target} {golden} --html {report}")
    return 0 if msprobe(["compare", str(target), str(golden), "--html", str(report)]) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
