"""Pairs that compute the same in a different way are the same; the faults beside them are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from written import tensor, write_dump

from msprobe.compare import Comparison, compare
from msprobe.pytorch import PrecisionDebugger

Step = Callable[[nn.Module, Tensor, int], None]


def recorded(path: Path, model: nn.Module, step: Step, steps: int = 2) -> Path:
    debugger = PrecisionDebugger(dump_path=str(path), level="mix", task="statistics")
    for number in range(steps):
        torch.manual_seed(10 + number)
        data = torch.randn(4, 8, 4, 4)
        debugger.start(model)
        step(model, data, number)
        debugger.stop()
        debugger.step()
    return path


def answer(tmp_path: Path, build: Callable[[bool], nn.Module], make: Callable[[bool, nn.Module], Step]) -> Comparison:
    """`True` is the run in question, `False` the golden one."""
    paths = []
    for other in (True, False):
        torch.manual_seed(0)
        model = build(other)
        paths.append(recorded(tmp_path / ("target" if other else "golden"), model, make(other, model)))
    return compare(*paths)


def train(other: bool, model: nn.Module) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(model: nn.Module, data: Tensor, number: int) -> None:
        model(data).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def scaled(x: Tensor, factor: float) -> Tensor:
    """Out of sight of msprobe."""
    return torch.from_numpy(x.detach().float().numpy() * np.float32(factor)).to(x.dtype)


class Off(torch.autograd.Function):
    """silu with a result, or a gradient, that is five percent too large, as of a faulty kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: float, backward: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = backward
        return scaled(F.silu(x), forward)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return scaled(gradient * s * (1 + x * (1 - s)), ctx.factor), None, None


class Act(nn.Module):
    def __init__(self, forward: float = 1.0, backward: float = 1.0) -> None:
        super().__init__()
        self.factors = (forward, backward)

    def forward(self, x: Tensor) -> Tensor:
        return Off.apply(x, *self.factors)


def convolutions(act: nn.Module) -> nn.Module:
    """Few elements a channel and many kinks: bf16 turns the gradients of single elements over."""
    layers: list[nn.Module] = [nn.Conv2d(8, 8, 1), act]
    for _ in range(6):
        layers += [
            nn.Conv2d(8, 8, 3, 2, 1) if len(layers) < 5 else nn.Conv2d(8, 8, 3, 1, 1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers)


def autocast(other: bool, model: nn.Module) -> Step:
    usual = train(other, model)

    def step(model: nn.Module, data: Tensor, number: int) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=other):
            usual(model, data, number)

    return step


def test_a_port_to_bf16_blames_no_call(tmp_path: Path) -> None:
    result = answer(tmp_path, lambda other: convolutions(Act()), autocast)
    assert result.origin is None
    assert any("bfloat16, the golden run in float32" in note for note in result.notes)


@pytest.mark.parametrize(("forward", "backward"), [(1.05, 1.0), (1.0, 1.06)])
def test_a_wrong_kernel_of_a_port_to_bf16_is_found(tmp_path: Path, forward: float, backward: float) -> None:
    def build(other: bool) -> nn.Module:
        act = Act(forward, backward) if other else Act()
        return nn.Sequential(nn.Flatten(), nn.Linear(128, 256), nn.Linear(256, 256), act, nn.Linear(256, 64))

    origin = answer(tmp_path, build, autocast).origin
    assert origin is not None
    assert origin.module == "Module.3.Act"
    assert origin.direction == ("forward" if forward != 1.0 else "backward")


class Softmax(nn.Module):
    def __init__(self, with_maximum: bool) -> None:
        super().__init__()
        self.with_maximum = with_maximum
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        x = torch.exp(x - x.max()) if self.with_maximum else torch.exp(x - 0.5)
        return x / x.sum(-1, keepdim=True)


def test_a_gradient_that_is_nothing_but_rounding_makes_nothing_else(tmp_path: Path) -> None:
    result = answer(tmp_path, lambda other: nn.Sequential(Softmax(not other), nn.Linear(4, 4), Softmax(True)), train)
    assert result.verdict == "same", result.origin


def with_total(reset: bool, added: float = 1.0) -> Callable[[bool, nn.Module], Step]:
    def make(other: bool, model: nn.Module) -> Step:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        total = torch.zeros(())

        def step(model: nn.Module, data: Tensor, number: int) -> None:
            nonlocal total
            loss = model(data).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if other and reset:
                total = torch.zeros(())
            total += loss.detach() * (added if other else 1.0)

        return step

    return make


def test_a_running_total_that_one_run_starts_anew_is_no_difference(tmp_path: Path) -> None:
    result = answer(tmp_path, lambda other: nn.Linear(4, 2), with_total(reset=True))
    assert result.verdict == "same", result.origin
    assert result.counts["not_compared"] > 0


def test_a_running_total_of_other_numbers_is_one(tmp_path: Path) -> None:
    result = answer(tmp_path, lambda other: nn.Linear(4, 2), with_total(reset=False, added=1.01))
    assert result.verdict == "differs"


class Shifted(nn.Module):
    """The gradient of `shift` is 0 but for rounding: softmax does not see it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)
        self.shift = nn.Parameter(torch.full((1, 1), 0.3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.log_softmax(self.layer(x.flatten(0, 2)) + self.shift, dim=-1)


def in_parts(other: bool, model: nn.Module) -> Step:
    def step(model: nn.Module, data: Tensor, number: int) -> None:
        parts = 2 if other else 1
        for part in data.chunk(parts):
            (-model(part)[:, 0].mean() / parts).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                length = parameter.grad.norm()
                parameter.sub_(parameter.grad / length * (length > 0) * 1e-3)
                parameter.grad = None

    return step


def test_what_an_optimizer_makes_of_rounding_is_rounding(tmp_path: Path) -> None:
    result = answer(tmp_path, lambda other: Shifted(), in_parts)
    assert result.verdict == "same", result.origin
    assert any("gradient accumulation" in note for note in result.notes)


class Experts(nn.Module):
    """All rows at once, or expert by expert."""

    def __init__(self, in_a_loop: bool) -> None:
        super().__init__()
        self.in_a_loop = in_a_loop
        self.weight = nn.Parameter(torch.randn(2, 4, 4))
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        if not self.in_a_loop:
            return torch.cat([self.act(torch.stack([x[0] @ self.weight[0], x[1] @ self.weight[1]]))[i] for i in (0, 1)])
        return torch.cat([self.act(x[0] @ self.weight[0]), self.act(x[1] @ self.weight[1])])


class Routed(nn.Module):
    def __init__(self, in_a_loop: bool) -> None:
        super().__init__()
        self.layer, self.experts = nn.Linear(4, 4), Experts(in_a_loop)

    def forward(self, x: Tensor) -> Tensor:
        return self.experts(self.layer(x.reshape(2, -1, 4)))


def test_experts_in_a_loop_are_the_same(tmp_path: Path) -> None:
    assert answer(tmp_path, Routed, train).verdict == "same"


@pytest.mark.parametrize(("off", "verdict"), [(1e-5, "same"), (1e-2, "differs")])
def test_squares_of_a_wide_range_are_no_mask(tmp_path: Path, off: float, verdict: str) -> None:
    squares = {"Min": 2.7e-11, "Mean": 945.5, "Norm": 91157.2}
    for side, factor in (("t", 1.0 + off), ("g", 1.0)):
        value = tensor(1.0, [18, 24], **{**squares, "Max": 30375.0 * factor**0.01, "Min": 2.7e-11 * factor})
        if verdict == "differs":
            value["Norm"] *= factor
        write_dump(
            tmp_path / side, {"Tensor.addcmul_.0.forward": {"input_args": [], "input_kwargs": {}, "output": [value]}}
        )
    assert compare(tmp_path / "t", tmp_path / "g").verdict == verdict
