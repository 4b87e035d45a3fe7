"""training.json: what the training loop did between the records."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from collecting import Dump, collecting
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from msprobe.dump.reader import open_dump
from msprobe.dump.stack_frames import parse_frame
from msprobe.pytorch import PrecisionDebugger

LEVELS = ["L0", "L1", "mix"]


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


def events(dump: Dump, kind: str | None = None) -> list:
    """Without updates: test_updates.py has their tests."""
    found = json.loads((dump.directory / "training.json").read_text())["events"]
    return [event for event in found if kind in (None, event["event"]) and event["event"] != "update"]


@pytest.mark.parametrize("level", LEVELS)
def test_the_order_of_a_step(tmp_path, level):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    with collecting(tmp_path, model, level=level) as dump:
        model(torch.ones(2, 4)).sum().backward()
        clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    found = events(dump)
    assert [event["event"] for event in found] == [
        "backward",
        "backward_end",
        "clip_grad_norm",
        "clip_grad_norm_end",
        "optimizer_step",
        "optimizer_step_end",
        "zero_grad",
    ]
    places = [dump.names.index(event["after"]) for event in found]
    assert places == sorted(places)
    first, end = found[0]["after"], found[1]["after"]
    assert ".forward" in first
    assert ".backward" in end


def test_what_the_script_does_has_its_line(tmp_path):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    with collecting(tmp_path, model, level="L0") as dump:
        model(torch.ones(2, 4)).sum().backward()
        clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    found = {event["event"]: parse_frame(event["at"]) for event in events(dump) if "at" in event}
    assert {kind: frame.text for kind, frame in found.items()} == {
        "backward": "model(torch.ones(2, 4)).sum().backward()",
        "clip_grad_norm": "clip_grad_norm_(model.parameters(), 0.5)",
        "optimizer_step": "optimizer.step()",
        "zero_grad": "optimizer.zero_grad()",
    }
    assert {frame.file for frame in found.values()} == {__file__}
    lines = json.loads((dump.directory / "source.json").read_text())[__file__]
    assert all(frame.text in lines[str(frame.line)] for frame in found.values())


def test_every_hyper_parameter_of_every_group(tmp_path):
    model = net()
    groups = [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters(), "weight_decay": 0.25}]
    optimizer = torch.optim.SGD(groups, lr=torch.tensor(0.125), momentum=0.75)
    with collecting(tmp_path, model, level="mix") as dump:
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    first, second = events(dump, "optimizer_step")
    assert first["type"] == "torch.optim.sgd.SGD"
    assert [group["lr"] for group in first["groups"]] == [0.5, 0.125]
    assert [group["weight_decay"] for group in first["groups"]] == [0, 0.25]
    assert [group["momentum"] for group in first["groups"]] == [0.75, 0.75]
    assert [group["parameters"] for group in first["groups"]] == [2, 2]
    assert [group["elements"] for group in first["groups"]] == [20, 10]
    assert first["groups"][1]["names"] == ["2.weight", "2.bias"]
    assert "names" not in second["groups"][0]
    assert first["optimizer"] == second["optimizer"] == 0


def test_gradients_that_were_not_set_to_zero_are_counted(tmp_path):
    model = net()
    with collecting(tmp_path, model, level="mix") as dump:
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
        model.zero_grad()
        torch.autograd.grad(model(torch.ones(2, 4)).sum(), model[0].weight)
    passes = events(dump, "backward")
    assert [one["with_gradient"] for one in passes] == [0, 4, 0]
    assert [one["call"] for one in passes] == ["backward", "backward", "grad"]
    assert events(dump, "zero_grad")[0]["module"] == "Sequential"


def test_steps_done_and_the_rate_that_a_scheduler_leaves(tmp_path):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    with collecting(tmp_path, model, level="L0") as dump:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        scheduler.step()
    step = events(dump, "optimizer_step")[0]
    assert (step["steps_done"], step["groups"][0]["lr"], step["groups"][0]["initial_lr"]) == (3, 1.0, 1.0)
    assert events(dump, "learning_rate")[0]["lr"] == [0.5]


def test_clipping_and_its_norm(tmp_path):
    model = net()
    with collecting(tmp_path, model, level="L1") as dump:
        model(torch.ones(2, 4)).sum().backward()
        norm = clip_grad_norm_(model.parameters(), 0.5, norm_type=1.0)
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.25)
    begin, end = events(dump, "clip_grad_norm")[0], events(dump, "clip_grad_norm_end")[0]
    assert (begin["norm_type"], begin["gradients"], end["max_norm"]) == (1.0, 4, 0.5)
    assert end["total_norm"] == norm.item()
    assert events(dump, "clip_grad_value")[0]["clip_value"] == 0.25
    assert clip_grad_value_ is torch.nn.utils.clip_grad_value_


@pytest.mark.parametrize("bad", [False, True])
def test_loss_scaling_and_a_skipped_step(tmp_path, bad):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    with collecting(tmp_path, model, level="L0") as dump:
        scaler.scale(model(torch.full((2, 4), torch.inf if bad else 1.0)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert events(dump, "scaler_step")[0]["scale"] == 64.0
    assert events(dump, "scaler_step_end")[0]["skipped"] is bad
    assert len(events(dump, "optimizer_step")) == (0 if bad else 1)
    assert events(dump, "scaler_update")[0]["scale"] == (32.0 if bad else 64.0)


def test_no_replacement_stays_in_torch(tmp_path):
    names = [
        (torch.autograd, "_engine_run_backward"),
        (torch.nn.utils.clip_grad, "_clip_grads_with_norm_"),
        (torch.optim.Optimizer, "zero_grad"),
        (torch.amp.GradScaler, "step"),
    ]
    before = [getattr(owner, name) for owner, name in names]
    with collecting(tmp_path, net(), level="mix"):
        assert [getattr(owner, name) for owner, name in names] != before
    assert [getattr(owner, name) for owner, name in names] == before
    assert not importlib.import_module("torch.optim.optimizer")._global_optimizer_pre_hooks


KILLED = """
import os, signal, sys
import torch
from msprobe.pytorch import PrecisionDebugger

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task="statistics", level="mix")
debugger.start(torch.nn.Sequential(model))
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
debugger.stop()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_events_are_there_after_a_crash(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(KILLED)
    subprocess.run([sys.executable, str(script), str(tmp_path / "dump")], timeout=300)
    rank = open_dump(tmp_path / "dump").ranks[0]
    assert not (rank.path / "training.json").exists()
    found = rank.training
    assert [event["event"] for event in found][:3] == ["backward", "backward_end", "optimizer_step"]
    assert found[2]["groups"][0]["lr"] == 0.5


def test_stop_inside_a_hook_of_the_optimizer_does_not_reach_the_script(tmp_path):
    """Torch iterates over its hooks then: the set must not change, and the next step is collected as usual."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    debugger = PrecisionDebugger(dump_path=str(tmp_path / "dump"), task="statistics", level="mix")

    def end_step(*call):
        debugger.stop()
        debugger.step()

    handle = register_optimizer_step_post_hook(end_step)
    try:
        for _ in range(2):
            debugger.start(model)
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
    finally:
        handle.remove()
    debugger.start(model)
    debugger.stop()
    events = [json.loads((tmp_path / "dump" / f"step{n}" / "rank" / "training.json").read_text()) for n in (0, 1)]
    assert [sum("optimizer_step" in json.dumps(event) for event in one["events"]) > 0 for one in events] == [True, True]


def test_buffers_are_noted_once_a_step_by_name(tmp_path: Path) -> None:
    model = torch.nn.BatchNorm1d(4)
    debugger = PrecisionDebugger(dump_path=str(tmp_path), task="statistics", level="mix")
    debugger.start(model)
    model(torch.ones(3, 4))
    debugger.stop()
    debugger.start(model)
    debugger.stop()
    debugger.step()
    events = [event for event in open_dump(tmp_path).ranks[0].training if event["event"] == "buffers"]
    assert len(events) == 1
    assert set(events[0]["tensors"]) == {"running_mean", "running_var", "num_batches_tracked"}
    assert events[0]["tensors"]["running_var"]["Max"] == 1.0  # as it was when the step began
