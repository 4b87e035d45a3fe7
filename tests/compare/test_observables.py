"""What no observable of a step shows is harmless: each rewrite has a fault of the same shape that is reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import pytest
import torch
from flow_runs import run, said, seeded, small
from torch import nn

from msprobe.compare import compare, comparison
from msprobe.compare.excuses import StepFacts

Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def trained(path: Path, loss: Loss, model: Callable[[], nn.Module] = small, **how: Any) -> Path:
    return run(path, seeded(model), loss, **how)


def cancelling(term: Callable[[torch.Tensor], torch.Tensor]) -> Loss:
    """A loss with a small term whose parts cancel, as the penalty of GRPO."""

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = model(x)
        return y.square().mean() + 0.01 * term(0.02 * y).mean()

    return loss


def by_exp(d: torch.Tensor) -> torch.Tensor:
    return torch.exp(d) - d - 1


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_parts_that_cancel(tmp_path: Path, task: str) -> None:
    golden = trained(tmp_path / "golden", cancelling(by_exp), task=task)
    same = trained(tmp_path / "same", cancelling(lambda d: torch.expm1(d) - d), task=task)
    assert compare(same, golden).verdict == "same"
    wrong = trained(tmp_path / "wrong", cancelling(lambda d: torch.expm1(d) - 1.03 * d), task=task)
    assert compare(wrong, golden).verdict == "differs"


Look = Callable[[Path, Path], tuple[StepFacts, set[str]]]


@pytest.fixture
def first_step(monkeypatch: pytest.MonkeyPatch) -> Look:
    """What is known about the first step of a pair, and the rows with an excuse before an origin is looked for."""

    def look(target: Path, golden: Path) -> tuple[StepFacts, set[str]]:
        seen: list[tuple[StepFacts, set[str]]] = []
        make = comparison.excuse

        def watch(groups: Any, *given: Any) -> Any:
            facts = make(groups, *given)
            seen.append((facts, {row.name for _, rows in groups for row in rows if row.excuse is not None}))
            return facts

        with monkeypatch.context() as patch:
            patch.setattr(comparison, "excuse", watch)
            compare(target, golden)
        return seen[0]

    return look


class Branch(nn.Module):
    """A branch that the result hardly shows."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.body, self.branch, self.factor = small(), nn.Linear(16, 4), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + 1e-7 * torch.tanh(self.branch(x) * self.factor)


def square(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


def test_what_fades_in_the_forward_shows_in_the_gradients(
    tmp_path: Path, first_step: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = trained(tmp_path / "golden", square, lambda: Branch(1.0))
    wrong = trained(tmp_path / "wrong", square, lambda: Branch(1.01))
    assert "Tensor.__mul__.0.forward" in said(compare(wrong, golden))
    assert "Torch.tanh.0.forward.input.0" not in first_step(wrong, golden)[1]
    monkeypatch.setattr(StepFacts, "observed", True)
    assert "Torch.tanh.0.forward.input.0" in first_step(wrong, golden)[1]


def scaled(first: float, second: float) -> Loss:
    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return (model(x).square() * first).mean() * second

    return loss


def test_factors_that_compensate(tmp_path: Path) -> None:
    golden = trained(tmp_path / "golden", scaled(1.0, 3.0))
    assert compare(trained(tmp_path / "same", scaled(0.25, 12.0)), golden).verdict == "same"
    wrong = compare(trained(tmp_path / "wrong", scaled(0.25, 12.01)), golden)
    assert wrong.verdict == "differs"


class Projections(nn.Module):
    """Query, key and value in one matrix, or in three."""

    def __init__(self, split: bool) -> None:
        super().__init__()
        qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 4)
        if split:
            self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
            for place, part in enumerate((self.q, self.k, self.v)):
                part.weight.data = qkv.weight.data[16 * place : 16 * (place + 1)].clone()
                part.bias.data = qkv.bias.data[16 * place : 16 * (place + 1)].clone()
        else:
            self.qkv = qkv

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).split(16, -1) if hasattr(self, "qkv") else (self.q(x), self.k(x), self.v(x))
        return self.out((q @ k.transpose(-1, -2)).softmax(-1) @ v)


class Momentum:
    """An optimizer of the script that is no optimizer of torch."""

    def __init__(self, slow: Optional[str] = None) -> None:
        self.slow, self.kept = slow, {}

    def __call__(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None
                kept = self.kept.setdefault(name, torch.zeros_like(parameter))
                kept.mul_(0.9).add_(parameter.grad)
                parameter.add_(kept, alpha=-0.05 if name == self.slow else -0.1)


def test_an_optimizer_by_hand_of_parameters_that_are_packed_differently(tmp_path: Path) -> None:
    golden = trained(tmp_path / "golden", square, lambda: Projections(False), update=Momentum())
    same = trained(tmp_path / "same", square, lambda: Projections(True), update=Momentum())
    assert compare(same, golden).verdict == "same"
    wrong = trained(tmp_path / "wrong", square, lambda: Projections(True), update=Momentum("v.weight"))
    assert compare(wrong, golden).verdict == "differs"


def floored(largest: Callable[[torch.Tensor], torch.Tensor]) -> Loss:
    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(torch.maximum(x, largest(x) - 2.0)).square().mean()

    return loss


def test_a_second_result_that_is_not_used(tmp_path: Path) -> None:
    golden = trained(tmp_path / "golden", floored(lambda x: x.amax((1, 2), keepdim=True)))
    same = floored(lambda x: x.flatten(1).max(1)[0].view(-1, 1, 1))
    assert compare(trained(tmp_path / "same", same), golden).verdict == "same"
    wrong = floored(lambda x: x.flatten(0).max(0)[0].view(1, 1, 1))
    assert compare(trained(tmp_path / "wrong", wrong), golden).verdict == "differs"


def noised(level: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Loss:
    table, times = torch.linspace(0.9, 0.1, 20), torch.tensor([3, 11])

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x * level(table, times)).square().mean()

    return loss


def test_a_table_that_is_computed_before_it_is_read(tmp_path: Path) -> None:
    golden = trained(tmp_path / "golden", noised(lambda table, t: table[t].view(-1, 1, 1).sqrt()))
    same = noised(lambda table, t: table.sqrt()[t].view(-1, 1, 1))
    assert compare(trained(tmp_path / "same", same), golden).verdict == "same"
    wrong = noised(lambda table, t: table.sqrt()[t + 1].view(-1, 1, 1))
    assert compare(trained(tmp_path / "wrong", wrong), golden).verdict == "differs"


def test_each_graph_has_the_calls_of_its_own_run(tmp_path: Path, first_step: Look) -> None:
    whole = trained(tmp_path / "whole", lambda model, x: nn.functional.mse_loss(model(x), x[..., :4]))
    by_hand = trained(tmp_path / "by_hand", lambda model, x: (model(x) - x[..., :4]).pow(2).mean())
    for target, golden in ((whole, by_hand), (by_hand, whole)):
        facts, _ = first_step(target, golden)
        steps = {side: set(facts.sides[place].graph.steps) for place, side in enumerate((target, golden))}
        assert "Functional.mse_loss.0.forward" in steps[whole] - steps[by_hand]
        assert "Tensor.pow.0.forward" in steps[by_hand] - steps[whole]


def hooked(factor: float, late: bool) -> Callable[[], nn.Module]:
    """A hook scales the gradient of one weight before or after it is accumulated."""

    def make() -> nn.Module:
        model = small()
        weight = next(model.parameters())

        def scale(parameter: torch.Tensor) -> None:
            assert parameter.grad is not None
            parameter.grad.mul_(factor)

        if late:
            weight.register_post_accumulate_grad_hook(scale)
        else:
            weight.register_hook(lambda gradient: gradient * factor)
        return model

    return make


def test_a_gradient_that_a_hook_changes_before_the_optimizer_gets_it(tmp_path: Path) -> None:
    golden = trained(tmp_path / "golden", square, hooked(0.5, late=False))
    assert compare(trained(tmp_path / "same", square, hooked(0.5, late=True)), golden).verdict == "same"
    wrong = compare(trained(tmp_path / "wrong", square, hooked(0.25, late=True)), golden)
    assert wrong.verdict == "differs"


class Adapted(nn.Module):
    """An adapter, or a dictionary of adapters."""

    def __init__(self, named: bool) -> None:
        super().__init__()
        self.body, down, up = nn.Linear(16, 4), nn.Linear(16, 2, bias=False), nn.Linear(2, 4, bias=False)
        self.down = nn.ModuleDict({"default": down}) if named else down
        self.up = nn.ModuleDict({"default": up}) if named else up

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        down, up = (one["default"] if isinstance(one, nn.ModuleDict) else one for one in (self.down, self.up))
        return self.body(x) + up(down(x))


def half_of_the_last(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    optimizer.step()
    with torch.no_grad():
        next(value for name, value in model.named_parameters() if value.shape == (4, 2)).mul_(0.5)


def test_parameters_under_different_names(tmp_path: Path) -> None:
    golden = trained(tmp_path / "golden", square, lambda: Adapted(False))
    assert compare(trained(tmp_path / "same", square, lambda: Adapted(True)), golden).verdict == "same"
    wrong = trained(tmp_path / "wrong", square, lambda: Adapted(True), update=half_of_the_last)
    assert compare(wrong, golden).verdict != "same"


class Counting(nn.Module):
    """Has buffers that no loss and no gradient shows."""

    def __init__(self, momentum: float = 0.1, factor: float = 1.0) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 32), nn.BatchNorm1d(8, momentum=momentum), nn.Linear(32, 4)
        self.factor = factor
        self.register_buffer("seen", torch.zeros(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += self.factor * x.detach().mean((0, 1))
        out: torch.Tensor = self.last(torch.relu(self.norm(self.first(x))))
        return out


def mean_square(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = model(x).square().mean()
    return out


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_gradients_that_agree_excuse_no_buffer(tmp_path: Path, level: str) -> None:
    golden = trained(tmp_path / "golden", mean_square, Counting, level=level)
    assert compare(trained(tmp_path / "same", mean_square, Counting, level=level), golden).verdict == "same"
    for name, made in (("momentum", {"momentum": 0.2}), ("factor", {"factor": 2.0})):
        wrong = trained(tmp_path / name, mean_square, lambda made=made: Counting(**made), level=level)  # type: ignore[misc]
        assert compare(wrong, golden).verdict == "differs", name


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_gradients_that_agree_excuse_no_number_for_the_log(tmp_path: Path, level: str) -> None:
    def logged(heat: float) -> Loss:
        def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
            out = model(x)
            with torch.no_grad():
                (out / heat).softmax(-1).mean(0).max()
            return out.square().mean()

        return loss

    golden = trained(tmp_path / "golden", logged(1.0), level=level)
    assert compare(trained(tmp_path / "same", logged(1.0), level=level), golden).verdict == "same"
    wrong = compare(trained(tmp_path / "wrong", logged(1.02), level=level), golden)
    assert "other is 1.02, not 1.0" in said(wrong)
