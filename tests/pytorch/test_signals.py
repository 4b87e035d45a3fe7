"""What the signal handlers of a script do while msprobe is at work: they are the script's, not ours."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch
from collecting import Dump, configured

from msprobe.dump.reader import open_dump
from msprobe.dump.writing.worker import Worker
from msprobe.pytorch import PrecisionDebugger
from msprobe.system.interrupts import Turns

MODEL = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))


class Late(Exception):
    pass


@pytest.fixture
def handled():
    """Sets a handler of SIGUSR1; what was there comes back."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, handler)
    signal.signal(signal.SIGUSR1, before)


def raised_inside(monkeypatch, owner, name):
    """Sends a signal at each call of `owner.name`, a function of msprobe, from now on."""
    original = getattr(owner, name)

    def interrupted(*args, **kwargs):
        signal.raise_signal(signal.SIGUSR1)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, interrupted)


@pytest.mark.parametrize("place", ["enter", "leave", "write_record"])
@pytest.mark.parametrize("kind", [Late, RuntimeError, KeyboardInterrupt])
def test_what_a_handler_raises_reaches_the_script(tmp_path, monkeypatch, handled, place, kind):
    from msprobe.collect.records.recorder import Recorder

    def handler(number, frame):
        raise kind("too late")

    handled(handler)
    debugger = PrecisionDebugger(configured(tmp_path, level="mix"))
    debugger.start(MODEL)
    raised_inside(monkeypatch, Recorder, place)
    with pytest.raises(kind, match="too late"):
        MODEL(torch.ones(2, 8)).sum().backward()
    monkeypatch.undo()
    debugger.stop()
    debugger.step()
    assert not Dump(tmp_path / "dump").errors


class Bound:
    def __init__(self, act):
        self.act = act

    def on(self, number, frame):
        self.act()


@pytest.mark.parametrize("handler_of", [lambda act: lambda *args: act(), lambda act: Bound(act).on])
def test_any_form_of_handler_is_recognised(tmp_path, monkeypatch, handled, handler_of):
    from msprobe.collect.records.recorder import Recorder

    def act():
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        raise Late("too late")

    handled(handler_of(act))
    debugger = PrecisionDebugger(configured(tmp_path))
    debugger.start()
    raised_inside(monkeypatch, Recorder, "enter")
    with pytest.raises(Late):
        torch.relu(torch.ones(2))
    monkeypatch.undo()
    debugger.stop()
    debugger.step()


def test_an_error_of_msprobe_still_does_not_reach_the_script(tmp_path, monkeypatch):
    from msprobe.collect.records.recorder import Recorder

    def broken(*args, **kwargs):
        raise RuntimeError("ours")

    debugger = PrecisionDebugger(configured(tmp_path))
    debugger.start()
    monkeypatch.setattr(Recorder, "enter", broken)
    assert torch.relu(torch.ones(2)).sum() == 2
    monkeypatch.undo()
    debugger.stop()
    debugger.step()
    assert "ours" in Dump(tmp_path / "dump").errors


def test_a_handler_that_stops_while_lines_are_passed_on_does_not_wait_forever(tmp_path, monkeypatch, handled):
    debugger = PrecisionDebugger(configured(tmp_path))
    debugger.start()
    torch.relu(torch.ones(2))
    stopped = []

    def handler(number, frame):
        debugger.stop()
        stopped.append(True)

    handled(handler)
    original = Worker._take_pending

    def interrupted(worker):
        if not stopped and threading.current_thread() is threading.main_thread():
            assert worker._changed._is_owned()
            signal.raise_signal(signal.SIGUSR1)
        original(worker)

    def ended(*_):
        raise AssertionError("it waited for ever")

    monkeypatch.setattr(Worker, "_take_pending", interrupted)
    before = signal.signal(signal.SIGALRM, ended)
    signal.alarm(60)
    try:
        debugger._lifecycle._writer._worker.hand_over()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    monkeypatch.undo()
    assert stopped
    debugger.step()
    assert Dump(tmp_path / "dump").names == ["Torch.relu.0.forward"]


@pytest.mark.parametrize("outer", ["start", "stop", "step"])
@pytest.mark.parametrize("inner", ["start", "stop", "step"])
def test_a_call_from_inside_of_another_waits_its_turn(tmp_path, monkeypatch, handled, outer, inner):
    from msprobe.pytorch.step_hooks import TorchHooks

    debugger = PrecisionDebugger(configured(tmp_path))
    done = []

    def handler(number, frame):
        if not done:
            done.append(True)
            getattr(debugger, inner)()

    handled(handler)
    if outer != "start":
        debugger.start()
    for name in ("install", "remove", "close"):
        raised_inside(monkeypatch, TorchHooks, name)
    getattr(debugger, outer)()
    assert done
    torch.relu(torch.ones(2))
    debugger.stop()
    debugger.step()
    monkeypatch.undo()
    debugger.start()
    torch.relu(torch.ones(2))
    debugger.stop()
    step = debugger._lifecycle.step_number
    debugger.step()
    assert Dump(tmp_path / "dump", step).names == ["Torch.relu.0.forward"]


def test_a_handler_may_save_a_tensor_while_one_is_saved(tmp_path, monkeypatch, handled):
    from msprobe.dump.tensor_files.store import TensorStore

    debugger = PrecisionDebugger(configured(tmp_path, level="debug", task="tensor"))
    debugger.start()
    done = []

    def handler(number, frame):
        if not done:
            done.append(True)
            debugger.save(torch.zeros(3), "inner")
            debugger.step()

    handled(handler)
    raised_inside(monkeypatch, TensorStore, "_forget")
    debugger.save(torch.ones(3), "outer")
    monkeypatch.undo()
    debugger._lifecycle.close()
    rank = open_dump(tmp_path / "dump").ranks[0]
    assert done
    assert set(rank.debug) >= {"inner.0.debug"}
    assert rank.tensor(rank.debug["inner.0.debug"]["data_name"]).tolist() == [0, 0, 0]


def test_what_a_handler_raises_while_a_tensor_is_saved_reaches_the_script(tmp_path, monkeypatch, handled):
    from msprobe.dump.tensor_files.store import TensorStore

    def handler(number, frame):
        raise Late("too late")

    handled(handler)
    debugger = PrecisionDebugger(configured(tmp_path, level="debug", task="tensor"))
    debugger.start()
    raised_inside(monkeypatch, TensorStore, "_forget")
    with pytest.raises(Late):
        debugger.save(torch.ones(3), "one")
    monkeypatch.undo()
    debugger.stop()
    debugger.step()
    assert not Dump(tmp_path / "dump").errors


TERMINATED = """
import os, signal, sys, time
import torch
from msprobe.pytorch import PrecisionDebugger

if sys.argv[2] == "own":
    def handler(number, frame):
        print("own handler", flush=True)
        sys.exit(7)
    signal.signal(signal.SIGTERM, handler)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task="statistics", level="L1")
debugger.start()
for _ in range(5):
    torch.relu(torch.ones(2))
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""


@pytest.mark.parametrize(("handler", "code"), [("default", -signal.SIGTERM), ("own", 7)])
def test_sigterm_writes_the_open_step_and_ends_as_without_us(tmp_path, handler, code):
    script = tmp_path / "train.py"
    script.write_text(TERMINATED)
    ended = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "dump"), handler], capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == code
    assert ("own handler" in ended.stdout) == (handler == "own")
    rank = open_dump(tmp_path / "dump").ranks[0]
    assert list(rank.records) == [f"Torch.relu.{number}.forward" for number in range(5)]


def test_the_handler_of_sigterm_is_the_scripts_again_after_the_step(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    debugger = PrecisionDebugger(configured(tmp_path))
    debugger.start()
    assert signal.getsignal(signal.SIGTERM) != before
    debugger.stop()
    debugger.step()
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_forked_child_ends_by_sigterm_without_writing(tmp_path):
    debugger = PrecisionDebugger(configured(tmp_path))
    debugger.start()
    torch.relu(torch.ones(2))
    ready, says_ready = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(says_ready, b"1")
        time.sleep(60)
        os._exit(0)
    assert os.read(ready, 1) == b"1"
    os.close(ready)
    os.close(says_ready)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    debugger.stop()
    debugger.step()
    assert json.loads(Path(tmp_path / "dump/step0/rank/dump.json").read_text())["data"]


def test_no_code_of_msprobe_runs_when_a_step_is_forgotten(tmp_path):
    """Python drops an exception inside the callback of a weak reference, one of a signal handler included."""
    debugger = PrecisionDebugger(configured(tmp_path))
    debugger.start()
    recorder = debugger._lifecycle._probe.recorder
    workers = [one for one in gc.get_objects() if type(one) is Worker]
    references = [one for kept in (recorder, *workers) for one in weakref.getweakrefs(kept)]
    assert len(references) >= 2
    assert all(reference.__callback__ is None for reference in references)
    debugger.stop()
    debugger.step()


def test_more_waiting_calls_than_python_has_frames_are_not_an_error():
    turns, done = Turns(), []

    def act(depth):
        done.append(depth)
        if depth < 5000:
            turns.take(lambda: act(depth + 1))  # comes from inside of a turn: it waits

    turns.take(lambda: act(0))
    while turns._later:
        turns.take(lambda: None)
    assert done == list(range(5001))


def test_what_waits_is_done_even_when_a_turn_fails():
    turns, done = Turns(), []

    def act():
        turns.take(lambda: done.append("later"))
        raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        turns.take(act)
    assert done == ["later"]
