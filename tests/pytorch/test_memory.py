"""No tensor and no graph lives longer than without the tool, and memory does not grow with the steps."""

from __future__ import annotations

import gc
import os
import tracemalloc
import weakref
from pathlib import Path

import pytest
import torch
from collecting import collecting, configured
from torch import nn

import msprobe
from msprobe.dump.writing import worker
from msprobe.pytorch import PrecisionDebugger

LEVELS = ["L0", "L1", "mix"]


def live_tensors():
    gc.collect()
    return sum(issubclass(type(value), torch.Tensor) for value in gc.get_objects())


@pytest.mark.parametrize("task", ["statistics", "tensor", "overflow_check"])
@pytest.mark.parametrize("level", LEVELS)
def test_activations_die_when_the_script_lets_them_go(tmp_path, level, task):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.Tanh())
    gc.collect()
    gc.disable()
    try:
        with collecting(tmp_path, model, level=level, task=task):
            hidden = model[0](torch.randn(2, 4))
            rest = model[3](model[2](model[1](hidden)))
            loss = rest.sum()
            watched = [weakref.ref(tensor) for tensor in (hidden, rest, loss)]
            loss.backward()
            del hidden, rest, loss
            assert [reference() for reference in watched] == [None] * 3
    finally:
        gc.enable()


@pytest.mark.parametrize("level", LEVELS)
def test_a_graph_that_is_never_used_dies_with_its_output(tmp_path, level):
    alive = weakref.WeakSet()

    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            mark = torch.ones(1)
            ctx.mark = mark
            alive.add(mark)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad

    class Layer(nn.Module):
        def forward(self, x):
            return torch.tanh(Kept.apply(x))

    model = nn.Sequential(Layer())
    gc.disable()
    try:
        with collecting(tmp_path, model, level=level):
            out = model(torch.ones(2, requires_grad=True))
            assert len(alive) == 1
            del out
            assert len(alive) == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("level", LEVELS)
def test_memory_does_not_grow_with_the_number_of_steps(tmp_path, level):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    debugger = PrecisionDebugger(configured(tmp_path, level=level))

    def steps(count):
        for _ in range(count):
            debugger.start(model)
            optimizer.zero_grad()
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            debugger.stop()
            debugger.step()

    def measure():
        """Count the live tensors and take the least memory of ours in three looks, each with an empty queue of the
        writer: on a busy machine it has steps to write."""
        looks = []
        for _ in range(3):
            steps(1)
            for writing in worker._workers:
                writing.run(lambda: None)
            tensors = live_tensors()
            taken = tracemalloc.take_snapshot().filter_traces([ours])
            looks.append((sum(statistic.size for statistic in taken.statistics("filename")), taken))
        return tensors, *min(looks, key=lambda look: look[0])

    ours = tracemalloc.Filter(True, f"{Path(msprobe.__file__).parent}{os.sep}*")
    measured = []
    steps(5)
    tracemalloc.start()
    try:
        for count in (15, 57):  # one line calls both: a new line would be a new stack to keep
            steps(count)
            measured.append(measure())
    finally:
        tracemalloc.stop()
    (before, early, early_lines), (after, late, late_lines) = measured
    assert before == after
    assert late - early < 60 * 500, [str(line) for line in late_lines.compare_to(early_lines, "lineno")[:10]]


def test_a_step_of_many_calls_keeps_no_tensor(tmp_path):
    with collecting(tmp_path):
        torch.relu(torch.ones(100))
        before = live_tensors()
        for _ in range(500):
            torch.relu(torch.ones(100))
        assert live_tensors() <= before + 2
