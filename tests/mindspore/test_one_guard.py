"""No exception of msprobe reaches training: each entry that MindSpore or the script calls is made to raise."""

from __future__ import annotations

import importlib
import json
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
APIS = "msprobe.mindspore.apis"
HOOKS = "msprobe.mindspore.step_hooks"
KERNEL_CALLS = "msprobe.mindspore.kernels.kernel_calls"
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
    ("msprobe.collect.probe", "Probe", "remove"),
    ("msprobe.collect.probe", "Probe", "close"),
    (f"{APIS}.jit_regions", "JitRegions", "install"),
    (f"{APIS}.api_patches", "ApiPatches", "suspend"),
]
INSTALLING = [
    ("msprobe.collect.probe", "Probe", "install"),
    (HOOKS, "MindSporeHooks", "install"),
    (HOOKS, "MindSporeHooks", "remove"),
    (HOOKS, "MindSporeHooks", "close"),
    (HOOKS, "MindSporeHooks", "_watch_parameters"),
    (f"{APIS}.api_patches", "ApiPatches", "put_in"),
    (f"{APIS}.api_patches", "ApiPatches", "take_out"),
    (f"{APIS}.api_patches", "ApiPatches", "resume"),
    (f"{APIS}.jit_regions", "JitRegions", "remove"),
    (f"{APIS}.api_calls", "Apis", "end"),
    ("msprobe.mindspore.cells.cell_calls", "Cells", "install"),
    ("msprobe.mindspore.cells.cell_calls", "Cells", "remove"),
    ("msprobe.mindspore.graph.graph_hooks", "CompiledCells", "install"),
    ("msprobe.mindspore.graph.graph_hooks", "CompiledCells", "remove"),
    ("msprobe.mindspore.graph.graph_hooks", "CompiledCells", "close"),
    (f"{GRADIENTS}.parameter_gradients", "ParameterGradients", "watch"),
    (f"{GRADIENTS}.parameter_gradients", "ParameterGradients", "remove"),
    (f"{GRADIENTS}.call_gradients", "Gradients", "close"),
    ("msprobe.collect.records.call_numbers", "CallNumbers", "take"),
]
AFTER_WORK = (("ApiPatches", "suspend"), ("ApiPatches", "take_out"))
"""These fail when they have done their work: if what they remove stayed, MindSpore would compile it."""
KERNELS = [
    (RECORDER, "Recorder", "fail"),
    (RECORDER, "Recorder", "push"),
    (RECORDER, "Recorder", "pop"),
    ("msprobe.collect.records.call_numbers", "CallNumbers", "take"),
    (KERNEL_CALLS, "Kernels", "_begin"),
    ("msprobe.mindspore.kernels.kernel_hooks", "_KernelMode", "suspend"),
    ("msprobe.mindspore.kernels.kernel_hooks", "_KernelMode", "resume"),
]
REST_OF_KERNELS = [
    (LIFECYCLE, "Lifecycle", "_start"),
    (LIFECYCLE, "Lifecycle", "_stop"),
    (LIFECYCLE, "Lifecycle", "_close_step"),
    (RECORDER, "Recorder", "enter"),
    (RECORDER, "Recorder", "leave"),
    (RECORDER, "Recorder", "place"),
    (KERNEL_CALLS, "Kernels", "settle"),
    (KERNEL_CALLS, "Kernels", "inputs"),
    (KERNEL_CALLS, "Kernels", "record_call"),
    (KERNEL_CALLS, "Kernels", "unseen"),
    (KERNEL_CALLS, "Kernels", "_watch"),
    (KERNEL_CALLS, "Kernels", "install"),
    (KERNEL_CALLS, "Kernels", "remove"),
    ("msprobe.mindspore.kernels.optimizer_kernels", "Optimizers", "install"),
    ("msprobe.mindspore.kernels.optimizer_kernels", "Optimizers", "remove"),
    ("msprobe.collect.calls.module_calls", "ModulePlaces", "_enter"),
    ("msprobe.collect.calls.module_calls", "ModulePlaces", "_leave"),
    (f"{GRADIENTS}.call_gradients", "Gradients", "watch"),
    (f"{APIS}.api_patches", "ApiPatches", "suspend"),
    ("msprobe.mindspore.kernels.region_kernels", None, "start_region_dump"),
]
SCOPED = [
    ("msprobe.collect.records.selection", "Selection", "enter"),
    ("msprobe.collect.records.selection", "Selection", "leave"),
    (RECORDER, "Recorder", "fail"),
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
REST_OF_MONITOR = [
    ("msprobe.watch.store", "Store", "close"),
    ("msprobe.watch.monitor", "BaseMonitor", "_begin"),
    ("msprobe.watch.monitor", "BaseMonitor", "_prepare"),
    ("msprobe.watch.recording", "Recording", "take"),
    ("msprobe.watch.recording", "Recording", "close"),
    ("msprobe.mindspore.watch.monitor", "Monitor", "_make_sources"),
    ("msprobe.mindspore.watch.monitor", "Monitor", "_install"),
    ("msprobe.mindspore.watch.monitor", "Monitor", "_read_weights"),
    ("msprobe.mindspore.watch.monitor", "Monitor", "_number"),
    ("msprobe.mindspore.watch.monitor", None, "gradients_of"),
    ("msprobe.mindspore.watch.cells", "CellHooks", "install"),
    ("msprobe.mindspore.watch.cells", "CellHooks", "remove"),
    ("msprobe.mindspore.watch.cells", "CellHooks", "_follow"),
    ("msprobe.mindspore.watch.parameters", "DifferentiationHook", "install"),
    ("msprobe.mindspore.watch.parameters", "DifferentiationHook", "remove"),
    ("msprobe.mindspore.watch.parameters", "OptimizerHooks", "learning_rates"),
    ("msprobe.mindspore.watch.parameters", "OptimizerHooks", "remove"),
    ("msprobe.mindspore.watch.parameters", "Parameters", "sample"),
]


def slowly(functions: list[Any]) -> list[Any]:
    """MindSpore compiles the network and the optimizer for each of them."""
    return [pytest.param(one, marks=pytest.mark.slow) for one in functions]


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
        with pytest.raises((RuntimeError, ValueError), match=r"(?i)matmul"):
            ops.matmul(Tensor([[1.0, 2.0, 3.0]]), Tensor([[1.0, 2.0, 3.0]])).asnumpy()
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
    usual = getattr(holder, name)
    called: list[str] = []

    def fail(*args: Any, **kwargs: Any) -> None:
        called.append(name)
        if (owner, name) in AFTER_WORK:
            usual(*args, **kwargs)
        raise ZeroDivisionError(f"planted in {name}")

    assert hasattr(holder, name)
    monkeypatch.setattr(holder, name, fail)
    return called


def train_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Any, **settings: Any) -> bytes:
    """Trains with a debugger in which one function raises; `broken` names it. It must have run."""
    where, owner, name = broken
    probes: list[Probe] = []
    prepare = Probe.__init__
    monkeypatch.setattr(Probe, "__init__", lambda self, hooks: (probes.append(self), prepare(self, hooks))[1])
    called = break_it(monkeypatch, where, owner, name)
    debugger = PrecisionDebugger(dump_path=str(tmp_path), task="statistics", **settings)

    def end(_: Any) -> None:
        debugger.stop()
        debugger.step()

    try:
        trained = train(lambda net, _: debugger.start(net), end)
    finally:
        monkeypatch.undo()
        debugger._lifecycle.close()
        for probe in reversed(probes):  # what a broken function has left behind
            probe.remove()
            probe.close()
    assert called, f"{name} did not run"
    return trained


@pytest.mark.parametrize("broken", [*DEBUGGED, *slowly(INSTALLING)], ids=lambda one: one[2])
def test_no_error_of_the_debugger_reaches_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare: bytes, broken: Any
) -> None:
    assert train_broken(tmp_path, monkeypatch, broken, level="mix") == bare


@pytest.mark.parametrize("broken", [*KERNELS, *slowly(REST_OF_KERNELS)], ids=lambda one: one[2])
def test_no_error_of_level_l2_reaches_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare: bytes, broken: Any
) -> None:
    assert train_broken(tmp_path, monkeypatch, broken, level="L2") == bare


@pytest.mark.parametrize("level", [*slowly(["mix"]), "L2"])
@pytest.mark.parametrize("broken", SCOPED, ids=lambda one: one[2])
def test_no_error_with_a_scope_reaches_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare: bytes, broken: Any, level: str
) -> None:
    config = tmp_path / "config.json"
    scope = ["Cell.net.blocks.0.Block.forward.0", "Cell.net.blocks.1.Block.forward.0"]
    config.write_text(json.dumps({"task": "statistics", "statistics": {"scope": scope}}))
    assert train_broken(tmp_path / "dump", monkeypatch, broken, level=level, config_path=str(config)) == bare


@pytest.mark.parametrize("broken", [*MONITORED, *slowly(REST_OF_MONITOR)], ids=lambda one: one[2])
def test_no_error_of_the_monitor_reaches_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare: bytes, broken: Any
) -> None:
    where, owner, name = broken
    called = break_it(monkeypatch, where, owner, name)
    monitors: list[Monitor] = []

    def begin(net: nn.Cell, optimizer: Any) -> None:
        if not monitors:
            monitors.append(Monitor(net, optimizer, {"dump_path": str(tmp_path), "targets": "all"}))

    assert train(begin, lambda loss: monitors[0].step(loss=loss)) == bare
    monitors[0].close()
    assert called, f"{name} did not run"
