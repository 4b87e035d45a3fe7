"""An error of msprobe never reaches the script: it is written, counted and logged once, and training is the same."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import resource
import sys

import pytest
import torch
from collecting import Dump, collecting, configured
from models import train
from torch import nn

from msprobe.collect.records import values
from msprobe.collect.records.recorder import Recorder
from msprobe.collect.records.values import PythonValues
from msprobe.dump import write_errors
from msprobe.dump.reader import open_dump
from msprobe.dump.recovery import recover
from msprobe.pytorch import PrecisionDebugger
from msprobe.pytorch.apis import opaque_regions
from msprobe.pytorch.gradients import call_gradients
from msprobe.pytorch.tasks.overflow_inspector import TorchTensorInspector
from msprobe.pytorch.tensors import tensor_text
from msprobe.stats import TensorCache
from msprobe.tasks.overflow_check.backward import BackwardJudge
from msprobe.tasks.overflow_check.call_states import CallStates


class Broken(Exception):
    pass


def broken(*args, **kwargs):
    raise Broken("planted")


class BrokenCache:
    """The cache of texts, whose texts fail."""

    text = find = staticmethod(broken)

    def __init__(self, *args):
        self.cache = TensorCache(*args)

    def __getattr__(self, name):
        return getattr(self.cache, name)


@pytest.fixture(scope="module")
def expected():
    """Training without msprobe."""
    return train("convnet", steps=3)


IN_PYTHON = ("rendering", "values", "results")  # C does this without these methods
PLACES = {
    "rendering": (tensor_text.TensorTexts, "tensor_text"),
    "values": (PythonValues, "sequence"),
    "results": (PythonValues, "result"),
    "statistics": (tensor_text, "TensorCache"),
    "entering": (Recorder, "enter"),
    "leaving": (Recorder, "leave"),
    "one event": (Recorder, "write_record"),
    "inputs": (call_gradients.InputEdges, "__init__"),
    "the graph": (call_gradients.Gradients, "watch"),
    "gradients coming in": (call_gradients.Gradients, "_take_incoming"),
    "gradients going out": (call_gradients.Gradients, "_take_outgoing"),
    "regions": (opaque_regions, "_runs_without_modes"),
}


@pytest.mark.parametrize(
    ("level", "place"),
    [(level, place) for level in ("L0", "L1", "mix") for place in PLACES if (level, place) != ("L0", "regions")],
)
def test_a_planted_error_is_written_and_logged_once_and_changes_nothing(
    tmp_path, monkeypatch, logged, place, level, expected
):
    owner, name = PLACES[place]
    if place in IN_PYTHON:
        monkeypatch.setattr(values, "_values_in_c", None)
    monkeypatch.setattr(owner, name, BrokenCache if place == "statistics" else broken)
    debugger = PrecisionDebugger(configured(tmp_path, level=level))
    assert train("convnet", debugger, steps=3) == expected
    assert "Broken: planted" in Dump(tmp_path / "dump", 0).errors
    assert len(logged("were recorded incompletely")) == 1


LOOKING = {
    "before": (CallStates, "open"),
    "what is known": (CallStates, "remember"),
    "the place": (CallStates, "locate"),
    "a look": (TorchTensorInspector, "look"),
    "the judge": (BackwardJudge, "judge"),
    "what was received": (BackwardJudge, "remember"),
}


@pytest.mark.parametrize(("level", "place"), [(level, place) for level in ("L0", "L1", "mix") for place in LOOKING])
def test_a_fault_in_looking_for_overflow_changes_nothing(tmp_path, monkeypatch, logged, place, level, expected):
    owner, name = LOOKING[place]
    reached = []

    def fault(*args, **kwargs):
        reached.append(place)
        raise Broken("planted")

    monkeypatch.setattr(owner, name, fault)
    debugger = PrecisionDebugger(configured(tmp_path, level=level, task="overflow_check"))
    assert train("convnet", debugger, steps=3) == expected
    if reached:
        assert "Broken: planted" in Dump(tmp_path / "dump", 0).errors
        assert len(logged("were recorded incompletely")) == 1
    assert reached or level == "L0"


@pytest.mark.parametrize("place", ["rendering", "entering"])
def test_a_module_that_catches_its_own_errors_sees_no_error_of_msprobe(tmp_path, monkeypatch, place):
    caught = []

    class Careful(nn.Module):
        def forward(self, x):
            try:
                return torch.relu(x)
            except Exception as error:
                caught.append(error)
                raise

    monkeypatch.setattr(values, "_values_in_c", None)
    monkeypatch.setattr(*PLACES[place], broken)
    model = nn.Sequential(Careful())
    debugger = PrecisionDebugger(configured(tmp_path, level="mix"))
    debugger.start(model)
    model(torch.ones(1))
    debugger.stop()
    debugger.step()
    assert not caught


def test_a_fault_around_a_fused_module_at_level_l0_stays_ours(tmp_path, monkeypatch):
    layer = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)).eval()
    batch = torch.ones(1, 3, 8)
    with torch.no_grad():
        expected = layer(batch)
    monkeypatch.setattr(opaque_regions, "_runs_without_modes", broken)
    debugger = PrecisionDebugger(configured(tmp_path, level="L0"))
    debugger.start(layer)
    with torch.no_grad():
        layer(batch)
    debugger.stop()
    debugger.step()
    assert "Broken: planted" in Dump(tmp_path / "dump").errors
    monkeypatch.undo()
    with torch.no_grad():
        assert torch.equal(layer(batch), expected)


def test_an_impossible_directory_is_logged_and_training_continues(tmp_path, logged):
    model, x = nn.Linear(4, 1), torch.ones(2, 4)
    debugger = PrecisionDebugger(dump_path=str(tmp_path / ("x" * 300)), task="tensor", level="L0", step=[0])
    debugger.start(model)
    model(x).sum().backward()
    debugger.stop()
    debugger.step()
    debugger._lifecycle.close()
    assert len(logged("cannot write")) == 1
    assert len(logged("could not be written in")) == 1
    assert not logged("are collected")
    assert not logged("no call that msprobe collects ran")


def test_a_step_that_ends_without_descriptors_is_complete_in_its_journal(tmp_path, logged):
    """The warning must not call a step incomplete that `msprobe recover` finishes."""
    model, x = nn.Linear(4, 1), torch.ones(2, 4)
    debugger = PrecisionDebugger(dump_path=str(tmp_path), task="statistics", level="L0", step=[0])
    debugger.start(model)
    model(x).sum().backward()
    debugger.stop()
    taken = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        debugger.step()
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    debugger._lifecycle.close()
    assert not logged("incomplete")
    assert len(logged("No record is lost: run `msprobe recover")) == 1
    assert recover(tmp_path / "step0" / "rank")
    (rank,) = open_dump(tmp_path).ranks
    assert (write_errors.trouble(rank.path), rank.unfinished) == (None, False)
    assert list(rank.records) == ["Module.Linear.parameters_grad"]  # the model itself is not recorded
    assert not logged("0 records")


@pytest.mark.parametrize("kind", ["closed", "handler"])
def test_a_log_handler_that_fails_does_not_stop_the_script(tmp_path, monkeypatch, kind):
    if kind == "closed":
        stream = io.StringIO()
        stream.close()
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(logging.getLogger(), "handlers", [])
    else:
        handler = logging.Handler()
        handler.emit = broken
        monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    model = nn.Sequential(nn.Linear(4, 1))
    with collecting(tmp_path, model, level="L0", task="tensor") as dump:
        model(torch.ones(2, 4))
    PrecisionDebugger._current._lifecycle.close()
    assert dump.names == ["Module.0.Linear.forward.0"]
