"""Small runs that are recorded at level mix, for tests of the flow of values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.compare import Comparison
from msprobe.pytorch import PrecisionDebugger

Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]
Step = Callable[[torch.optim.Optimizer, nn.Module], None]


def batch(step: int) -> torch.Tensor:
    return torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(step))


def square(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def step_only(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    optimizer.step()


def run(
    path: Path,
    model: nn.Module,
    loss: Loss = square,
    make: Any = adam,
    update: Step = step_only,
    level: str = "mix",
    task: str = "statistics",
) -> Path:
    torch.set_num_threads(1)
    optimizer = make(model.parameters())
    debugger = PrecisionDebugger(dump_path=str(path), task=task, level=level)
    for step in range(2):
        debugger.start(model)
        loss(model, batch(step)).backward()
        update(optimizer, model)
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()
    return path


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))


def said(result: Comparison) -> str:
    return result.origin.sentence if result.origin is not None else result.verdict


class Mine(torch.optim.SGD):
    """An optimizer of the user that does what SGD does, but for a factor."""

    factor = 1.0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for place, parameter in enumerate(group["params"]):
                state = self.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))
                state.mul_(0.9).add_(parameter.grad)
                parameter.add_(state, alpha=-group["lr"] * (self.factor if place == 2 else 1.0))


class Doubled(Mine):
    factor = 2.0


class Block(nn.Module):
    def __init__(self, rewritten: bool, approximate: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.up, self.down = (nn.Linear(16, 16) for _ in range(5))
        self.norm, self.rewritten, self.approximate = nn.LayerNorm(16), rewritten, approximate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        scores = (q * 0.25) @ k.transpose(-1, -2) if self.rewritten else (q @ k.transpose(-1, -2)) * 0.25
        x = x + scores.softmax(-1) @ v
        return x + self.down(F.gelu(self.up(self.norm(x)), approximate=self.approximate))


class Tied(nn.Module):
    def __init__(self, tied: str) -> None:
        super().__init__()
        self.tied, self.embed = tied, nn.Linear(16, 16, bias=False)
        if tied in ("module", "copied"):
            self.head = nn.Linear(16, 16, bias=False)
            self.head.weight = self.embed.weight if tied == "module" else nn.Parameter(self.embed.weight.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.embed(x))
        if self.tied in ("module", "copied"):
            return self.head(y)
        return F.linear(y, self.embed.weight.detach() if self.tied == "detached" else self.embed.weight)
