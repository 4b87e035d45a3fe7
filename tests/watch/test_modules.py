"""Inputs and outputs of modules, and their gradients: a tensor that several modules share is measured once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from msprobe.pytorch import Monitor
from msprobe.pytorch.watch import tensors
from msprobe.watch.reading.run import Run


class Net(nn.Module):
    """One layer is called twice; two branches are added, so that both get the same gradient."""

    def __init__(self):
        super().__init__()
        self.twice = nn.Linear(8, 8)
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)
        self.seen = {}

    def forward(self, x):
        second = self.twice(self.twice(x))
        left, right = self.left(second), self.right(second)
        both = left + right
        self.seen = {"second": second, "left": left, "right": right, "both": both}
        for tensor in self.seen.values():
            tensor.retain_grad()
        return both


def norms_of(path, kind):
    run = Run(path)
    rank = run.ranks[0]
    found = {one.target.name: rank.curve(kind, one.target.name, "norm")[1].tolist() for one in rank.series()}
    run.close()
    return {name: values for name, values in found.items() if values}


def norm(tensor):
    return pytest.approx([float(tensor.detach().norm())], rel=1e-5)


def test_each_module_has_the_figures_of_its_own_tensors(tmp_path, monkeypatch):
    measured = []
    read = tensors.Gauge.read
    monkeypatch.setattr(tensors.Gauge, "read", lambda self, *given: (measured.append(given[0]), read(self, *given)))
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    monitor = Monitor(model, optimizer, {"dump_path": str(tmp_path), "targets": "all"})
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    seen = dict(model.seen)
    monitor.step(loss=loss)
    monitor.close()
    inputs, outputs = norms_of(tmp_path, "input"), norms_of(tmp_path, "output")
    assert inputs["left"] == inputs["right"] == norm(seen["second"])  # not of both calls together
    assert outputs["left"] == norm(seen["left"])
    gradients = norms_of(tmp_path, "output_grad")
    assert gradients["left"] == gradients["right"] == gradients[""] == norm(seen["both"].grad)
    assert norms_of(tmp_path, "input_grad")["left"] == norm(seen["second"].grad)
    same = [one for one in measured if one.shape == (4, 8) and torch.equal(one, seen["both"].grad)]
    assert len(same) == 1


def test_an_evaluation_in_inference_mode_does_not_stop_the_monitor(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    monitor = Monitor(model, optimizer, {"dump_path": str(tmp_path), "targets": "all"})
    for _ in range(3):
        with torch.inference_mode():
            model(torch.randn(2, 4))
        loss = model(torch.randn(2, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.step(loss=loss)
    monitor.close()
    assert len(norms_of(tmp_path, "output")["0"]) == 3


class Again(nn.Module):
    """The first result of a module that is called twice is the input of another."""

    def __init__(self):
        super().__init__()
        self.act, self.last = nn.ReLU(), nn.Linear(8, 8)

    def forward(self, x):
        first, second = self.act(x), self.act(100 * x)
        return self.last(first) + second


def test_an_input_has_the_figures_of_its_own_tensor_only(tmp_path):
    torch.manual_seed(0)
    model, x = Again(), torch.randn(4, 8)
    monitor = Monitor(model, None, {"dump_path": str(tmp_path), "targets": ["input", "output"]})
    model(x)
    monitor.step()
    monitor.close()
    assert norms_of(tmp_path, "input")["last"] == norm(torch.relu(x))
