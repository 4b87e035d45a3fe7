"""A gradient that is the sum of a steady part and of one that scatters widely, as that of a tied embedding."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from msprobe.pytorch import Monitor
from msprobe.watch.reading.run import Run

AT, STEPS = 160, 170
EARLIER = 90


class Tied(nn.Module):
    """`tied` gets a steady gradient and that of `places`, as an embedding that is also the head."""

    def __init__(self):
        super().__init__()
        self.tied = nn.Parameter(torch.randn(8, 8))
        self.places = nn.Parameter(torch.randn(8, 8))

    def forward(self, steady, wide):
        return (self.tied * steady).sum() + ((self.tied + self.places) * wide).sum()


def train(path, heights, factor=1.0):
    """The alarms. The steady part falls after EARLIER. `heights` has the size of the other part at some steps; `factor`
    is that of the loss."""
    torch.manual_seed(0)
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    monitor = Monitor(model, optimizer, {"dump_path": str(path), "targets": ["grad"]})
    for step in range(STEPS):
        size = heights.get(step, 0.02 * 10 ** (0.5 * float(torch.randn(()).clamp(-1.5, 1.5))))
        steady = 3.0 if step <= EARLIER else 1.0
        loss = model(steady + 0.1 * torch.randn(8, 8), size * torch.ones(8, 8))
        optimizer.zero_grad()
        ((factor if step == AT else 1.0) * loss).backward()
        optimizer.step()
        monitor.step()
    monitor.close()
    return [(alarm.step, alarm.rule, alarm.target) for alarm in Run(path).alarms()]


def test_the_jump_of_a_part_that_jumps_often_is_no_spike(tmp_path):
    assert train(tmp_path, {EARLIER: 25.0, AT: 20.0}) == []


@pytest.mark.parametrize("heights", [{AT: 20.0}, {EARLIER: 2.0, AT: 20.0}])
def test_a_jump_as_no_gradient_has_made_before_is_a_spike(tmp_path, heights):
    assert train(tmp_path, heights) == [(AT, "spike", "grad/tied")]


def test_a_loss_that_is_too_large_is_a_spike_beside_a_gradient_that_scatters(tmp_path):
    assert (AT, "spike", "grad/tied") in train(tmp_path, {EARLIER: 25.0}, factor=100.0)
