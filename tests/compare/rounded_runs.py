"""Runs of a model with a gradient that is only rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from flow_runs import batch, run, seeded, square
from torch import nn

Optimizers = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
Hook = Callable[[torch.Tensor], torch.Tensor]


class Normalised(nn.Module):
    """The true gradient of `second.bias` is zero: the normalisation after it takes its mean away. Two ways to write it,
    that differ by rounding."""

    def __init__(self, rewritten: bool, factor: float = 0.1) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(16, 24), nn.Linear(24, 16), nn.Linear(16, 4)
        self.norm, self.rewritten, self.factor = nn.BatchNorm1d(16), rewritten, factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(0, 1)
        y = self.second(torch.tanh(self.first(x)))
        return self.last(self.norm(torch.add(x, y, alpha=self.factor) if self.rewritten else x + y * self.factor))


class Projected(nn.Module):
    """The true gradient of the keys, a third of `attention.in_proj_bias`, is zero: a softmax does not see a number that
    is added to all scores."""

    def __init__(self, rewritten: bool) -> None:
        super().__init__()
        self.attention, self.last, self.rewritten = nn.MultiheadAttention(16, 4), nn.Linear(16, 4), rewritten

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.attention(x, x, x, need_weights=self.rewritten)[0])


def attended(path: Path, make: Callable[[], nn.Module], task: str = "statistics") -> Path:
    return run(path, seeded(make), make=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3), task=task)


def hooked(name: str, hook: Hook, model_class: Callable[[bool], nn.Module] = Normalised) -> Callable[[], nn.Module]:
    """A hook changes the gradient of one parameter."""

    def make() -> nn.Module:
        model = model_class(True)
        model.get_parameter(name).register_hook(hook)
        return model

    return make


def fused(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-3, fused=True)


def trained(
    path: Path, make: Callable[[], nn.Module], task: str = "statistics", optimizers: Optimizers = fused
) -> Path:
    """The optimizer receives the mean gradients of two ranks, as from DistributedDataParallel."""
    found = of_two_ranks(make, optimizers)

    def update(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        give(model, found.pop(0))
        optimizer.step()

    return run(path, seeded(make), make=optimizers, update=update, task=task)


def of_two_ranks(make: Callable[[], nn.Module], optimizers: Optimizers) -> list[list[torch.Tensor]]:
    """The mean gradients of two ranks, for each step."""
    model, found = seeded(make), []
    optimizer = optimizers(model.parameters())
    for step in range(2):
        losses = [square(model, batch(step + place)) for place in (0, 10)]
        ours, theirs = (torch.autograd.grad(loss, list(model.parameters())) for loss in losses)
        found.append([(one + other) / 2 for one, other in zip(ours, theirs)])
        give(model, found[-1])
        optimizer.step()
    return found


def give(model: nn.Module, gradients: list[torch.Tensor]) -> None:
    for parameter, gradient in zip(model.parameters(), gradients):
        parameter.grad = gradient.clone()
