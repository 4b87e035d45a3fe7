"""Classes of the eighth set (benchmarks/unseen8): each harmless rewrite has a fault beside it that is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Optional

import pytest
import torch
from flow_runs import run, said, seeded, small, square
from torch import nn

from msprobe.compare import compare

LIMIT = 1e-3


def adam(eps: float) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, eps=eps)


def clip(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
    optimizer.step()


def clip_by_hand(times: float) -> Callable[[torch.optim.Optimizer, nn.Module], None]:
    def update(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        for gradient in gradients:
            gradient.mul_(times * LIMIT / (norm + 1e-6))
        optimizer.step()

    return update


def test_clipping_by_hand_does_not_hide_a_setting_of_the_optimizer(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", seeded(small), make=adam(1e-8), update=clip)
    same = compare(run(tmp_path / "same", seeded(small), make=adam(1e-8), update=clip_by_hand(1.0)), golden)
    assert same.verdict == "same"
    eps = compare(run(tmp_path / "eps", seeded(small), make=adam(1e-3), update=clip_by_hand(1.0)), golden)
    assert said(eps) == "AdamW: eps is 0.001, not 1e-08"
    wrong = compare(run(tmp_path / "wrong", seeded(small), make=adam(1e-8), update=clip_by_hand(2.0)), golden)
    assert said(wrong) == "clip_grad_norm_ is not called; the golden run calls it once"


def by_hand(rate: float) -> Callable[[torch.optim.Optimizer, nn.Module], None]:
    def update(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= rate * parameter.grad

    return update


def nothing(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """A script that forgets the step."""


def test_a_step_by_hand_is_judged_by_its_updates(tmp_path: Path) -> None:
    def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    golden = run(tmp_path / "golden", seeded(small), make=sgd)
    assert compare(run(tmp_path / "same", seeded(small), make=sgd, update=by_hand(0.1)), golden).verdict == "same"
    wrong = compare(run(tmp_path / "wrong", seeded(small), make=sgd, update=by_hand(0.2)), golden)
    effect = "the update of 0.weight differs for the same gradient: it is 2 times as large"
    assert said(wrong) == f"SGD.step is not called; the golden run calls it once; {effect}"
    assert wrong.origin is not None
    assert "in the target, Tensor.__isub__.0.forward writes it last" in wrong.origin.evidence
    forgotten = compare(run(tmp_path / "none", seeded(small), make=sgd, update=nothing), golden)
    assert said(forgotten) == "SGD.step is not called; the golden run calls it once"


class Summed(nn.Module):
    """A model with a penalty of its own, which a script adds to the loss or takes apart from it."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.body, self.dim, self.penalty = small(), dim, torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        self.penalty = y.norm(dim=self.dim).mean()
        return y


def together(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return square(model, x) + model.penalty


def apart(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = square(model, x)
    loss.backward(retain_graph=True)
    return model.penalty


def test_two_backward_passes_of_one_batch_do_not_hide_the_forward(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", seeded(lambda: Summed(-1)), together)
    assert compare(run(tmp_path / "same", seeded(lambda: Summed(-1)), apart), golden).verdict == "same"
    wrong = compare(run(tmp_path / "wrong", seeded(lambda: Summed(1)), apart), golden)
    assert "dim is 1, not -1" in said(wrong)


class WithLoss(nn.Module):
    """A model that returns its loss: a mean, or a sum divided by a number that the trainer passes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = small()

    def forward(self, x: torch.Tensor, number: Optional[int] = None) -> torch.Tensor:
        y = self.body(x)
        if number is None:
            return nn.functional.mse_loss(y, torch.zeros_like(y))
        return nn.functional.mse_loss(y, torch.zeros_like(y), reduction="sum") / number


class Trainer:
    """Passes the number, scales the loss in place, and keeps a running total for the log."""

    def __init__(self, number: int) -> None:
        self.number, self.total, self.last = number, torch.zeros(()), torch.zeros(())

    def loss(self, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        self.last = model(x, self.number)
        self.last *= 1
        return self.last / 1

    def update(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        self.total += self.last.detach()
        optimizer.step()


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_running_total_for_the_log_does_not_hide_a_setting(tmp_path: Path, task: str) -> None:
    def trained(name: str, number: int, eps: float) -> str:
        trainer = Trainer(number)
        path = run(tmp_path / name, seeded(WithLoss), trainer.loss, adam(eps), trainer.update, task=task)
        return said(compare(path, golden))

    golden = run(tmp_path / "golden", seeded(WithLoss), lambda model, x: model(x), adam(1e-8), task=task)
    assert trained("same", 64, 1e-8) == "same"
    assert trained("eps", 64, 1e-3) == "AdamW: eps is 0.001, not 1e-08"
    assert "reduction is 'sum', not 'mean'" in trained("wrong", 60, 1e-8)


def test_a_wrong_copy_beside_the_model_is_reported(tmp_path: Path) -> None:
    kept = torch.zeros(32, 16)

    def keep(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        optimizer.step()
        with torch.no_grad():
            kept.copy_(model[0].weight)

    def half(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        optimizer.step()
        with torch.no_grad():
            kept.copy_(model[0].weight * 0.5)

    golden = run(tmp_path / "golden", seeded(small), update=keep)
    assert compare(run(tmp_path / "same", seeded(small), update=keep), golden).verdict == "same"
    assert compare(run(tmp_path / "half", seeded(small), update=half), golden).verdict == "differs"
