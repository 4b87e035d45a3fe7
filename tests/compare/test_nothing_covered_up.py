"""Faults that a harmless reason must not cover: each was called the same once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from msprobe.compare import compare
from msprobe.compare.origin.optimizer_steps import innermost_steps
from msprobe.compare.origin.training import same_total_norm, training_differences
from msprobe.pytorch import PrecisionDebugger


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(torch.tanh(self.norm(self.first(x))))
        return result


class Step:
    """One step of training; a fault changes one of its parts."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net, self.scale = Net(), 1.0
        self.x = torch.linspace(-1, 1, 48).view(6, 8)
        self.order: Callable[[list[nn.Parameter]], list[nn.Parameter]] = list
        self.before_backward: Callable[[Tensor], Tensor] = lambda loss: loss
        self.after_backward: Callable[[], object] = lambda: None
        self.updates = True
        self.sign = 1.0

    def record(self, path: Path, level: str) -> Path:
        optimizer = torch.optim.Adam(self.order(list(self.net.parameters())), 0.01, foreach=False)
        debugger = PrecisionDebugger(dump_path=str(path), level=level, task="statistics")
        for _ in range(2):
            debugger.start(self.net)
            loss = self.before_backward(self.net(self.x).square().mean())
            loss.backward(torch.tensor(self.scale))
            self.after_backward()
            if self.updates:
                optimizer.step()
            debugger.stop()
            debugger.step()
            for state in optimizer.state.values():
                state["exp_avg"].mul_(self.sign)
            optimizer.zero_grad()
        return path


def answer(tmp_path: Path, level: str, fault: Callable[[Step], object], both: Callable[[Step], object]) -> str:
    golden, target = Step(), Step()
    for one in (golden, target):
        both(one)
    fault(target)
    return compare(target.record(tmp_path / "target", level), golden.record(tmp_path / "golden", level)).verdict


def nothing(step: Step) -> None:
    pass


def log_without_updates(step: Step) -> None:
    step.updates = False
    step.after_backward = lambda: torch.mean(step.x)


def use_statistics_twice(step: Step) -> None:
    def again(loss: Tensor) -> Tensor:
        step.net.norm(step.net.first(step.x))
        return loss

    step.before_backward = again


def change(**given: Any) -> Callable[[Step], object]:
    return lambda step: [setattr(step, name, value) for name, value in given.items()]


@pytest.mark.parametrize(
    ("level", "fault", "both"),
    [
        ("L1", change(scale=2.0), log_without_updates),
        ("L0", use_statistics_twice, nothing),
        ("L1", change(before_backward=lambda loss: torch.add(loss, 100.0)), nothing),
        ("L1", change(order=lambda ps: ps[::-1], sign=-1.0), nothing),
        ("mix", change(order=lambda ps: ps[::-1], sign=-1.0), nothing),
    ],
)
def test_a_fault_is_not_called_the_same(tmp_path: Path, level: str, fault: Any, both: Any) -> None:
    assert answer(tmp_path, level, fault, both) != "same"


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_another_order_of_the_parameters_alone_is_the_same(tmp_path: Path, level: str) -> None:
    assert answer(tmp_path, level, change(order=lambda ps: ps[::-1]), nothing) == "same"


def test_norms_that_are_not_finite_say_nothing() -> None:
    def clipped(norm: Any) -> list[dict[str, Any]]:
        return [{"event": "clip_grad_norm_end", "total_norm": norm}]

    assert same_total_norm(clipped(2.0), clipped(2.0)) is True
    assert same_total_norm(clipped(2.0), clipped(3.0)) is False
    for norm in (float("inf"), float("nan"), 0.0, None):
        assert same_total_norm(clipped(norm), clipped(norm)) is None


def test_a_dump_that_was_cut_off_has_all_its_steps() -> None:
    steps = [{"event": "optimizer_step", "optimizer": number} for number in range(2)]
    assert innermost_steps(steps) == steps


@pytest.mark.parametrize(("names", "is_note"), [(["a", "c"], True), (["b", "d"], False)])
def test_parameters_without_a_gradient_are_a_note_if_the_others_are_the_same(names: list[str], is_note: bool) -> None:
    def steps(*names: str) -> list[dict[str, Any]]:
        group = {"names": list(names), "parameters": len(names), "elements": 10 * len(names), "gradients": 2}
        return [{"event": "optimizer_step", "type": "Adam", "groups": [group]}, {"event": "optimizer_step_end"}]

    (found,) = training_differences(steps(*names), steps("a", "c", "e"))
    assert found.note_only is is_note
