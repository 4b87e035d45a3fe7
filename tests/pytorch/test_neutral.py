"""Losses, gradients and weights are the same to the last bit with the tool and without it."""

from __future__ import annotations

import functools

import pytest
import torch
from collecting import Dump, collecting, configured
from models import MODELS, train
from torch import nn

from msprobe.pytorch import PrecisionDebugger

bare = functools.lru_cache(maxsize=None)(train)
TASKS = {
    "statistics": ("statistics", {}),
    "md5": ("statistics", {"summary_mode": "md5"}),
    "xor": ("statistics", {"summary_mode": "xor"}),
    "tensor": ("tensor", {}),
    "structure": ("structure", None),
}


CASES = [
    (kind, level, task)
    for kind in MODELS
    for level in ("L0", "L1", "mix", "debug")
    for task in TASKS
    if (level, task) != ("debug", "structure") and (kind != "reentrant" or (level, task) == ("mix", "tensor"))
]


@pytest.mark.parametrize(("kind", "level", "task"), CASES)
def test_five_steps_are_bit_identical(tmp_path, kind, level, task):
    name, section = TASKS[task]
    debugger = PrecisionDebugger(configured(tmp_path, level=level, task=name, section=section))
    found = train(kind, debugger)
    assert found == bare(kind)
    for step in range(5):
        dump = Dump(tmp_path / "dump", step)
        assert not dump.errors
        assert level == "debug" or dump.data


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_fused_optimizer_between_start_and_stop_changes_nothing(tmp_path, level):
    debugger = PrecisionDebugger(configured(tmp_path, level=level))
    assert train("gpt", debugger, fused=True) == train("gpt", fused=True)
    assert not any(Dump(tmp_path / "dump", step).errors for step in range(5))


@pytest.mark.parametrize("task", ["statistics", "overflow_check"])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_tensors_can_be_swapped(tmp_path, level, task):
    """torch refuses this for a tensor with weak references, and msprobe has some."""
    model, swap = nn.Sequential(nn.Linear(2, 2)), torch.utils.swap_tensors
    batch = torch.ones(1, 2)
    with collecting(tmp_path, model, level=level, task=task):
        with torch.no_grad():
            model(batch)
            model[0].weight.mul_(2.0)
        torch.utils.swap_tensors(model[0].weight, nn.Parameter(torch.zeros(2, 2)))
        torch.utils.swap_tensors(batch, torch.zeros(1, 2))
    assert not model[0].weight.any()
    assert not batch.any()
    assert torch.utils.swap_tensors is swap
