"""Loss and weights with the tool are bit for bit those without it, and nothing of it is left behind."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import mindspore as ms
import pytest
from mindspore import Tensor, mint, nn, ops
from mindspore.dataset import GeneratorDataset
from mindspore.train import Callback, Model
from mscollecting import Dump, collecting, configured
from msmodels import Net, batch, made, trained

from msprobe.mindspore import MsprobeStep, PrecisionDebugger, executor
from msprobe.mindspore.apis import jit_regions

TASKS = ("statistics", "tensor", "structure", "overflow_check")
CASES = [(level, task) for level in ("L0", "L1", "mix") for task in TASKS]
CASES += [("debug", "statistics"), ("debug", "tensor")]


@pytest.fixture(scope="module")
def bare() -> bytes:
    """MindSpore tunes its CPU kernels over their first runs, and their last bits change with it: let it settle."""
    results = [trained(3) for _ in range(10)]
    assert results[-1] == results[-2] == results[-3]
    return results[-1]


@pytest.mark.parametrize(("level", "task"), CASES)
def test_value_and_grad_gives_the_same_bits(tmp_path, bare, level, task):
    debugger = PrecisionDebugger(configured(tmp_path, level, task))

    def around(net: Any, step: Any) -> None:
        debugger.start(net)
        step()
        debugger.stop()
        debugger.step()

    assert trained(3, around) == bare
    for number in range(3):
        assert not Dump(tmp_path / "dump", number).errors


@pytest.mark.parametrize("mode", ["md5", "xor"])
def test_digests_change_nothing_either(tmp_path, bare, mode):
    debugger = PrecisionDebugger(configured(tmp_path, "mix", section={"summary_mode": mode}))

    def around(net: Any, step: Any) -> None:
        debugger.start(net)
        step()
        debugger.step()

    assert trained(3, around) == bare


def model_trained(callbacks: Any, prepare: Any = None) -> bytes:
    net = made(Net)
    if prepare is not None:
        prepare(net)
    optimizer = nn.Momentum(net.trainable_params(), 1e-2, 0.9)
    data = GeneratorDataset([tuple(each.asnumpy() for each in batch(n)) for n in range(3)], ["x", "y"], shuffle=False)
    Model(net, nn.CrossEntropyLoss(), optimizer).train(1, data, callbacks=callbacks, dataset_sink_mode=False)
    return b"".join(p.asnumpy().tobytes() for p in net.get_parameters())


class Losses(Callback):
    """The loss of every step, bit by bit."""

    def __init__(self) -> None:
        self.seen = b""

    def on_train_step_end(self, run_context: Any) -> None:
        self.seen += run_context.original_args().net_outputs.asnumpy().tobytes()


@pytest.mark.parametrize(("level", "task"), CASES)
def test_model_train_gives_the_same_bits_and_one_directory_a_step(tmp_path, level, task):
    bare, losses = Losses(), Losses()
    for _ in range(4):
        bare.seen = b""
        expected = model_trained([bare])
    debugger = PrecisionDebugger(configured(tmp_path, level, task))
    assert model_trained([MsprobeStep(debugger), losses], debugger.start) == expected
    assert losses.seen == bare.seen
    assert len(losses.seen) == 12
    for number in range(3 if level != "debug" else 0):
        dump = Dump(tmp_path / "dump", number)
        if task == "overflow_check":
            assert not dump.names
        else:
            assert any(name.endswith((".backward", "backward.0")) for name in dump.names)
            assert ("Cell.head.Dense.parameters_grad" in dump.names) == (level != "L1")
        assert not dump.errors
    assert not (tmp_path / "dump" / "step3").exists()


def state() -> dict[str, Any]:
    """Everything in MindSpore that the tool may touch."""
    places = {
        "ops": ops,
        "functional": ops.functional,
        "mint": mint,
        "mint functional": mint.nn.functional,
        "Tensor": Tensor,
        "ReLU": ops.ReLU,
        "Conv2D": ops.Conv2D,
        "Tanh": ops.Tanh,
        "jit": jit_regions._JitExecutor,
        "executor": type(executor._pynative_executor),
        "bytecode": jit_regions.PIJitCaptureContext,
    }
    return {
        f"{place}.{name}": value
        for place, holder in places.items()
        for name, value in vars(holder).items()
        if not isinstance(value, ModuleType)  # MindSpore imports some of its own late
    }


def cell_state(net: nn.Cell) -> list[Any]:
    found = []
    for _, cell in net.cells_and_names():
        found += [dict(cell._forward_pre_hook), dict(cell._forward_hook), dict(cell._forward_hook_with_kwargs)]
        found += [dict(cell._forward_hook_always_called), dict(cell._forward_pre_hook_with_kwargs)]
        found += [{k: v for k, v in vars(cell).items() if callable(v)}, [p.hooks() for p in cell._params.values()]]
    return found


@pytest.mark.parametrize("level", ["L0", "L1", "mix", "debug"])
def test_off_is_off(tmp_path, level):
    net = made(Net)
    before, cells = state(), cell_state(net)
    with collecting(tmp_path, net, level=level):
        ms.grad(lambda x: net(x).sum())(batch(0)[0])
        if level != "debug":
            assert (state(), cell_state(net)) != (before, cells)
    assert state() == before
    assert cell_state(net) == cells


def test_between_wanted_steps_nothing_is_installed(tmp_path):
    net = made(Net)
    before, cells = state(), cell_state(net)
    debugger = PrecisionDebugger(configured(tmp_path, "mix", step=[1]))
    for number in range(4):
        debugger.start(net)
        if number != 1:
            assert state() == before
            assert cell_state(net) == cells
        net(batch(number)[0])
        debugger.stop()
        debugger.step()
    assert [path.name for path in (tmp_path / "dump").glob("step*")] == ["step1"]


def test_an_exception_of_the_scripts_own_leaves_nothing_behind(tmp_path):
    net = made(Net)
    before, cells = state(), cell_state(net)
    debugger = PrecisionDebugger(configured(tmp_path, "mix"))
    debugger.start(net)
    with pytest.raises((ValueError, RuntimeError, TypeError)):
        net(Tensor([1.0]))
    debugger.stop()
    debugger.step()
    assert state() == before
    assert cell_state(net) == cells
