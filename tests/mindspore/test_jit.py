"""Regions under mindspore.jit inside a dynamic run."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from mscollecting import Dump, assert_same, collecting, configured
from msmodels import made, tensor

from msprobe.mindspore import PrecisionDebugger


class Compiled(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(3, 3)

    @ms.jit
    def construct(self, x: Any) -> Any:
        return ops.relu(self.fc(x))


class Root(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fast = Compiled()
        self.out = nn.Dense(3, 2)

    def construct(self, x: Any) -> Any:
        return self.out(self.fast(x) * 2)


@ms.jit
def region(x: Any, y: Any) -> Any:
    return ops.matmul(ops.relu(x), y)


def test_a_function_is_one_record_forward_and_backward(tmp_path):
    x, y = tensor(2, 3), tensor(3, 4, seed=1)
    run = ms.grad(lambda x, y: (region(x * 1, y) ** 2).sum(), (0, 1))
    bare = [run(x, y) for _ in range(2)][-1]
    with collecting(tmp_path, task="tensor") as dump:
        gradients = run(x, y)
    for gradient, expected in zip(gradients, bare):
        np.testing.assert_array_equal(gradient.asnumpy(), expected.asnumpy())
    assert not [name for name in dump.names if "relu" in name or "matmul" in name]
    forward = dump["Jit.region.0.forward"]
    assert_same(forward["input_args"][1], y)
    assert_same(forward["output"][0], np.maximum(x.asnumpy(), 0) @ y.asnumpy())
    backward = dump["Jit.region.0.backward"]
    np.testing.assert_allclose(dump.tensor(backward["output"][1]), gradients[1].asnumpy(), rtol=1e-5)


def test_collecting_while_it_compiles_leaves_no_trace_in_the_graph(tmp_path):
    @ms.jit
    def fresh(x: Any) -> Any:
        return ops.exp(ops.relu(x)) * 2

    x = tensor(2, 3)
    with collecting(tmp_path) as dump:
        first = fresh(x)
    second = fresh(x)
    np.testing.assert_array_equal(first.asnumpy(), second.asnumpy())
    np.testing.assert_allclose(first.asnumpy(), np.exp(np.maximum(x.asnumpy(), 0)) * 2, rtol=1e-5)
    assert dump.names == ["Jit.fresh.0.forward"]


def test_a_compiled_cell_at_l1_is_named_by_its_class(tmp_path):
    net = made(Root)
    x = tensor(2, 3)
    with collecting(tmp_path, net, level="L1") as dump:
        ms.grad(lambda x: net(x).sum())(x)
    assert_same(dump["Jit.Compiled.0.forward"]["input_args"][0], x)
    assert len(dump["Jit.Compiled.0.backward"]["output"]) == 1
    assert [name for name in dump.names if name.startswith("Primitive.matmul")]


def gradients_of(net: Any, x: Any) -> Any:
    return ms.value_and_grad(lambda x: net(x).sum(), 0, net.trainable_params())(x)[1]


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_compiled_cell_splits_the_directory(tmp_path, level):
    x = tensor(2, 3)
    bare = gradients_of(made(Root), x)
    net = made(Root)
    debugger = PrecisionDebugger(configured(tmp_path, level))
    debugger.start(net)
    result = gradients_of(net, x)
    debugger.stop()
    debugger.step()
    for found, expected in zip((result[0], *result[1]), (bare[0], *bare[1])):
        np.testing.assert_array_equal(found.asnumpy(), expected.asnumpy())
    dump = Dump(tmp_path / "dump" / "pynative")
    assert not dump.errors
    assert_same(dump["Cell.fast.Compiled.forward.0"]["input_args"][0], x)
    assert_same(dump["Cell.fast.Compiled.backward.0"]["output"][0], result[0])
    assert not [name for name in dump.names if "fast.fc" in name]
    assert not (tmp_path / "dump" / "step0").exists()
    inside = Dump(tmp_path / "dump" / "graph")
    assert not inside.errors
    assert inside.names == [
        "Cell.fast.fc.Dense.forward.0",
        "Cell.fast.Compiled.forward.0",
        "Cell.fast.fc.Dense.parameters_grad",
        "Cell.fast.fc.Dense.backward.0",
        "Cell.fast.Compiled.backward.0",
    ]
    assert inside["Cell.fast.Compiled.forward.0"]["output"] == dump["Cell.fast.Compiled.forward.0"]["output"]
    assert_same(inside["Cell.fast.Compiled.backward.0"]["output"][0], result[0])
    assert_same(inside["Cell.fast.fc.Dense.parameters_grad"]["weight"][0], result[1][0])
    assert inside.construct["Cell.fast.fc.Dense.forward.0"] == "Cell.fast.Compiled.forward.0"


def test_a_cell_that_was_compiled_before_start_is_logged(tmp_path, logged):
    net = made(Root)
    gradients_of(net, tensor(2, 3))
    debugger = PrecisionDebugger(configured(tmp_path, "L0"))
    debugger.start(net)
    gradients_of(net, tensor(2, 3))
    debugger.stop()
    debugger.step()
    assert logged("start(model) came too late: the graphs were compiled already")
    assert Dump(tmp_path / "dump" / "pynative")["Cell.fast.Compiled.forward.0"]["output"]


def test_hooks_are_not_compiled_into_functions_that_call_cells(tmp_path):
    net = made(lambda: nn.SequentialCell(nn.Dense(3, 3), nn.ReLU()))

    @ms.jit
    def forward(x: Any) -> Any:
        return net(x) * 2

    x = tensor(2, 3)
    with collecting(tmp_path, net, level="mix") as dump:
        result = forward(x)
        plain = net(x)
    np.testing.assert_allclose(result.asnumpy(), plain.asnumpy() * 2, rtol=1e-5)
    assert "Jit.forward.0.forward" in dump.names
    assert [name for name in dump.names if name.startswith("Cell")] == [
        "Cell.0.Dense.forward.0",
        "Cell.1.ReLU.forward.0",
    ]


def test_compiled_code_is_not_compiled_anew_at_every_step(tmp_path):
    from mindspore.common.hook_handle import _hook_version

    net = made(Root)
    debugger = PrecisionDebugger(configured(tmp_path, "mix"))
    before = _hook_version()
    for _ in range(3):
        debugger.start(net)
        net(tensor(2, 3))
        debugger.stop()
        debugger.step()
    assert _hook_version() == before


def test_bytecode_regions_run_as_python_and_their_apis_are_seen(tmp_path):
    @ms.jit(capture_mode="bytecode")
    def captured(x: Any) -> Any:
        return ops.exp(ops.relu(x))

    x = tensor(2, 3)
    with collecting(tmp_path) as dump:
        result = captured(x)
    np.testing.assert_allclose(result.asnumpy(), np.exp(np.maximum(x.asnumpy(), 0)), rtol=1e-5)
    assert dump.names == ["Functional.relu.0.forward", "Functional.exp.0.forward"]
    assert captured(x).shape == (2, 3)


def test_an_exception_inside_a_region_puts_everything_back(tmp_path):
    x = tensor(2, 3)
    with collecting(tmp_path) as dump:
        with pytest.raises((ValueError, RuntimeError, TypeError)):
            region(x, x)
        ops.exp(x)
    assert dump["Jit.region.0.forward"]["raised"]
    assert "Functional.exp.0.forward" in dump.names
