"""Gradients that are not set to zero are named at the first step that adds to them. Usual ways to empty them pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from msprobe.pytorch import Monitor
from msprobe.watch.reading.run import Run

STEPS = 14


def alarms_of(path):
    run = Run(path)
    found = [(one.step, one.rule, one.target) for one in run.alarms()]
    run.close()
    return found


def never(model, optimizer):
    pass


def to_none(model, optimizer):
    optimizer.zero_grad()


def in_place(model, optimizer):
    optimizer.zero_grad(set_to_none=False)


def through_data(model, optimizer):
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.data.zero_()


def train(path, empty, parts=1, before_backward=True, broken_at=STEPS, every=1):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    monitor = Monitor(model, optimizer, {"dump_path": str(path), "every": every})
    for step in range(STEPS):
        for part in range(parts):
            loss = model(torch.randn(6, 8)).square().mean()
            if part == 0 and before_backward and step < broken_at:
                empty(model, optimizer)
            loss.backward()
        optimizer.step()
        if not before_backward and step < broken_at:
            empty(model, optimizer)
        monitor.step(loss=loss)
    monitor.close()
    return alarms_of(path)


@pytest.mark.parametrize("before_backward", [True, False])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("empty", [to_none, in_place, through_data])
def test_gradients_that_are_emptied_are_fine(empty, parts, before_backward, tmp_path):
    assert train(tmp_path, empty, parts, before_backward) == []


@pytest.mark.parametrize("parts", [1, 3])
def test_a_missing_zero_grad_is_named_at_the_second_step(parts, tmp_path):
    assert train(tmp_path, never, parts) == [(1, "stale", "grad/2.bias")]


def test_a_zero_grad_that_is_no_longer_called_is_named_at_its_step(tmp_path):
    assert train(tmp_path, to_none, broken_at=5) == [(5, "stale", "grad/2.bias")]


def test_a_missing_zero_grad_is_named_when_only_some_steps_are_watched(tmp_path):
    assert train(tmp_path, never, every=2) == [(2, "stale", "grad/2.bias")]


def test_a_step_of_the_monitor_for_each_part_of_a_batch_is_fine(tmp_path):
    """Only second parts are watched, and find the gradient of the first."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    monitor = Monitor(model, optimizer, {"dump_path": str(tmp_path), "start": 1, "every": 2})
    for part in range(2 * STEPS):
        loss = model(torch.randn(6, 8)).square().mean()
        loss.backward()
        if part % 2:
            optimizer.step()
            optimizer.zero_grad()
        monitor.step(loss=loss)
    monitor.close()
    assert alarms_of(tmp_path) == []


def test_a_critic_whose_gradients_are_emptied_before_its_own_pass_is_fine(tmp_path):
    torch.manual_seed(0)
    maker, critic = nn.Linear(4, 8), nn.Linear(8, 1)
    optimizers = [torch.optim.SGD(part.parameters(), 1e-3) for part in (maker, critic)]
    monitor = Monitor(nn.ModuleList([maker, critic]), optimizers, {"dump_path": str(tmp_path)})
    for _ in range(STEPS):
        optimizers[1].zero_grad()
        critic(maker(torch.randn(6, 4)).detach()).square().mean().backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        loss = -critic(maker(torch.randn(6, 4))).mean()  # adds to the gradients of the critic
        loss.backward()
        optimizers[0].step()
        monitor.step(loss=loss)
    monitor.close()
    assert alarms_of(tmp_path) == []
