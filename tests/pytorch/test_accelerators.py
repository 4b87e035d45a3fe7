"""The path for accelerators, run on the CPU as if it were one: there is none on the machines of the tests."""

from __future__ import annotations

import json
import math

import pytest
import torch

from msprobe.pytorch import PrecisionDebugger
from msprobe.pytorch.tensors import accelerators


@pytest.fixture
def cpu_is_an_accelerator(monkeypatch):
    monkeypatch.setattr(accelerators, "device_kinds", lambda: frozenset({"cpu"}))


def collect(path, run):
    debugger = PrecisionDebugger(task="statistics", dump_path=str(path), level="L1")
    debugger.start()
    run()
    debugger.stop()
    debugger.step()
    return json.loads((path / "step0" / "rank" / "dump.json").read_text())["data"]


def train():
    torch.manual_seed(0)
    weight = torch.randn(8, 8, requires_grad=True)
    hidden = torch.nn.functional.linear(torch.randn(4, 8), weight)
    loss = (hidden.half().relu().float() * 3).sum() + torch.tensor([1, 2, 3]).add(1).sum()
    loss.backward()


def numbers(value):
    if isinstance(value, dict):
        if "Max" in value:
            yield value["dtype"], value["shape"], value["Max"], value["Min"], value["Mean"], value["Norm"]
        for member in value.values():
            yield from numbers(member)
    elif isinstance(value, list):
        for member in value:
            yield from numbers(member)


def test_deferred_statistics_equal_those_read_at_once(tmp_path, monkeypatch):
    direct = collect(tmp_path / "direct", train)
    monkeypatch.setattr(accelerators, "device_kinds", lambda: frozenset({"cpu"}))
    deferred = collect(tmp_path / "deferred", train)
    assert list(direct) == list(deferred)
    assert len(list(numbers(direct))) > 10
    for one, other in zip(numbers(direct), numbers(deferred)):
        assert one[:2] == other[:2]
        for a, b in zip(one[2:], other[2:]):
            assert a == b or math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-6)


def test_values_are_those_at_the_time_of_the_call_not_of_the_flush(tmp_path, cpu_is_an_accelerator):
    def run():
        x = torch.full((4,), 2.0)
        torch.exp(x)
        x.fill_(100.0)
        torch.abs(x)

    data = collect(tmp_path / "dump", run)
    assert data["Torch.exp.0.forward"]["input_args"][0]["Max"] == 2.0
    assert data["Torch.abs.0.forward"]["input_args"][0]["Max"] == 100.0


def test_nothing_is_left_unresolved_over_many_flushes(tmp_path, cpu_is_an_accelerator, monkeypatch):
    monkeypatch.setattr(accelerators, "FLUSH", 8)

    def run():
        x = torch.ones(3)
        for _ in range(50):
            x = torch.exp(x * 0)
        torch.exp(torch.tensor([float("nan"), 1.0]))
        torch.exp(torch.empty(0))

    data = collect(tmp_path / "dump", run)
    assert len([name for name in data if name.startswith("Torch.exp")]) == 52
    assert math.isnan(data["Torch.exp.50.forward"]["output"][0]["Mean"])
    assert data["Torch.exp.51.forward"]["output"][0]["Max"] is None
