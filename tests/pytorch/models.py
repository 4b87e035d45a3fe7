"""Small models that are trained with and without the tool; the results must not differ by a bit."""

from __future__ import annotations

from typing import Any, Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * width, width))

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, 2, -1).transpose(1, 2) for t in self.qkv(self.ln1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, reentrant: Any = None, width: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.tokens, self.positions = nn.Embedding(32, width), nn.Embedding(8, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Any) -> Any:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return F.linear(self.norm(x), self.tokens.weight)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
        )
        self.classifier = nn.Linear(8 * 2 * 2, 5)

    def forward(self, images: Any) -> Any:
        return self.classifier(self.features(images).flatten(1))


def _tokens(random: Any) -> Any:
    drawn = torch.randint(32, (2, 9), generator=random)
    return drawn[:, :-1], drawn[:, 1:]


def _images(random: Any) -> Any:
    return torch.randn(4, 3, 8, 8, generator=random), torch.randint(5, (4,), generator=random)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], Any]]] = {
    "gpt": (GPT, _tokens),
    "convnet": (ConvNet, _images),
    "checkpointed": (lambda: GPT(reentrant=False), _tokens),
    "reentrant": (lambda: GPT(reentrant=True), _tokens),
}


def train(kind: str, debugger: Any = None, steps: int = 5, fused: bool = False) -> list[Any]:
    """Losses, last gradients and weights, as bytes."""
    make, batch = MODELS[kind]
    torch.manual_seed(3)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
    random = torch.Generator().manual_seed(4)
    found = []
    for _ in range(steps):
        if debugger is not None:
            debugger.start(model)
        inputs, targets = batch(random)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        loss.backward()
        optimizer.step()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        found.append(loss.detach().numpy().tobytes())
    for parameter in model.parameters():
        found.append(parameter.grad.numpy().tobytes())
        found.append(parameter.detach().numpy().tobytes())
    return found
