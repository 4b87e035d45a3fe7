"""A fault beside a harmless rewrite: the rewrite alone is "same", and the fault is named, not the rewrite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flow_runs import run, said, seeded, small
from torch import nn
from written import call, saved, write_dump

from msprobe.compare import compare

IDS = torch.arange(16).view(2, 8) % 4
VALID = (torch.arange(16).view(2, 8) % 3 > 0).float()


def gathered(logits: torch.Tensor) -> torch.Tensor:
    return logits.log_softmax(-1).gather(-1, IDS[..., None]).squeeze(-1)


def rewritten(logits: torch.Tensor) -> torch.Tensor:
    return logits.gather(-1, IDS[..., None]).squeeze(-1) - logits.logsumexp(-1)


def preference(
    log_probability: Callable[[torch.Tensor], torch.Tensor], beta: float
) -> Callable[[nn.Module, torch.Tensor], torch.Tensor]:
    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        each = (log_probability(model(x)) * VALID).sum(-1)
        return -nn.functional.logsigmoid(each * beta).mean()

    return loss


def test_selecting_before_a_softmax_does_not_hide_a_factor_after_it(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", seeded(small), preference(gathered, 0.5))
    assert compare(run(tmp_path / "same", seeded(small), preference(rewritten, 0.5)), golden).verdict == "same"
    wrong = compare(run(tmp_path / "wrong", seeded(small), preference(rewritten, 0.1)), golden)
    assert said(wrong) == "Tensor.__mul__.1.forward was called with a different argument: other is 0.1, not 0.5"


def at_once(rewards: torch.Tensor) -> torch.Tensor:
    return ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).view(-1, 1)


def in_a_loop(rewards: torch.Tensor) -> torch.Tensor:
    return torch.cat([(group - group.mean()) / (group.std() + 1e-4) for group in rewards])[:, None]


def advantage(
    normalised: Callable[[torch.Tensor], torch.Tensor], each_first: bool
) -> Callable[[nn.Module, torch.Tensor], torch.Tensor]:
    rewards = torch.tensor([[1.2, 0.1, -0.3, 0.4], [-0.9, 0.2, 0.6, -0.4]])

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        each = model(x).mean(-1).view(8, 2) * normalised(rewards)
        valid = VALID.view(8, 2)
        if each_first:
            return ((each * valid).sum(1) / (valid.sum(1) + 1)).mean()
        return (each * valid).sum() / (valid.sum() + 1)

    return loss


def test_a_loop_over_groups_does_not_hide_a_mean_over_all(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", seeded(small), advantage(at_once, True))
    assert compare(run(tmp_path / "same", seeded(small), advantage(in_a_loop, True)), golden).verdict == "same"
    wrong = compare(run(tmp_path / "wrong", seeded(small), advantage(in_a_loop, False)), golden)
    assert wrong.origin is not None
    assert wrong.origin.name.startswith("Tensor.sum."), said(wrong)


class Gated(nn.Module):
    """A gate of two projections, in two modules or by their weights."""

    def __init__(self, by_weights: bool, bias: bool) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 4)
        self.by_weights, self.bias = by_weights, bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.by_weights:
            return self.out(self.first(x) * torch.sigmoid(self.second(x)))
        weight = torch.cat([self.first.weight, self.second.weight])
        both = x @ weight.t()
        if self.bias:
            both = both + torch.cat([self.first.bias, self.second.bias])
        return self.out(nn.functional.glu(both, dim=-1))


def test_a_value_that_both_runs_compute_in_their_own_way_is_named(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", seeded(lambda: Gated(False, True)))
    assert compare(run(tmp_path / "same", seeded(lambda: Gated(True, True))), golden).verdict == "same"
    wrong = compare(run(tmp_path / "wrong", seeded(lambda: Gated(True, False))), golden)
    assert said(wrong) == (
        "Functional.linear.0.forward received a different input (input.0), which the target computes by "
        "Torch.cat.0.forward to Functional.glu.0.forward and the golden run by "
        "Functional.linear.0.forward to Tensor.__mul__.0.forward; no call of the target uses "
        "Functional.linear.0.forward.input.2, Functional.linear.1.forward.input.2"
    )


def quantiles(clamped: bool, swapped: bool = False) -> Callable[[nn.Module, torch.Tensor], torch.Tensor]:
    levels = torch.tensor([0.1, 0.3, 0.6, 0.95])

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        error = model(x)
        above, below = (1 - levels, levels) if swapped else (levels, 1 - levels)
        if clamped:
            return (above * error.clamp(min=0) + below * (-error).clamp(min=0)).mean()
        return torch.maximum(levels * error, (levels - 1) * error).mean()

    return loss


def test_the_value_where_two_ways_meet_is_named(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", seeded(small), quantiles(False))
    assert compare(run(tmp_path / "same", seeded(small), quantiles(True)), golden).verdict == "same"
    wrong = compare(run(tmp_path / "wrong", seeded(small), quantiles(True, swapped=True)), golden)
    assert "Tensor.mean.0.forward received a different input.0" in said(wrong)


def faint(path: Path, wrong: bool) -> Path:
    """A product, a softmax that is almost uniform, and a sum in which its difference can no longer be seen."""
    numbers = np.random.default_rng(0)
    factor, given, rest = (numbers.standard_normal((8, 16)).astype(np.float32) for _ in range(3))
    factor = factor * np.float32(1.5) if wrong else factor
    product = given * factor
    uniform = np.float32(1) + np.float32(1e-5) * product
    total = rest * np.float32(3e1) + uniform

    def item(name: str, array: np.ndarray) -> dict[str, Any]:
        known = {"Max": array.max(), "Min": array.min(), "Mean": array.mean(), "Norm": np.linalg.norm(array)}
        return {**saved(path / "step0" / "rank", name, array), **{key: float(value) for key, value in known.items()}}

    data = {
        "Torch.mul.0.forward": call(item("a", given), item("b", factor), output=item("c", product)),
        "Torch.softmax.0.forward": call(item("d", product), output=item("e", uniform)),
        "Torch.add.0.forward": call(item("f", rest), item("g", uniform), output=item("h", total)),
    }
    return write_dump(path, data, task="tensor")


def test_what_becomes_small_behind_a_difference_without_an_excuse_is_not_excused(tmp_path: Path) -> None:
    golden = faint(tmp_path / "golden", False)
    assert compare(faint(tmp_path / "same", False), golden).verdict == "same"
    wrong = compare(faint(tmp_path / "wrong", True), golden)
    assert wrong.origin is not None
    assert wrong.origin.name == "Torch.mul.0.forward", said(wrong)


def test_a_copy_that_is_kept_for_the_log_is_no_difference(tmp_path: Path) -> None:
    """Not so if `accept_copies` (compare/flow/settle.py) accepts nothing."""
    kept: list[torch.Tensor] = []

    def copied(factor: float) -> Callable[[torch.optim.Optimizer, nn.Module], None]:
        def update(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
            optimizer.step()
            for parameter in model.parameters():
                kept.append(parameter.detach().clone() if factor == 1.0 else parameter.detach().mul(factor))

        return update

    golden = run(tmp_path / "golden", seeded(small))
    assert compare(run(tmp_path / "same", seeded(small), update=copied(1.0)), golden).verdict == "same"
    assert compare(run(tmp_path / "other", seeded(small), update=copied(1.5)), golden).verdict != "same"
