"""Small runs that are recorded at level mix, for tests of the flow of values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
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


def run(path: Path, model: nn.Module, loss: Loss = square, make: Any = adam, update: Step = step_only) -> Path:
    torch.set_num_threads(1)
    optimizer = make(model.parameters())
    debugger = PrecisionDebugger(dump_path=str(path), task="statistics", level="mix")
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
