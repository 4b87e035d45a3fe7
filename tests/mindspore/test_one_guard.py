"""No exception of msprobe reaches training: each entry that MindSpore or the script calls is made to raise."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Callable, Optional

import mindspore as ms
import pytest
from mindspore import Tensor, nn, ops
from msmodels import Net, batch, made

from msprobe.collect.probe import Probe
from msprobe.mindspore import Monitor, PrecisionDebugger

STEPS = 2
GRADIENTS = "msprobe.mindspore.gradients"
LIFECYCLE = "msprobe.collect.run.lifecycle"
RECORDER = "msprobe.collect.records.recorder"
WRITER = "msprobe.dump.writing.writer"
DEBUGGED = [  # module, class or None, function
    (LIFECYCLE, "Lifecycle", "_start"),
    (LIFECYCLE, "Lifecycle", "_open_step"),
    (LIFECYCLE, "Lifecycle", "_stop"),
    (LIFECYCLE, "Lifecycle", "_step"),
    (LIFECYCLE, "Lifecycle", "_close_step"),
    (RECORDER, "Recorder", "enter"),
    (RECORDER, "Recorder", "leave"),
    (RECORDER, "Recorder", "fail"),
    (RECORDER, "Recorder", "push"),
    (RECORDER, "Recorder", "pop"),
    ("msprobe.collect.records.stacks", "Stacks", "number"),
    (WRITER, "RankWriter", "begin"),
    (WRITER, "RankWriter", "end"),
    (WRITER, "RankWriter", "finish"),
    ("msprobe.mindspore.tensors.tensor_text", "TensorTexts", "tensor_text"),
    (RECORDER, "Recorder", "write_record"),
    (WRITER, "RankWriter", "record"),
    ("msprobe.collect.calls.module_calls", "ModuleCalls", "_enter"),
    ("msprobe.collect.calls.module_calls", "ModuleCalls", "_leave"),
    (f"{GRADIENTS}.call_gradients", "Gradients", "inputs"),
    (f"{GRADIENTS}.call_gradients", "Gradients", "watch"),
    (f"{GRADIENTS}.call_gradients", "Gradients", "_hook_call"),
    (f"{GRADIENTS}.call_gradients", "Gradients", "_finish_above"),
    (f"{GRADIENTS}.call_gradients", "Gradients", "forget_graph"),
    (f"{GRADIENTS}.call_gradients", "Gradients", "_begins"),
    (f"{GRADIENTS}.call_gradients", "Gradients", "_finish_pass"),
    (f"{GRADIENTS}.parameter_gradients", "ParameterGradients", "_keep"),
    ("msprobe.mindspore.tensors.tensor_text", "TensorTexts", "unchanging"),
]
MONITORED = [
    ("msprobe.watch.monitor", "BaseMonitor", "_end"),
    ("msprobe.mindspore.watch.monitor", "Monitor", "_optimizer_called"),
    ("msprobe.mindspore.watch.monitor", "Monitor", "_read"),
    ("msprobe.mindspore.watch.monitor", "Monitor", "_rates"),
    ("msprobe.mindspore.watch.cells", "CellHooks", "_saw"),
    ("msprobe.mindspore.watch.cells", "CellHooks", "_put"),
    ("msprobe.mindspore.watch.parameters", "DifferentiationHook", "_take"),
    ("msprobe.watch.store", "Store", "write"),
]


@ms.jit
def compiled(x: Tensor) -> Tensor:
    return ops.tanh(x) * 2


class Whole(nn.Cell):
    """Cells, APIs, Primitives and a compiled region."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def construct(self, x: Tensor) -> Tensor:
        return compiled(self.net(x))


def train(begin: Callable[[nn.Cell, Any], Any], end: Callable[[Any], Any]) -> bytes:
    net = made(Whole)
    optimizer = nn.Adam(net.trainable_params(), 1e-2)
    loss_function = nn.CrossEntropyLoss()
    forward = ms.value_and_grad(lambda x, y: loss_function(net(x), y), None, optimizer.parameters)
    losses = b""
    for number in range(STEPS):
        begin(net, optimizer)
        with pytest.raises(TypeError):
            ops.relu("not a tensor")
        loss, gradients = forward(*batch(number))
        optimizer(gradients)
        end(loss)
        losses += loss.asnumpy().tobytes()
    return losses + b"".join(parameter.asnumpy().tobytes() for parameter in net.get_parameters())


@pytest.fixture(scope="module")
def bare() -> bytes:
    """MindSpore tunes its CPU kernels over their first runs, and their last bits change with it: let it settle."""
    results = [train(lambda *_: None, lambda _: None) for _ in range(10)]
    assert results[-1] == results[-2] == results[-3]
    return results[-1]


def break_it(monkeypatch: pytest.MonkeyPatch, where: str, owner: Optional[str], name: str) -> list[str]:
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


@pytest.mark.parametrize(("where", "owner", "name"), DEBUGGED, ids=lambda one: str(one).rpartition(".")[2])
def test_no_error_of_the_debugger_reaches_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare: bytes, where: str, owner: Any, name: str
) -> None:
    probes: list[Probe] = []
    prepare = Probe.__init__
    monkeypatch.setattr(Probe, "__init__", lambda self, hooks: (probes.append(self), prepare(self, hooks))[1])
    called = break_it(monkeypatch, where, owner, name)
    debugger = PrecisionDebugger(dump_path=str(tmp_path), task="statistics", level="mix")

    def end(_: Any) -> None:
        debugger.stop()
        debugger.step()

    try:
        assert train(lambda net, _: debugger.start(net), end) == bare
    finally:
        monkeypatch.undo()
        debugger._lifecycle.close()
        for probe in reversed(probes):  # what a broken function has left behind
            probe.remove()
            probe.close()
    assert called, f"{name} did not run"


@pytest.mark.parametrize(("where", "owner", "name"), MONITORED, ids=lambda one: str(one).rpartition(".")[2])
def test_no_error_of_the_monitor_reaches_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare: bytes, where: str, owner: Any, name: str
) -> None:
    called = break_it(monkeypatch, where, owner, name)
    monitors: list[Monitor] = []

    def begin(net: nn.Cell, optimizer: Any) -> None:
        if not monitors:
            monitors.append(Monitor(net, optimizer, {"dump_path": str(tmp_path), "targets": "all"}))

    assert train(begin, lambda loss: monitors[0].step(loss=loss)) == bare
    monitors[0].close()
    assert called, f"{name} did not run"
