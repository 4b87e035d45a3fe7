"""A gradient that is only rounding in both runs, and that an optimizer scales up, is no difference. Any other gradient
of the same parameter is one, and so is a fault elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flow_runs import said
from rounded_runs import Hook, Normalised, Optimizers, Projected, attended, fused, hooked, trained
from torch import nn

from msprobe.compare import Comparison, compare


class Adam(torch.optim.Optimizer):
    """Adam, written by hand."""

    def __init__(self, parameters: object) -> None:
        super().__init__(list(parameters), {})  # type: ignore[call-overload]

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for one in self.param_groups[0]["params"]:
            state = self.state[one]
            mean, square = (state.setdefault(key, torch.zeros_like(one)) for key in ("mean", "square"))
            mean.mul_(0.9).add_(one.grad, alpha=0.1)
            square.mul_(0.95).addcmul_(one.grad, one.grad, value=0.05)
            one.sub_(mean / (square.sqrt() + 1e-10), alpha=3e-3)


OPTIMIZERS: dict[str, Optimizers] = {
    "fused": fused,
    "by hand": Adam,
    "small eps": lambda parameters: torch.optim.AdamW(parameters, lr=3e-3, eps=1e-12),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=3e-3),
}


def answer(path: Path, make: Callable[[], nn.Module], task: str = "statistics", by: str = "fused") -> Comparison:
    target = trained(path / "target", make, task, OPTIMIZERS[by])
    return compare(target, trained(path / "golden", lambda: Normalised(False), task, OPTIMIZERS[by]))


@pytest.mark.parametrize(("by", "task"), [*((by, "statistics") for by in OPTIMIZERS), ("fused", "tensor")])
def test_rounding_that_an_optimizer_scales_up_is_the_same_and_noted(tmp_path: Path, by: str, task: str) -> None:
    result = answer(tmp_path, lambda: Normalised(True), task, by)
    assert result.verdict == "same", said(result)
    notes = [note for note in result.notes if note.id == "note.rounded_gradient"]
    assert [note.args["names"] for note in notes] == [["second.bias"]]


@pytest.mark.parametrize("by", list(OPTIMIZERS))
def test_a_real_gradient_in_one_run_is_reported(tmp_path: Path, by: str) -> None:
    result = answer(tmp_path, hooked("second.bias", lambda gradient: gradient + 1e-4), by=by)
    assert result.verdict == "differs"
    assert "second" in said(result)


def test_a_real_gradient_that_is_zero_in_one_run_is_reported(tmp_path: Path) -> None:
    result = answer(tmp_path, hooked("norm.bias", lambda gradient: gradient * 0))
    assert result.verdict == "differs"
    assert "norm" in said(result)


def test_a_fault_beside_it_is_reported(tmp_path: Path) -> None:
    result = answer(tmp_path, lambda: Normalised(True, 0.11))
    assert result.verdict == "differs"
    assert "0.11" in said(result)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_elements_that_are_only_rounding_are_the_same(tmp_path: Path, task: str) -> None:
    golden = attended(tmp_path / "golden", lambda: Projected(False), task)
    result = compare(attended(tmp_path / "target", lambda: Projected(True), task), golden)
    assert result.verdict == "same", said(result)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize(
    "hook",
    [
        lambda gradient: gradient.roll(16),
        lambda gradient: gradient * torch.cat([torch.full((16,), 1.001), torch.ones(32)]),
    ],
    ids=["moved", "larger"],
)
def test_other_elements_are_reported(tmp_path: Path, task: str, hook: Hook) -> None:
    golden = attended(tmp_path / "golden", lambda: Projected(False), task)
    wrong = attended(tmp_path / "target", hooked("attention.in_proj_bias", hook, Projected), task)
    assert compare(wrong, golden).verdict == "differs"
