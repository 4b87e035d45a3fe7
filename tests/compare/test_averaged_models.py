"""A moving average of the model, evaluated in the step that updates it: its weights follow from the step."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from flow_runs import adam, batch, said, seeded, square
from torch import nn

from msprobe.compare import compare
from msprobe.pytorch import PrecisionDebugger


def normalised(eps: float = 1e-5) -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32, eps=eps), nn.GELU(), nn.Linear(32, 4))


def train(
    path: Path, level: str, eps: float = 1e-5, decay: float = 0.9, shift: float = 0.0, hidden: bool = False
) -> Path:
    """`shift` moves a weight of the average before training. `hidden`: no recorded call reads or writes the average."""
    torch.set_num_threads(1)
    model = seeded(lambda: normalised(eps))
    average = copy.deepcopy(model).requires_grad_(False)
    average[1].eps = 1e-5
    average[0].weight += shift
    optimizer = adam(model.parameters())
    debugger = PrecisionDebugger(dump_path=str(path), task="statistics", level=level)
    for step in range(2):
        debugger.start(model=[model, average])
        square(model, batch(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            if hidden:
                torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)
            else:
                for slow, fast in zip(average.parameters(), model.parameters()):
                    slow.mul_(decay).add_(fast, alpha=1 - decay)
                average(batch(step))
        debugger.stop()
        debugger.step()
    return path


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_fault_of_the_model_is_named_not_the_average_of_its_weights(tmp_path: Path, level: str) -> None:
    golden, target = train(tmp_path / "golden", level), train(tmp_path / "target", level, eps=0.1)
    found = compare(target, golden).origin
    assert found is not None
    assert found.module == "Module.0.1.LayerNorm", found.sentence
    assert compare(train(tmp_path / "again", level), golden).verdict == "same"


def test_a_wrong_factor_of_the_average_is_named(tmp_path: Path) -> None:
    golden, target = train(tmp_path / "golden", "mix"), train(tmp_path / "target", "mix", decay=0.8)
    assert said(compare(target, golden)).startswith("Tensor.mul_.12.forward was called with a different argument")


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_an_average_that_begins_with_different_weights_is_named(tmp_path: Path, level: str) -> None:
    golden, target = train(tmp_path / "golden", level), train(tmp_path / "target", level, shift=0.1)
    assert "weight of Module.1.0.Linear differs" in said(compare(target, golden))


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_an_average_that_no_recorded_call_reads_is_a_result_of_the_step(tmp_path: Path, level: str) -> None:
    golden = train(tmp_path / "golden", level, hidden=True)
    target = train(tmp_path / "target", level, decay=0.8, hidden=True)
    assert said(compare(target, golden)).startswith("parameter 1.0.weight is different after the step")
    assert compare(train(tmp_path / "again", level, hidden=True), golden).verdict == "same"
    fault = said(compare(train(tmp_path / "fault", level, eps=0.1, hidden=True), golden))
    assert "Module.0.1.LayerNorm" in fault
