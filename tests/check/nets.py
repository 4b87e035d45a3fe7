"""Five small models in any float type, each one training step under the debugger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger


class Gpt(nn.Module):
    def __init__(self, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.tokens = nn.Embedding(64, width)
        self.ln1, self.ln2, self.ln3 = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, tokens: Any) -> Any:
        x = self.tokens(tokens)
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.ln1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        x = x + self.down(F.dropout(F.gelu(self.up(self.ln2(x))), 0.1))
        return F.linear(self.ln3(x), self.tokens.weight)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, groups=2), nn.GroupNorm(2, 8), nn.SiLU(), nn.AdaptiveAvgPool2d(2),
        )  # fmt: skip
        self.head = nn.Linear(32, 5)

    def forward(self, images: Any) -> Any:
        return self.head(self.body(images).flatten(1))


class HandMade(nn.Module):
    """Attention and normalisation spelled out, as many training scripts have it."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.gate, self.up, self.down = nn.Linear(width, 48), nn.Linear(width, 48), nn.Linear(48, width)

    def forward(self, x: Any) -> Any:
        h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.gain
        scores = torch.matmul(self.q(h), self.k(h).transpose(-1, -2)) / h.shape[-1] ** 0.5
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = torch.softmax(scores.masked_fill(mask, float("-inf")), dim=-1)
        x = x + weights @ self.v(h)
        return (x + self.down(F.silu(self.gate(x)) * self.up(x))).mean(1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(12, 16, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        return self.head(torch.tanh(self.lstm(x)[0][:, -1]))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        return F.log_softmax(self.head(self.layer(x).amax(1)), dim=-1)


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any, Any], Any]]] = {
    "gpt": (Gpt, lambda r, t: torch.randint(64, (2, 16), generator=r)),
    "convnet": (ConvNet, lambda r, t: torch.randn(4, 3, 12, 12, generator=r).to(t)),
    "handmade": (HandMade, lambda r, t: torch.randn(3, 10, 24, generator=r).to(t)),
    "recurrent": (Recurrent, lambda r, t: torch.randn(3, 6, 12, generator=r).to(t)),
    "encoder": (Encoder, lambda r, t: torch.randn(3, 10, 16, generator=r).to(t)),
}


def configured(path: Path, task: str, **section: Any) -> str:
    path.mkdir(parents=True, exist_ok=True)
    file = path / "config.json"
    content = {"task": task, "level": "L1", "dump_path": str(path / "dump"), task: section}
    file.write_text(json.dumps(content))
    return str(file)


def train(path: Path, kind: str, dtype: Any = torch.float32, task: str = "tensor", steps: int = 1) -> Path:
    """Trains under the debugger; returns the dump's directory."""
    make, batch = NETS[kind]
    torch.manual_seed(1)
    model = make().to(dtype)
    random = torch.Generator().manual_seed(2)
    debugger = PrecisionDebugger(configured(path, task))
    for _ in range(steps):
        debugger.start(model)
        answer = model(batch(random, dtype)).flatten(0, -2)
        F.cross_entropy(answer, torch.arange(len(answer)) % answer.shape[-1]).backward()
        debugger.stop()
        debugger.step()
    return path / "dump"
