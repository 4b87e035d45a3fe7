"""Rules about all gradients together, about first moments that start anew, and about one expert of a stack."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from msprobe.pytorch import Monitor
from msprobe.watch.reading.run import Run

AT, STEPS = 60, 90


class Experts(nn.Module):
    """A stack of matrices, each used by every fourth sample."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 32)
        self.stack = nn.Parameter(torch.randn(4, 32, 32) / 6)
        self.last = nn.Linear(32, 1)
        self.replaced = {}

    def forward(self, x):
        x = torch.tanh(self.first(x))
        chosen = [self.replaced.get(number % 4, number % 4) for number in range(len(x))]
        return self.last(torch.einsum("bi,bij->bj", x, self.stack[chosen]))


def train(path, plant=lambda model, optimizer, step: None, make=torch.optim.Adam, rate=1e-3, noise=1.0):
    """Returns (step, rule, target) of the alarms. The plant acts at each step from AT on."""
    torch.manual_seed(0)
    model = Experts()
    optimizer = make(model.parameters(), rate)
    targets = ["weight", "grad", "state", "update"]
    monitor = Monitor(model, optimizer, {"dump_path": str(path), "targets": targets})
    for step in range(STEPS):
        x = torch.randn(32, 8)
        loss = (model(x) - x.sum(1, keepdim=True) - noise * torch.randn(32, 1)).square().mean()
        optimizer.zero_grad()
        ((plant(model, optimizer, step) or 1.0) * loss if step >= AT else loss).backward()
        optimizer.step()
        monitor.step(loss=loss)
    monitor.close()
    return [(alarm.step, alarm.rule, alarm.target) for alarm in Run(path).alarms()]


def reset(model, optimizer, step):
    if step == AT:
        for state in optimizer.state.values():
            state["exp_avg" if "exp_avg" in state else "momentum_buffer"].zero_()


@pytest.mark.parametrize("make", [torch.optim.Adam, lambda p, rate: torch.optim.SGD(p, rate, momentum=0.9)])
def test_first_moments_that_start_anew_are_named(tmp_path, make):
    alarms = train(tmp_path, reset, make)
    assert {(step, rule) for step, rule, _ in alarms} == {(AT, "state_decay")}
    assert {target.partition("/")[2] for _, _, target in alarms} == {"first.weight", "stack", "last.weight"}


def test_one_gradient_that_outweighs_all_before_it_is_no_reset(tmp_path):
    alarms = train(tmp_path, lambda model, optimizer, step: 1e5 if step == AT else 1.0)
    assert "state_decay" not in {rule for _, rule, _ in alarms}
    assert (AT, "spike", "grad/stack") in alarms


def test_all_gradients_that_fall_at_once_are_named(tmp_path):
    assert train(tmp_path, lambda model, optimizer, step: 1 / 1024)[0] == (AT, "vanishing", "grad/*")


def test_one_high_gradient_is_no_fall(tmp_path):
    alarms = train(tmp_path, lambda model, optimizer, step: 1e3 if step == AT else 1.0)
    assert "vanishing" not in {rule for _, rule, _ in alarms}


def test_an_expert_that_is_no_longer_used_is_named(tmp_path):
    alarms = train(tmp_path, lambda model, optimizer, step: model.replaced.update({2: 3}))
    assert alarms == [(AT + 1, "dead", "grad/stack")]  # the plant acts after the forward pass


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 1e-3), (0.0, 2e-2)], ids=["noise", "fast"])
def test_without_a_plant_there_is_no_alarm(tmp_path, noise, rate):
    assert train(tmp_path, rate=rate, noise=noise) == []
