"""No exception of msprobe reaches training: each entry that can run inside the script is made to raise."""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode

from msprobe.collect.probe import Probe
from msprobe.dump.reader import open_dump
from msprobe.pytorch import Monitor, MsprobeCallback, PrecisionDebugger
from msprobe.pytorch.apis import mode_stack

STEPS = 3
DEBUGGED = [  # module, class or None, function
    ("msprobe.collect.run.lifecycle", "Lifecycle", "_start"),
    ("msprobe.collect.run.lifecycle", "Lifecycle", "_open_step"),
    ("msprobe.collect.run.lifecycle", "Lifecycle", "_stop"),
    ("msprobe.collect.run.lifecycle", "Lifecycle", "_step"),
    ("msprobe.collect.run.lifecycle", "Lifecycle", "_close_step"),
    ("msprobe.collect.probe", "Probe", "install"),
    ("msprobe.collect.probe", "Probe", "remove"),
    ("msprobe.collect.probe", "Probe", "close"),
    ("msprobe.collect.records.recorder", "Recorder", "enter"),
    ("msprobe.collect.records.recorder", "Recorder", "leave"),
    ("msprobe.collect.records.recorder", "Recorder", "fail"),
    ("msprobe.collect.records.recorder", "Recorder", "write_record"),
    ("msprobe.collect.records.stacks", "Stacks", "number"),
    ("msprobe.dump.writing.writer", "RankWriter", "begin"),
    ("msprobe.dump.writing.writer", "RankWriter", "end"),
    ("msprobe.dump.writing.writer", "RankWriter", "record"),
    ("msprobe.dump.writing.writer", "RankWriter", "flush"),
    ("msprobe.dump.writing.writer", "RankWriter", "finish"),
    ("msprobe.dump.writing.writer", "RankWriter", "training"),
    ("msprobe.pytorch.apis.api_calls", None, "_overridden"),
    ("msprobe.pytorch.apis.api_calls", None, "put_on"),
    ("msprobe.pytorch.apis.api_calls", None, "is_on"),
    ("msprobe.pytorch.apis.api_calls", None, "take_off"),
    ("msprobe.pytorch.apis.api_calls", "Apis", "_transparent_copy"),
    ("msprobe.pytorch.apis.api_calls", "Apis", "_distrust"),
    ("msprobe.pytorch.apis.api_calls", "Apis", "_note_writes"),
    ("msprobe.pytorch.apis.operator_names", "OperatorNames", "take"),
    ("msprobe.pytorch.apis.opaque_regions", None, "is_on"),
    ("msprobe.pytorch.apis.opaque_regions", None, "is_traced"),
    ("msprobe.pytorch.modules.module_calls", "Modules", "_enter"),
    ("msprobe.pytorch.modules.module_calls", "Modules", "_leave"),
    ("msprobe.pytorch.gradients.call_gradients", "Gradients", "watch"),
    ("msprobe.pytorch.gradients.call_gradients", "Gradients", "inputs"),
    ("msprobe.pytorch.gradients.call_gradients", "Gradients", "_begins"),
    ("msprobe.pytorch.gradients.compiled_autograd", None, "is_enabled"),
    ("msprobe.pytorch.tensors.tensor_text", "TensorTexts", "forget"),
    ("msprobe.pytorch.tensors.tensor_text", "TensorTexts", "written"),
]
KERNELS = [
    ("msprobe.collect.records.recorder", "Recorder", "enter"),
    ("msprobe.collect.records.recorder", "Recorder", "leave"),
    ("msprobe.collect.records.recorder", "Recorder", "fail"),
    ("msprobe.collect.records.recorder", "Recorder", "push"),
    ("msprobe.collect.records.recorder", "Recorder", "pop"),
    ("msprobe.collect.records.recorder", "Recorder", "place"),
    ("msprobe.collect.records.call_numbers", "CallNumbers", "take"),
    ("msprobe.pytorch.kernels.kernel_calls", "Kernels", "_begin"),
    ("msprobe.pytorch.kernels.kernel_calls", "Kernels", "_learn"),
    ("msprobe.pytorch.kernels.kernel_calls", "Kernels", "install"),
    ("msprobe.pytorch.kernels.kernel_calls", "Kernels", "remove"),
    ("msprobe.pytorch.kernels.kernel_calls", "NodeOwners", "add"),
    ("msprobe.pytorch.kernels.kernel_calls", "NodeOwners", "parents"),
    ("msprobe.collect.calls.module_calls", "ModulePlaces", "_enter"),
    ("msprobe.collect.calls.module_calls", "ModulePlaces", "_leave"),
]
OTHER_TASKS = [  # task, and a function of its own
    ("overflow_check", ("msprobe.collect.records.call_numbers", "CallNumbers", "take")),
    ("overflow_check", ("msprobe.tasks.overflow_check.call_states", "CallStates", "open")),
    ("overflow_check", ("msprobe.tasks.overflow_check.call_states", "CallStates", "result")),
    ("free_benchmark", ("msprobe.collect.records.call_numbers", "CallNumbers", "take")),
    ("free_benchmark", ("msprobe.tasks.free_benchmark.second_run", "SecondRun", "wants")),
    ("free_benchmark", ("msprobe.tasks.free_benchmark.second_run", "SecondRun", "first_float")),
    ("free_benchmark", ("msprobe.tasks.free_benchmark.second_run", "SecondRun", "forward")),
    ("tensor", ("msprobe.dump.tensor_files.store", "TensorStore", "_guarded")),
]
MONITORED = [
    ("msprobe.watch.monitor", "BaseMonitor", "_end"),
    ("msprobe.watch.monitor", "BaseMonitor", "_prepare"),
    ("msprobe.pytorch.watch.monitor", "Monitor", "_make_sources"),
    ("msprobe.pytorch.watch.monitor", "Monitor", "_read"),
    ("msprobe.pytorch.watch.monitor", "Monitor", "_optimizer_steps"),
    ("msprobe.pytorch.watch.parameters", None, "_has_closure"),
    ("msprobe.pytorch.watch.parameters", "OptimizerHooks", "_look"),
    ("msprobe.pytorch.watch.stale_gradient", "StaleGradient", "used"),
    ("msprobe.pytorch.watch.modules", "ModuleHooks", "_saw"),
    ("msprobe.pytorch.watch.modules", "ModuleHooks", "_came"),
    ("msprobe.pytorch.watch.modules", "ModuleHooks", "remove"),
    ("msprobe.watch.store", "Store", "write"),
    ("msprobe.watch.store", "Store", "close"),
    ("msprobe.watch.recording", "Recording", "close"),
]

CALLED_BACK = [
    ("msprobe.watch.attached", "Attached", "_step_begins"),
    ("msprobe.watch.attached", "Attached", "_step_ends"),
    ("msprobe.watch.attached", "Attached", "saw_loss"),
    ("msprobe.pytorch.watch.callbacks", "MsprobeCallback", "_look_for_loss"),
]


class Net(nn.Module):
    """Calls of every kind: modules, APIs, composites, in place, out=, an API that fails, memory behind the version."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(torch.relu_(self.first(x)))
        with torch.no_grad():
            torch.add(x.detach(), 1, out=torch.empty_like(x))
            x.detach().data.mul_(1)
            try:
                torch.ones(2) @ torch.ones(3)
            except RuntimeError:
                pass
        return self.last(nn.functional.multi_head_attention_forward(
            x[:, None], x[:, None], x[:, None], 8, 2, torch.ones(24, 8), None, None, None, False, 0.0,
            torch.ones(8, 8), None)[0][:, 0])  # fmt: skip


def train(begin: Callable[[nn.Module, Any], None], end: Callable[[Any], None]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in torch.randn(STEPS, 5, 4):
        begin(model, optimizer)
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        end(loss)
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.fixture(scope="module")
def bare() -> list[torch.Tensor]:
    return train(lambda *_: None, lambda _: None)


def break_it(monkeypatch: pytest.MonkeyPatch, where: str, owner: Any, name: str) -> list[str]:
    """The function raises from now on. Returns a list that notes its calls."""
    module = importlib.import_module(where)
    holder = module if owner is None else getattr(module, owner)
    called: list[str] = []

    def fail(*_: Any, **__: Any) -> None:
        called.append(name)
        raise ZeroDivisionError(f"planted in {name}")

    assert hasattr(holder, name)
    monkeypatch.setattr(holder, name, fail)
    return called


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other))


def train_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Any, **settings: Any) -> list[torch.Tensor]:
    """Trains with a debugger in which one function raises; `broken` names it. It must have run."""
    where, owner, name = broken
    probes: list[Probe] = []
    made = Probe.__init__
    monkeypatch.setattr(Probe, "__init__", lambda self, hooks: (probes.append(self), made(self, hooks))[1])
    called = break_it(monkeypatch, where, owner, name)
    debugger = PrecisionDebugger(dump_path=str(tmp_path), **settings)

    def end(_: Any) -> None:
        debugger.stop()
        debugger.step()

    trained = train(lambda model, _: debugger.start(model), end)
    assert called, f"{name} did not run"
    monkeypatch.undo()
    debugger._lifecycle.close()
    for probe in reversed(probes):  # what a broken function has left behind
        probe.remove()
    for mode in mode_stack.modes():
        mode_stack.take_off(mode)
    while _get_current_dispatch_mode_stack():
        _pop_mode()
    return trained


@pytest.mark.parametrize("broken", DEBUGGED, ids=lambda one: one[2])
def test_no_error_of_the_debugger_reaches_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare: list[torch.Tensor], broken: Any
) -> None:
    assert same(train_broken(tmp_path, monkeypatch, broken, task="statistics", level="mix"), bare)


@pytest.mark.parametrize("broken", KERNELS, ids=lambda one: one[2])
def test_no_error_of_level_l2_reaches_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare: list[torch.Tensor], broken: Any
) -> None:
    assert same(train_broken(tmp_path, monkeypatch, broken, task="statistics", level="L2"), bare)


@pytest.mark.parametrize(("task", "broken"), OTHER_TASKS, ids=lambda one: one if isinstance(one, str) else one[2])
def test_no_error_of_other_tasks_reaches_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare: list[torch.Tensor], task: str, broken: Any
) -> None:
    assert same(train_broken(tmp_path, monkeypatch, broken, task=task, level="L1"), bare)


@pytest.mark.parametrize(("where", "owner", "name"), MONITORED, ids=lambda one: str(one).rpartition(".")[2])
def test_no_error_of_the_monitor_reaches_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare: list[torch.Tensor], where: str, owner: Any, name: str
) -> None:
    called = break_it(monkeypatch, where, owner, name)
    monitors: list[Monitor] = []

    def begin(model: nn.Module, optimizer: Any) -> None:
        if not monitors:
            monitors.append(Monitor(model, optimizer, {"dump_path": str(tmp_path), "targets": "all"}))

    assert same(train(begin, lambda loss: monitors[0].step(loss=loss)), bare)
    monitors[0].close()
    assert called, f"{name} did not run"


@pytest.mark.parametrize("broken", CALLED_BACK, ids=lambda one: one[2])
def test_no_error_of_the_callback_reaches_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare: list[torch.Tensor], broken: Any
) -> None:
    called = break_it(monkeypatch, *broken)
    callback = MsprobeCallback({"dump_path": str(tmp_path / "watch")}, {"dump_path": str(tmp_path / "dump")})
    model: list[nn.Module] = []

    def begin(module: nn.Module, optimizer: Any) -> None:
        if not model:
            model.append(module)
            state = SimpleNamespace(global_step=0)
            callback.on_train_begin(None, state, None, model=module, optimizer=optimizer)
        callback.on_step_begin(None, None, None)

    def end(loss: torch.Tensor) -> None:
        callback._returned(model[0], (), {"loss": loss})
        callback.on_step_end(None, None, None)

    assert same(train(begin, end), bare)
    monkeypatch.undo()
    callback.on_train_end()
    assert called


COMPLEX_LOSS = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    loss = model(torch.ones(1, 2)).sum() * torch.tensor(1 + 1j)
    loss.backward(torch.tensor(1 + 0j))
    optimizer.step()
print("trained")
"""


def test_a_loss_that_is_no_real_number_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(COMPLEX_LOSS)
    command = [sys.executable, "-m", "msprobe", "run", "--watch", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "watched 2 steps" in done.stderr


def test_a_monitor_that_cannot_write_is_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    monitor = Monitor(nn.Linear(2, 2), None, {"dump_path": str(tmp_path / "file" / "watch")})
    monitor.step(loss=1.0)
    monitor.close()
    assert "the monitor cannot write to" in caplog.text


def test_wrong_arguments_are_an_error_of_the_script(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=str(tmp_path), task="statistics", level="L1")
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        debugger.start(modell=1)
    assert not debugger._lifecycle.closed


AT_EXIT = """
import sys, torch
from msprobe.pytorch import PrecisionDebugger
from msprobe.collect.run.lifecycle import Lifecycle
def fail(self): raise ZeroDivisionError("planted")
debugger = PrecisionDebugger(dump_path=sys.argv[1], task="statistics", level="L1")
debugger.start()
torch.ones(2).add(1)
Lifecycle._close_step = fail
"""


def test_no_error_leaves_the_exit_of_python(tmp_path: Path) -> None:
    command = [sys.executable, "-c", AT_EXIT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0
    assert "msprobe failed and is now off; the script continues" in done.stderr
    assert "Exception ignored" not in done.stderr
    assert open_dump(tmp_path).ranks[0].records


PLACES = ["_len_torch_function_stack", "_get_function_stack_at", "_pop_torch_function_stack"]


@pytest.mark.parametrize("place", [*PLACES, "_push_on_torch_function_stack", "enter", "leave"])
@pytest.mark.parametrize("acts", ["stop step start", "stop", "stop start"])
def test_a_signal_handler_may_do_everything_while_a_call_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare: list[torch.Tensor], place: str, acts: str, logged: Any
) -> None:
    """A handler that uses the debugger in the middle of a change of the modes, or of a record."""
    debugger = PrecisionDebugger(dump_path=str(tmp_path), task="statistics", level="mix")
    came: list[str] = []
    models: list[nn.Module] = []

    def handle(number: int, frame: Any) -> None:
        came.append(place)
        for act in acts.split():
            getattr(debugger, act)(*models if act == "start" else ())

    if place.startswith("_"):
        holder: Any = mode_stack
    else:
        holder = importlib.import_module("msprobe.collect.records.recorder").Recorder
    usual = getattr(holder, place)
    armed: list[int] = []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        armed.append(1)
        if len(armed) in (3, 17, 31, 56) and models:
            signal.raise_signal(signal.SIGUSR1)
        return usual(*args, **kwargs)

    before = signal.signal(signal.SIGUSR1, handle)
    monkeypatch.setattr(holder, place, interrupted)

    def begin(model: nn.Module, _: Any) -> None:
        models[:] = [model]
        debugger.start(model)

    def end(_: Any) -> None:
        debugger.stop()
        debugger.step()

    try:
        assert same(train(begin, end), bare)
    finally:
        signal.signal(signal.SIGUSR1, before)
        monkeypatch.setattr(holder, place, usual)
    assert came
    assert not logged("The script removed")
    assert not list(tmp_path.rglob("dump_error_info.log"))
    assert not debugger._lifecycle.closed
    debugger.start(models[0])
    models[0](torch.ones(5, 4))
    debugger.stop()
    directory = debugger._lifecycle._writer.directory  # type: ignore[union-attr]
    torch.ones(3).cos()  # stop() has removed the mode
    debugger.step()
    (rank,) = open_dump(directory).ranks
    assert "Module.last.Linear.forward.0" in rank.records
    assert not [name for name in rank.records if "cos" in name]
    assert len([name for name in rank.records if "layer_norm" in name]) == 1
