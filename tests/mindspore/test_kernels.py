"""Level L2 in dynamic mode: operators through the dispatch mode, and what it does not see."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from mscollecting import collecting

from msprobe.collect.records.recorder import Recorder
from msprobe.mindspore.kernels.kernel_calls import Kernels


class Small(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(4, 4, weight_init="ones", bias_init="zeros")
        self.norm = nn.LayerNorm((4,))

    def construct(self, x):
        return ops.relu(self.norm(self.fc(x))).sum()


@pytest.fixture(scope="module", autouse=True)
def a_graph_has_run():
    """What this process compiles is not dumped: a dump is for the life of a process (test_region_kernels.py)."""

    @ms.jit
    def small(x):
        return x + 1

    small(Tensor(1.0))


X = np.arange(8, dtype=np.float32).reshape(2, 4)


def differentiated(net):
    return ms.value_and_grad(net, None, net.trainable_params())(Tensor(X))


def test_names_directions_and_parents(tmp_path):
    net = Small()
    with collecting(tmp_path, net, level="L2") as dump:
        differentiated(net)
    construct = dump.construct
    assert {"Kernel.MatMul.0.forward", "Kernel.BiasAdd.0.forward", "Kernel.LayerNorm.0.forward"} <= set(dump.names)
    assert "Kernel.ReluGrad.0.backward" in dump.names
    assert "Kernel.MatMul.0.backward" in dump.names
    assert construct["Kernel.MatMul.0.forward"] is not None
    assert ".forward" in construct["Kernel.MatMul.0.forward"]
    assert construct["Kernel.ReLU.0.forward"].startswith(("Functional.relu.0", "Mint", "Primitive."))


def test_the_backward_that_the_mode_does_not_see_is_read_off_the_graph(tmp_path):
    net = Small()
    with collecting(tmp_path / "two", net, level="L2") as dump:
        differentiated(net)
    assert {"Kernel.LayerNorm.0.backward", "Kernel.BiasAdd.0.backward"} <= set(dump.names)
    backward = dump["Kernel.BiasAdd.0.backward"]
    assert backward["input"][0]["shape"] == [2, 4]


def test_values_are_the_operators(tmp_path):
    x = Tensor(X)
    with collecting(tmp_path, level="L2", task="tensor") as dump:
        y = ops.exp(x)
    (name,) = dump.names
    record = dump[name]
    assert record["input_args"][0]["Max"] == 7.0
    assert np.array_equal(dump.tensor(record["output"][0]), y.asnumpy())


def test_results_are_the_same_to_the_last_bit(tmp_path):
    ms.set_seed(1)
    net = Small()
    bare_loss, bare_gradients = differentiated(net)
    with collecting(tmp_path, net, level="L2"):
        loss, gradients = differentiated(net)
    assert np.array_equal(loss.asnumpy(), bare_loss.asnumpy())
    assert all(np.array_equal(one.asnumpy(), two.asnumpy()) for one, two in zip(gradients, bare_gradients))


def test_filters(tmp_path):
    net = Small()
    with collecting(tmp_path, net, level="L2", section={"list": ["MatMul"], "data_mode": ["forward"]}) as dump:
        differentiated(net)
    assert dump.names == ["Kernel.MatMul.0.forward"]
    with collecting(tmp_path / "b", net, level="L2", section={"data_mode": ["backward"]}) as dump:
        differentiated(net)
    assert dump.names
    assert all(name.endswith(".backward") for name in dump.names)


def test_operators_that_stay_unseen_are_logged(tmp_path, logged):
    weight = ms.Parameter(Tensor(X), name="w")
    primitive = (
        ops.Softmax()
    )  # bound before us and in no model: no API is seen round it, and no operator takes its result
    with collecting(tmp_path, level="L2"):
        ms.grad(lambda: primitive(weight), None, [weight])()
    assert logged("the backward of Softmax was not seen")


def test_training_continues_after_an_operator_that_raised(tmp_path):
    with collecting(tmp_path, level="L2") as dump:
        with pytest.raises(RuntimeError):
            ms.grad(lambda x: ops.matmul(x, x).sum())(Tensor(X))
        gradient = ms.grad(lambda x: (x[0] * x[1]).sum())(Tensor(X))
    assert np.array_equal(gradient.asnumpy(), X[::-1])
    assert any(record.get("raised") == "RuntimeError" for record in dump.data.values())


def test_a_compiled_region_is_logged(tmp_path, logged):
    @ms.jit
    def compiled(x):
        return ops.exp(x) + 1

    with collecting(tmp_path, level="L2") as dump:
        compiled(Tensor(X))
        ops.exp(Tensor(X))
    assert logged("kernels inside a compiled region")
    assert [name for name in dump.names if "Exp" in name] == ["Kernel.Exp.0.forward"]
    assert dump["Jit.compiled.0.forward"]["output"][0]["Min"] == 2.0  # the region, whole: exp(0) + 1


def test_an_operator_that_raises_keeps_its_own_error(tmp_path):
    with collecting(tmp_path, level="L2"), pytest.raises(RuntimeError, match="MatMulExt"):
        ops.matmul(Tensor(np.ones((2, 3), np.float32)), Tensor(np.ones((2, 3), np.float32)))


@pytest.mark.parametrize(("where", "name"), [(Kernels, "inputs"), (Recorder, "first_batch")])
def test_an_error_of_msprobe_does_not_reach_the_script(tmp_path, monkeypatch, where, name):
    def broken(*_):
        raise KeyError("ours")

    net = Small()
    _, expected = differentiated(net)
    monkeypatch.setattr(where, name, broken)
    with collecting(tmp_path, net, faults=True, level="L2") as dump:
        _, found = differentiated(net)
    assert "KeyError: 'ours'" in dump.errors
    assert "Kernel.MatMul.0.forward" in dump.names
    for one, other in zip(expected, found):
        np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())
