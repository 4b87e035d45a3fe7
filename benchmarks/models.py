"""The models for measuring overhead, written like usual training code.

This file does not import msprobe: the bare process must work without the tool. The benchmark uses the GPT; the
convolutional and the checkpointed model are for checks that results are bit-identical.
"""

from __future__ import annotations

from typing import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

VOCABULARY = 1024
WIDTH = 256
HEADS = 4
SEQUENCE = 128
BATCH = 4

Step = Callable[[], Tensor]


class Attention(nn.Module):
    """Causal self-attention with one projection for query, key and value."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        q = q.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
        k = k.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
        v = v.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).contiguous().view(batch, length, width))


class Block(nn.Module):
    """One transformer layer, normalised before each half."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ln2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    """A small language model; `checkpointed` recomputes each block during backward."""

    def __init__(self, layers: int, checkpointed: bool = False) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(SEQUENCE, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH, HEADS) for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(self.norm(x))


class ConvNet(nn.Module):
    """Convolution, BatchNorm and in-place ReLU: these break first if a tool wraps values."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
        )
        self.classifier = nn.Linear(32 * 8 * 8, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images).flatten(1))


def gpt(layers: int, checkpointed: bool = False, seed: int = 1) -> tuple[nn.Module, Step]:
    """A GPT, and a function that trains it for one step on a new random batch and returns the loss."""
    torch.manual_seed(seed)
    model = GPT(layers, checkpointed)
    batches = torch.Generator().manual_seed(seed)

    def batch() -> tuple[Tensor, Tensor]:
        tokens = torch.randint(VOCABULARY, (BATCH, SEQUENCE + 1), generator=batches)
        return tokens[:, :-1], tokens[:, 1:]

    return model, _step(model, batch)


def convnet(seed: int = 1) -> tuple[nn.Module, Step]:
    """The same for the convolutional net on 16x16 images."""
    torch.manual_seed(seed)
    model = ConvNet()
    batches = torch.Generator().manual_seed(seed)

    def batch() -> tuple[Tensor, Tensor]:
        images = torch.randn(8, 3, 16, 16, generator=batches)
        return images, torch.randint(10, (8,), generator=batches)

    return model, _step(model, batch)


def _step(model: nn.Module, batch: Callable[[], tuple[Tensor, Tensor]]) -> Step:
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> Tensor:
        inputs, targets = batch()
        optimizer.zero_grad()
        logits = model(inputs)
        loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
