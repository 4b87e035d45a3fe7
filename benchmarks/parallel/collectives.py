"""The collectives of hand-written tensor and sequence parallelism, with their backward passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Group:
    """The ranks that split one model; a group of one does nothing."""

    ranks: Optional[Any] = None
    rank: int = 0
    size: int = 1


ALONE = Group()


class Copy(torch.autograd.Function):
    """The same input on every rank: the backward sums the gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return add_up(grad, ctx.group), None


class Reduce(torch.autograd.Function):
    """Partial results: the forward sums them."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        return add_up(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None


class GatherSequence(torch.autograd.Function):
    """Parts of the sequence: the forward joins them, the backward sums and splits."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, dim: int = 1) -> torch.Tensor:
        ctx.group, ctx.dim = group, dim
        return join(x, group, dim)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return own_part(add_up(grad, ctx.group), ctx.group, ctx.dim), None, None


class ScatterSequence(torch.autograd.Function):
    """Partial results of the complete sequence: the forward sums and splits, the backward joins."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return own_part(add_up(x, group), group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return join(grad, ctx.group), None


class SplitSequence(torch.autograd.Function):
    """The complete sequence on every rank: the forward takes this rank's part, the backward joins."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return own_part(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return join(grad, ctx.group), None


class JoinSequence(torch.autograd.Function):
    """Parts of the sequence, for code that every rank runs on all of it: the backward takes this rank's part."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return join(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return own_part(grad, ctx.group), None


def add_up(x: torch.Tensor, group: Group) -> torch.Tensor:
    if group.size == 1:
        return x
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group.ranks)
    return total


def join(x: torch.Tensor, group: Group, dim: int = 1) -> torch.Tensor:
    if group.size == 1:
        return x
    parts = [torch.empty_like(x) for _ in range(group.size)]
    dist.all_gather(parts, x.contiguous(), group=group.ranks)
    return torch.cat(parts, dim)


def own_part(x: torch.Tensor, group: Group, dim: int = 1) -> torch.Tensor:
    return x if group.size == 1 else x.chunk(group.size, dim)[group.rank].contiguous()
