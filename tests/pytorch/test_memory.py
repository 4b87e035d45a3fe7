"""No tensor and no graph lives longer than without the tool, and memory does not grow with the steps."""

from __future__ import annotations

import gc
import os
import tracemalloc
import weakref
from pathlib import Path
from statistics import median

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
        """The number of live tensors and the memory of ours, with an empty queue of the writer: on a busy machine it
        has steps to write."""
        steps(15)
        for writing in worker._workers:
            writing.run(lambda: None)
        tensors = live_tensors()
        return tensors, tracemalloc.take_snapshot().filter_traces([ours])

    ours = tracemalloc.Filter(True, f"{Path(msprobe.__file__).parent}{os.sep}*")
    steps(5)
    tracemalloc.start()
    try:
        looks = [measure() for _ in range(6)]  # one line calls all: a new line would be a new stack to keep
    finally:
        tracemalloc.stop()
    assert len({tensors for tensors, _ in looks}) == 1
    # What grows with the steps grows between any two looks; a table of Python that is made larger does so once.
    sizes = [sum(line.size for line in taken.statistics("filename")) for _, taken in looks]
    growth = [later - earlier for earlier, later in zip(sizes, sizes[1:])]
    lines = looks[-1][1].compare_to(looks[0][1], "lineno")
    assert median(growth) < 15 * 500, (growth, [str(line) for line in lines[:10]])


def test_a_step_of_many_calls_keeps_no_tensor(tmp_path):
    with collecting(tmp_path):
        torch.relu(torch.ones(100))
        before = live_tensors()
        for _ in range(500):
            torch.relu(torch.ones(100))
        assert live_tensors() <= before + 2
