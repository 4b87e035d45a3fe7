"""A small GPT in the style of Megatron: plain tensors, split by hand, fused QKV. With a group of one it is not split.

Every weight is made from its name, so that all layouts begin with the same numbers.
"""

from __future__ import annotations

import math
import zlib
from typing import Callable, Optional

import torch
import torch.nn.functional as F
from benchmarks.parallel.collectives import (
    ALONE,
    Copy,
    GatherSequence,
    Group,
    JoinSequence,
    Reduce,
    ScatterSequence,
    SplitSequence,
)
from torch import nn

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH = 48, 16, 4, 2, 8
HEAD = WIDTH // HEADS


def make_weight(name: str, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(shape, generator=generator) / math.sqrt(shape[-1])


def own_slice(weight: torch.Tensor, dim: int, group: Group) -> nn.Parameter:
    return nn.Parameter(weight.chunk(group.size, dim)[group.rank].clone())


class ColumnLinear(nn.Module):
    """Split along the outputs."""

    def __init__(self, name: str, inputs: int, outputs: int, group: Group, sequence: bool) -> None:
        super().__init__()
        self.group = group
        self.weight = own_slice(make_weight(f"{name}.weight", outputs, inputs), 0, group)
        self.bias = own_slice(make_weight(f"{name}.bias", outputs), 0, group)
        self.enter: Callable[..., torch.Tensor] = GatherSequence.apply if sequence else Copy.apply

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(self.enter(x, self.group), self.weight, self.bias)


class RowLinear(nn.Module):
    """Split along the inputs; the bias is added once, after the sum."""

    def __init__(self, name: str, inputs: int, outputs: int, group: Group, sequence: bool) -> None:
        super().__init__()
        self.group = group
        self.weight = own_slice(make_weight(f"{name}.weight", outputs, inputs), 1, group)
        self.bias = nn.Parameter(make_weight(f"{name}.bias", outputs))
        self.leave: Callable[..., torch.Tensor] = ScatterSequence.apply if sequence else Reduce.apply
        self.bias_on_every_rank = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.bias_on_every_rank:
            return self.leave(F.linear(x, self.weight, self.bias), self.group)
        return self.leave(F.linear(x, self.weight), self.group) + self.bias


class VocabularyEmbedding(nn.Module):
    """Split along the vocabulary: each rank looks its own words up, and the sum has them all."""

    def __init__(self, name: str, group: Group) -> None:
        super().__init__()
        self.group = group
        self.weight = own_slice(make_weight(f"{name}.weight", VOCABULARY, WIDTH), 0, group)
        self.offset = group.rank * self.weight.shape[0]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        own = ids - self.offset
        foreign = (own < 0) | (own >= self.weight.shape[0])
        found = F.embedding(own.masked_fill(foreign, 0), self.weight)
        return Reduce.apply(found.masked_fill(foreign.unsqueeze(-1), 0.0), self.group)


class Attention(nn.Module):
    """The rows of `qkv` are in the order of heads: query, key and value of one head stand together.

    `gather` joins keys, values and positions over the ranks of context parallelism."""

    def __init__(self, name: str, group: Group, sequence: bool, gather: Optional[Callable[..., torch.Tensor]]) -> None:
        super().__init__()
        self.qkv = ColumnLinear(f"{name}.qkv", WIDTH, 3 * WIDTH, group, sequence)
        self.out = RowLinear(f"{name}.out", WIDTH, WIDTH, group, sequence)
        self.gather = gather

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        mixed = self.qkv(x)
        batch, length, _ = mixed.shape
        query, key, value = mixed.view(batch, length, -1, 3, HEAD).permute(3, 0, 2, 1, 4).unbind(0)
        known = positions
        if self.gather is not None:
            key, value = self.gather(key, 2), self.gather(value, 2)
            known = self.gather(positions, 1)
        hidden = positions.unsqueeze(-1) < known.unsqueeze(-2)
        scores = query @ key.transpose(-1, -2) / math.sqrt(HEAD)
        weights = torch.softmax(scores.masked_fill(hidden.unsqueeze(1), -1e4), -1)
        return self.out((weights @ value).transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    def __init__(self, name: str, group: Group, sequence: bool) -> None:
        super().__init__()
        self.up = ColumnLinear(f"{name}.up", WIDTH, 4 * WIDTH, group, sequence)
        self.down = RowLinear(f"{name}.down", 4 * WIDTH, WIDTH, group, sequence)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, name: str, group: Group, sequence: bool, gather: Optional[Callable[..., torch.Tensor]]) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(f"{name}.attention", group, sequence, gather)
        self.mlp = Mlp(f"{name}.mlp", group, sequence)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), positions)
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """`layers` is a dictionary, so that a pipeline stage keeps the names of its own part. Logits are complete on every
    rank."""

    def __init__(
        self,
        group: Group = ALONE,
        sequence: bool = False,
        gather: Optional[Callable[..., torch.Tensor]] = None,
        first: int = 0,
        last: int = LAYERS,
        layers: int = LAYERS,
    ) -> None:
        super().__init__()
        self.group, self.sequence = group, sequence
        self.embedding = VocabularyEmbedding("embedding", group) if first == 0 else None
        self.positions = nn.Embedding(LENGTH, WIDTH) if first == 0 else None
        if self.positions is not None:
            self.positions.weight.data.copy_(make_weight("positions.weight", LENGTH, WIDTH))
        self.layers = nn.ModuleDict(
            {str(place): Block(f"layers.{place}", group, sequence, gather) for place in range(first, last)}
        )
        self.norm = nn.LayerNorm(WIDTH) if last == layers else None
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False) if last == layers else None
        if self.head is not None:
            self.head.weight.data.copy_(make_weight("head.weight", VOCABULARY, WIDTH))

    def forward(self, x: torch.Tensor, positions: Optional[torch.Tensor] = None) -> torch.Tensor:
        if positions is None:
            positions = torch.arange(LENGTH).expand(x.shape[0], -1)
        if self.embedding is not None and self.positions is not None:
            x = self.embedding(x) + self.positions(positions)
            if self.sequence:
                x = SplitSequence.apply(x, self.group)
        for block in self.layers.values():
            x = block(x, positions)
        if self.norm is not None and self.head is not None:
            x = self.norm(x)
            x = JoinSequence.apply(x, self.group) if self.sequence else x
            x = self.head(x)
        return x
