"""Gradients: in argument order, from that call alone, None where none flows; against mindspore.grad."""

from __future__ import annotations

import gc
import json
import weakref
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops
from mscollecting import assert_same, collecting
from msmodels import Net, batch, made, tensor

from msprobe.mindspore import PrecisionDebugger


def of(dump: Any, name: str) -> tuple[Any, Any]:
    record = dump[name]
    return record["input"], record["output"]


def test_an_input_used_twice_has_the_gradient_of_each_call(tmp_path):
    x = tensor(3, 4)
    with collecting(tmp_path) as dump:
        total = ms.grad(lambda x: (ops.relu(x) + ops.exp(x)).sum())(x)
    _, (relu,) = of(dump, "Functional.relu.0.backward")
    _, (exp,) = of(dump, "Functional.exp.0.backward")
    assert_same(relu, (x.asnumpy() > 0).astype(np.float32))
    assert_same(exp, np.exp(x.asnumpy()))
    np.testing.assert_allclose(total.asnumpy(), (x.asnumpy() > 0) + np.exp(x.asnumpy()), rtol=1e-5)


def test_both_places_of_one_tensor_have_their_own(tmp_path):
    x = tensor(3, 4)
    with collecting(tmp_path) as dump:
        ms.grad(lambda x: (x * x).sum())(x)
    _, outputs = of(dump, "Tensor.__mul__.0.backward")
    assert_same(outputs[0], x)
    assert_same(outputs[1], x)


def test_arguments_keep_their_order_and_those_without_gradient_are_null(tmp_path):
    x, w, mask = tensor(2, 3), tensor(3, 4, seed=1), Tensor(np.ones((2, 4), np.int32))
    with collecting(tmp_path, task="tensor") as dump:
        gradients = ms.grad(lambda x, w: (ops.matmul(x, w) * mask).sum(), (0, 1))(x, w)
    _, outputs = of(dump, "Functional.matmul.0.backward")
    for record, gradient in zip(outputs, gradients):
        np.testing.assert_array_equal(dump.tensor(record), gradient.asnumpy())
    _, outputs = of(dump, "Tensor.__mul__.0.backward")
    assert outputs[1] is None


def test_keyword_arguments_have_gradients_too(tmp_path):
    x, y = tensor(2, 3), tensor(2, 3, seed=1)
    with collecting(tmp_path) as dump:
        ms.grad(lambda x, y: mint.add(input=x, other=y, alpha=3).sum(), (0, 1))(x, y)
    _, outputs = of(dump, "Mint.add.0.backward")
    assert_same(outputs[0], np.ones((2, 3)))
    assert_same(outputs[1], np.full((2, 3), 3.0))


def test_an_unused_output_has_no_gradient_coming_in(tmp_path):
    x = tensor(4, 6)
    with collecting(tmp_path) as dump:
        gradient = ms.grad(lambda x: (ops.split(x, 2, 1)[1] * 2).sum())(x)
    inputs, outputs = of(dump, "Functional.split.0.backward")
    assert inputs[0] is None
    assert inputs[2] is None
    assert_same(inputs[1], np.full((4, 2), 2.0))
    assert_same(outputs[0], gradient)


def test_composites_are_one_record(tmp_path):
    logits, labels = tensor(5, 3), Tensor([0, 2, 1, 1, 0], ms.int32)
    with collecting(tmp_path, task="tensor") as dump:
        gradient = ms.grad(lambda x: ops.cross_entropy(x, labels))(logits)
    inputs, outputs = of(dump, "Functional.cross_entropy.0.backward")
    assert inputs[0]["Max"] == 1
    np.testing.assert_allclose(dump.tensor(outputs[0]), gradient.asnumpy(), rtol=1e-5)
    assert outputs[1] is None
    assert [name for name in dump.names if name.endswith("backward")] == ["Functional.cross_entropy.0.backward"]


class Mixed(nn.Cell):
    """Outputs of every kind: a dict, numbers and text among tensors, a nested list."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(4, 4)

    def construct(self, x: Any, scale: Any = None) -> Any:
        y = self.fc(x)
        return {"hidden": y, "count": 3, "name": "mixed", "both": [y * scale, None]}


class Holder(nn.Cell):
    def __init__(self, inner: nn.Cell) -> None:
        super().__init__()
        self.inner = inner

    def construct(self, x: Any, scale: Any) -> Any:
        out = self.inner(x, scale=scale)
        return out["both"][0].sum() + out["hidden"].sum() * 2


def test_cells_with_dict_outputs_and_keywords_have_a_backward(tmp_path):
    net = made(lambda: Holder(Mixed()))
    x, scale = tensor(2, 4), tensor(2, 4, seed=1)
    with collecting(tmp_path, net, level="L0", task="tensor") as dump:
        gradients = ms.grad(net, (0, 1))(x, scale)
    forward = dump["Cell.inner.Mixed.forward.0"]
    assert list(forward["input_kwargs"]) == ["scale"]
    assert forward["output"][0]["count"] == {"type": "int", "value": 3}
    assert forward["output"][0]["name"] == {"type": "str", "value": "mixed"}
    assert forward["output"][0]["both"][1] is None
    inputs, outputs = of(dump, "Cell.inner.Mixed.backward.0")
    assert_same(inputs[1], np.ones((2, 4)))
    for record, gradient in zip(outputs, gradients):
        np.testing.assert_allclose(dump.tensor(record), gradient.asnumpy(), rtol=1e-5)


def test_every_cell_and_parameter_of_a_network(tmp_path):
    net = made(Net)
    x, y = batch(0)
    loss = nn.CrossEntropyLoss()
    function = ms.value_and_grad(lambda x, y: loss(net(x), y), 0, net.trainable_params())
    with collecting(tmp_path, net, level="mix", task="tensor") as dump:
        _, (gradient, weights) = function(x, y)
    _, outputs = of(dump, "Cell.conv.Conv2d.backward.0")
    np.testing.assert_allclose(dump.tensor(outputs[0]), gradient.asnumpy(), rtol=1e-5)
    expected = dict(zip([p.name for p in net.trainable_params()], weights))
    found = {
        f"{name.split('.', 1)[1].rsplit('.', 2)[0]}.{key}": dump.tensor(value[0])
        for name, record in dump.data.items()
        if name.endswith(".parameters_grad")
        for key, value in record.items()
    }
    assert set(found) == set(expected)
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name].asnumpy(), err_msg=name)


def test_a_shared_cell_called_twice_sums_its_parameters_and_splits_its_calls(tmp_path):
    class Twice(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Dense(3, 3)
            self.alias = self.fc

        def construct(self, x: Any) -> Any:
            return self.alias(self.fc(x)).sum()

    net = made(Twice)
    x = tensor(2, 3)
    with collecting(tmp_path, net, level="L0", task="tensor") as dump:
        _, (gradient, weights) = ms.value_and_grad(net, 0, net.trainable_params())(x)
    backward = [name for name in dump.names if ".backward." in name]
    assert backward == ["Cell.fc.Dense.backward.1", "Cell.fc.Dense.backward.0"]
    np.testing.assert_allclose(dump.tensor(of(dump, backward[1])[1][0]), gradient.asnumpy(), rtol=1e-5)
    np.testing.assert_array_equal(dump.tensor(dump["Cell.fc.Dense.parameters_grad"]["weight"][0]), weights[0].asnumpy())


def test_one_input_reached_by_several_ways_has_their_sum(tmp_path):
    class Perturbations(nn.Cell):
        def construct(self, x: Any) -> Any:
            return x * 2 + x * 3 + x

    class Root(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.ways = Perturbations()

        def construct(self, x: Any) -> Any:
            return self.ways(x)

    for dtype in (ms.float32, ms.float16, ms.bfloat16):
        x = tensor(3, 5, dtype=dtype)
        net = Root()
        with collecting(tmp_path / str(dtype), net, level="L0", task="tensor") as dump:
            gradient = ms.grad(net)(x)
        _, outputs = of(dump, "Cell.ways.Perturbations.backward.0")
        saved = dump.tensor(outputs[0])
        assert outputs[0]["dtype"] == str(dtype)
        expected = gradient.astype(ms.float32).asnumpy()
        np.testing.assert_allclose(saved.astype(np.float32), expected, rtol=1e-5 if dtype == ms.float32 else 2e-2)


def test_the_same_tensor_as_several_arguments_of_a_cell_is_marked(tmp_path):
    class Attention(nn.Cell):
        def construct(self, q: Any, k: Any, v: Any) -> Any:
            return ops.matmul(ops.softmax(ops.matmul(q, k.T), -1), v)

    class Root(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.attention = Attention()

        def construct(self, x: Any) -> Any:
            return self.attention(x, x, x).sum()

    net, x = Root(), tensor(3, 3)
    with collecting(tmp_path, net, level="L0") as dump:
        gradient = ms.grad(net)(x)
    record = dump["Cell.attention.Attention.backward.0"]
    assert record["shared_gradient"] == [0, 1, 2]
    assert_same(record["output"][0], gradient, rel=1e-4)
    assert record["output"][1:] == [None, None]


def test_in_place_assignment(tmp_path):
    x, value = tensor(3, 4), tensor(4, seed=1)

    def function(x: Any, value: Any) -> Any:
        y = x * 1.0
        y[1] = value
        return (y * y).sum()

    with collecting(tmp_path) as dump:
        ms.grad(function, (0, 1))(x, value)
    forward = dump["Tensor.__setitem__.0.forward"]
    assert_same(forward["input_args"][0], x)
    changed = x.asnumpy().copy()
    changed[1] = value.asnumpy()
    assert_same(dump["Tensor.__mul__.1.forward"]["input_args"][0], changed)
    gradients = dump["Tensor.__setitem__.0.backward"]
    assert_same(gradients["input"][0], 2 * changed)
    before = 2 * changed
    before[1] = 0
    assert_same(gradients["output"][0], before)


def test_custom_bprop_and_calls_without_gradient(tmp_path):
    class Custom(nn.Cell):
        def construct(self, x: Any) -> Any:
            return x * 2

        def bprop(self, x: Any, out: Any, dout: Any) -> Any:
            return (dout * 3,)

    class Root(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.custom = Custom()

        def construct(self, x: Any) -> Any:
            return self.custom(x).sum() + ops.stop_gradient(ops.relu(x)).sum()

    net, x = Root(), tensor(2, 3)
    with collecting(tmp_path, net, level="mix") as dump:
        ms.grad(net)(x)
    assert_same(of(dump, "Cell.custom.Custom.backward.0")[1][0], np.full((2, 3), 3.0))
    assert "Functional.relu.0.backward" not in dump.names
    assert "Functional.relu.0.forward" in dump.names


def test_users_own_hooks_still_work_and_are_seen(tmp_path):
    net = made(Net)
    seen: list[str] = []
    net.head.register_forward_pre_hook(lambda cell, args: (args[0] * 2,))
    net.head.register_forward_hook(lambda cell, args, output: output + 1)
    net.head.register_backward_hook(lambda cell, gi, go: seen.append("backward"))
    net.head.weight.register_hook(lambda g: g * 0)
    x = batch(0)[0]
    bare = [net(x).asnumpy() for _ in range(2)][-1]
    with collecting(tmp_path, net, level="L0") as dump:
        _, weights = ms.value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())(x)
        result = net(x)
    np.testing.assert_array_equal(result.asnumpy(), bare)
    assert seen
    assert not weights[-2].asnumpy().any()
    assert_same(dump["Cell.head.Dense.forward.1"]["output"][0], result)
    assert_same(dump["Cell.head.Dense.parameters_grad"]["weight"][0], np.zeros((3, 6)))


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_cells_are_marked_and_gradients_are_right(tmp_path, reentrant):
    class Inner(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Dense(3, 3)

        def construct(self, x: Any) -> Any:
            return ops.tanh(self.fc(x))

    class Root(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def construct(self, x: Any) -> Any:
            return self.inner(x).sum()

    net = made(Root)
    net.inner.recompute(use_reentrant=reentrant)
    x = tensor(2, 3)
    run = ms.value_and_grad(net, 0, net.trainable_params())
    bare = [run(x) for _ in range(2)][-1]
    with collecting(tmp_path, net, level="mix", task="tensor") as dump:
        _, (gradient, weights) = run(x)
    np.testing.assert_array_equal(gradient.asnumpy(), bare[1][0].asnumpy())
    first, again = dump["Cell.inner.fc.Dense.forward.0"], dump["Cell.inner.fc.Dense.forward.1"]
    assert "is_recompute" not in first
    assert again["is_recompute"] is True
    assert dump.construct["Cell.inner.fc.Dense.forward.1"] == "Cell.inner.Inner.forward.0"
    np.testing.assert_allclose(
        dump.tensor(dump["Cell.inner.Inner.backward.0"]["output"][0]), gradient.asnumpy(), rtol=1e-5
    )
    np.testing.assert_array_equal(
        dump.tensor(dump["Cell.inner.fc.Dense.parameters_grad"]["weight"][0]), weights[0].asnumpy()
    )


def test_stop_before_the_backward_still_gets_the_gradients(tmp_path):
    debugger = PrecisionDebugger(task="statistics", level="L1", dump_path=str(tmp_path / "dump"))

    def function(x: Any) -> Any:
        debugger.start()
        y = ops.relu(x)
        debugger.stop()
        z = ops.exp(y)
        debugger.start()
        w = ops.sin(z)
        debugger.stop()
        return w.sum()

    ms.grad(function)(tensor(2, 3))
    debugger.step()
    names = json.loads((tmp_path / "dump/step0/rank/dump.json").read_text())["data"]
    assert set(names) == {f"Functional.{api}.0.{way}" for api in ("relu", "sin") for way in ("forward", "backward")}


def test_second_derivatives_keep_the_first_pass(tmp_path):
    x = tensor(3)
    with collecting(tmp_path) as dump:
        second = ms.grad(lambda x: ms.grad(lambda x: (ops.exp(x)).sum())(x).sum())(x)
    np.testing.assert_allclose(second.asnumpy(), np.exp(x.asnumpy()), rtol=1e-5)
    assert "Functional.exp.0.forward" in dump.names


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_tensors_and_graphs_are_not_kept_alive(tmp_path, level):
    net = made(Net)
    alive: list[Any] = []
    net.blocks.register_forward_hook(lambda cell, args, output: alive.append(weakref.ref(output)))
    debugger = PrecisionDebugger(task="statistics", level=level, dump_path=str(tmp_path / "dump"))
    debugger.start(net)
    ms.grad(lambda x: net(x).sum())(batch(0)[0])
    gc.collect()
    assert alive[0]() is None
    debugger.stop()
    debugger.step()


def test_gradient_accumulation_keeps_the_last_of_the_step(tmp_path):
    net = made(Net)
    run = ms.value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())
    with collecting(tmp_path, net, level="L0", task="tensor") as dump:
        for number in range(2):
            _, weights = run(batch(number)[0])
    assert "Cell.head.Dense.backward.1" in dump.names
    saved = dump.tensor(dump["Cell.head.Dense.parameters_grad"]["weight"][0])
    np.testing.assert_array_equal(saved, weights[-2].asnumpy())


def test_parameters_as_plain_arguments(tmp_path):
    weight = Parameter(tensor(3, 3), name="w")
    x = tensor(2, 3)
    with collecting(tmp_path) as dump:
        _, gradients = ms.value_and_grad(lambda x: ops.matmul(x, weight).sum(), None, [weight])(x)
    _, outputs = of(dump, "Functional.matmul.0.backward")
    assert_same(outputs[1], gradients[0])
