"""Updates: the rule about those that become too small, on figures made by hand, and what an update is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from msprobe.pytorch import Monitor
from msprobe.watch.alarms.frame import Rows, frame_of
from msprobe.watch.alarms.history import History
from msprobe.watch.alarms.optimizer_rules import UpdateSmall
from msprobe.watch.reading.run import Run
from msprobe.watch.step_figures import StepFigures
from msprobe.watch.targets import Target

NAMES = ("first", "second", "third")


def look(small, at=80, rate=lambda step: 1e-3):
    """`small`: the parameter whose updates nearly stop at step `at`; the others follow the learning rate."""
    rows, random = Rows(), np.random.default_rng(0)
    for name in NAMES:
        for kind in ("weight", "grad", "update"):
            rows.add(Target(kind, name, 0, (4, 4)))
    rule, history, hits = UpdateSmall(1e-3), History(), []
    for step in range(120):
        found = StepFigures(len(rows.targets))
        for row, target in enumerate(rows.targets):
            ratio = 10 * rate(step) * (1 + 0.1 * random.standard_normal())
            if target.kind == "update" and target.name == small and step >= at:
                ratio *= 1e-5
            found[row] = (1 + 0.1 * random.random(), 1, 0, ratio, 0, 0, 0, np.nan, np.nan)
        frame = frame_of(step, rows, found, scalars={"lr": rate(step)})
        history.grow(len(rows.targets))
        hits += [(rows.targets[hit.row].name, hit.began) for hit in rule(frame, history)]
        history.add(step, frame.logs())
    return hits


def test_the_parameter_whose_updates_stop_is_named_with_its_step():
    assert look("second") == [("second", 80)]


def test_updates_that_follow_the_learning_rate_are_fine():
    assert look(None) == []
    assert look(None, rate=lambda step: 1e-3 * 0.9 ** max(0, step - 60)) == []


@pytest.mark.parametrize("every", [1, 2])
def test_what_a_callback_of_an_alarm_does_to_a_weight_is_no_update(tmp_path, every):
    torch.manual_seed(0)
    model = nn.Linear(4, 2, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    config = {"dump_path": str(tmp_path), "targets": ["weight", "update"], "every": every}
    monitor = Monitor(model, optimizer, config, on_alarm=lambda alarm: model.weight.data.mul_(1.5))
    moved = []
    for step in range(8):
        before = model.weight.detach().clone()
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        if step % every == 0:
            moved.append((model.weight.detach() - before).norm().item())
        monitor.step(loss=float("nan") if step == 4 else 1.0)
    monitor.close()
    curve = Run(tmp_path).ranks[0].curve("update", "weight", "norm")[1]
    assert monitor.alarms == 1
    assert curve == pytest.approx(moved, rel=1e-4)
