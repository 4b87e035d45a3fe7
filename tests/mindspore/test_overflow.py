"""overflow_check on MindSpore's dynamic graph: planted overflows, each with its producer; clean runs without one."""

from __future__ import annotations

import gc
import json
import math
import weakref
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, amp, mint, nn, ops
from mscollecting import Dump, collecting, configured
from msmodels import tensor, trained

from msprobe.cli import main
from msprobe.mindspore import PrecisionDebugger
from msprobe.mindspore.tasks.overflow_inspector import MindSporeTensorInspector
from msprobe.tasks.overflow_check.recorder import OverflowStop

NEVER = {"overflow_nums": -1}


def half(*values: float) -> Tensor:
    return Tensor(list(values), ms.float16)


def fp16_exp():
    ops.exp(half(1.0, 20.0))


def log_of_zero():
    ops.log(Tensor([1.0, 0.0])).sum()


def zero_by_zero():
    Tensor([0.0, 0.0]) / Tensor([0.0, 0.0])


def a_row_of_minus_infinity():
    mask = Tensor([[0.0, -math.inf], [-math.inf, -math.inf]])
    ops.log_softmax(tensor(2, 2) + mask, axis=-1)  # MindSpore's softmax itself gives 0 for such a row


def masked_rows_filled():
    scores = tensor(2, 2).masked_fill(Tensor(np.ones((2, 2), bool)), -math.inf)
    ops.exp(scores - scores.max(axis=-1, keepdims=True))


def a_gradient_that_blows_up():
    ms.grad(lambda x: ops.sqrt(x).sum())(Tensor([0.0, 4.0]))


def a_gradient_deep_in_the_graph():
    ms.grad(lambda x: ops.sqrt(x * 0.0).sum())(Tensor([1.0, 4.0]))


def a_gradient_of_fp16():
    ms.grad(lambda x: ((x * 0.5) * half(4.0) * half(60000.0)).sum())(half(0.25))


def inside_a_list():
    ops.split(Tensor([1e30, 1.0, 1e20, 2.0]) * Tensor([1e30, 1.0, 1.0, 1.0]), 2)


def of_several_outputs():
    ops.meshgrid(Tensor([1.0]), Tensor([2.0]))
    ops.std(Tensor([1e38, -3e38]), ddof=0)


def set_by_index():
    x = Tensor([1.0, 2.0, 3.0])
    x[1] = Tensor(3e38) * 10.0


def in_the_optimizer():
    weight = Parameter(Tensor([3e38, 1.0]), name="weight")
    nn.SGD([weight], learning_rate=10.0)((Tensor([-3e38, 0.0]),))


def in_an_assignment():
    weight = Parameter(Tensor([3e38, 1.0]), name="weight")
    ops.assign_add(weight, Tensor([3e38, 0.0]))


def in_recomputation():
    class Inner(nn.Cell):
        def construct(self, x):
            return ops.exp(x)

    class Outer(nn.Cell):
        def __init__(self):
            super().__init__()
            self.inner = Inner()
            self.inner.recompute()

        def construct(self, x):
            return self.inner(x).sum()

    ms.grad(Outer())(Tensor([100.0]))


def in_a_matmul():
    ops.matmul(Tensor(np.full((2, 2), 300), ms.float16), Tensor(np.full((2, 2), 300), ms.float16))


def in_a_cast():
    Tensor([1e5]).astype(ms.float16)


def of_complex_numbers():
    ops.mul(Tensor([1e38 + 0j], ms.complex64), Tensor([1e38 + 0j], ms.complex64))


def of_a_strided_tensor():
    ops.exp(mint.transpose(Tensor(np.full((4, 4), 100.0, np.float32)), 0, 1)[::2])


def in_a_compiled_function():
    @ms.jit
    def blow(x):
        return ops.exp(x)

    blow(Tensor([100.0]))


PLANTED = [
    (fp16_exp, "Functional.exp.0.forward"),
    (log_of_zero, "Functional.log.0.forward"),
    (zero_by_zero, "Tensor.__truediv__.0.forward"),
    (a_row_of_minus_infinity, "Functional.log_softmax.0.forward"),
    (masked_rows_filled, "Tensor.__sub__.0.forward"),
    (a_gradient_that_blows_up, "Functional.sqrt.0.backward"),
    (a_gradient_deep_in_the_graph, "Functional.sqrt.0.backward"),
    (a_gradient_of_fp16, "Tensor.__mul__.1.backward"),
    (inside_a_list, "Tensor.__mul__.0.forward"),
    (of_several_outputs, "Functional.std.0.forward"),
    (set_by_index, "Tensor.__mul__.0.forward"),
    (in_the_optimizer, "Jit.SGD.0.forward"),
    (in_an_assignment, "Functional.assign_add.0.forward"),
    (in_recomputation, "Functional.exp.0.forward"),
    (in_a_matmul, "Functional.matmul.0.forward"),
    (in_a_cast, "Tensor.astype.0.forward"),
    (of_complex_numbers, "Functional.mul.0.forward"),
    (of_a_strided_tensor, "Functional.exp.0.forward"),
    (in_a_compiled_function, "Jit.blow.0.forward"),
]
NAMES = [plant.__name__ for plant, _ in PLANTED]


def producers(dump: Dump) -> list[str]:
    return [name for name, record in dump.data.items() if record["overflow"] == "producer"]


@pytest.mark.parametrize(("plant", "producer"), PLANTED, ids=NAMES)
def test_a_planted_overflow_has_its_producer(tmp_path, plant, producer, capsys):
    with collecting(tmp_path, task="overflow_check", section=NEVER) as dump:
        plant()
    assert producers(dump)[:1] == [producer]
    assert main(["overflow", str(tmp_path / "dump"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    masked = any(word in plant.__name__ for word in ("mask", "minus_infinity"))
    assert found["message"]["id"] == ("overflow.producer_infinite" if masked else "overflow.producer")
    assert found["producer"]["name"] == producer
    assert (found["producer"]["step"], found["producer"]["rank"]) == (0, None)
    assert "test_overflow.py" in found["producer"]["source"]
    assert found["producer"]["direction"] == producer.rpartition(".")[2]


# An optimizer returns whether it ran: statistics do not show its parameters.
SHOWN = [(plant, producer) for plant, producer in PLANTED if plant is not in_the_optimizer]


@pytest.mark.parametrize(("plant", "producer"), SHOWN, ids=[plant.__name__ for plant, _ in SHOWN])
def test_a_planted_overflow_is_found_in_a_statistics_dump(tmp_path, plant, producer, capsys):
    with collecting(tmp_path):
        plant()
    for name in ("stack.json", "construct.json"):
        (tmp_path / "dump" / "step0" / "rank" / name).unlink()
    assert main(["overflow", str(tmp_path / "dump"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["producer"]["name"] == producer
    assert found["producer"]["source"] is None


@pytest.mark.parametrize(("plant", "producer"), PLANTED, ids=NAMES)
def test_a_producer_can_be_replayed(tmp_path, plant, producer, capsys):
    with collecting(tmp_path, task="overflow_check", section=NEVER):
        plant()
    code = main(["overflow", "replay", str(tmp_path / "dump" / "step0" / "rank" / producer)])
    if producer.startswith("Jit."):
        assert code == 2
        assert "compiled region" in capsys.readouterr().err
    else:
        assert code == 1, capsys.readouterr().err
        assert "reproduced" in capsys.readouterr().out


def clean_masks():
    mask = Tensor(np.triu(np.full((4, 4), -math.inf, np.float32), 1))
    ms.grad(lambda x: ops.softmax(x + mask, axis=-1).sum())(tensor(4, 4))


def clean_fill():
    scores = tensor(4, 4).masked_fill(Tensor(np.triu(np.ones((4, 4), bool), 1)), -math.inf)
    ops.softmax(scores, axis=-1)


def clean_minimum():
    ops.minimum(Tensor([math.inf, 1.0]), Tensor([2.0, 3.0]))


def clean_training():
    trained(2)


def clean_but_compiled():
    @ms.jit
    def squared(x):
        return x * x

    ms.grad(squared)(Tensor([2.0]))


CLEAN = [clean_masks, clean_fill, clean_minimum, clean_training, clean_but_compiled]


@pytest.mark.parametrize("run", CLEAN)
def test_a_clean_run_has_none(tmp_path, run, logged, capsys):
    with collecting(tmp_path, task="overflow_check") as dump:
        run()
    assert dump.data == {}
    assert main(["overflow", str(tmp_path / "dump"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["producer"], found["overflows"], found["message"]["id"]) == (None, 0, "overflow.none")
    PrecisionDebugger._current._lifecycle.close()
    assert logged("no call produced NaN or infinity")


@pytest.mark.parametrize("run", CLEAN)
def test_a_clean_statistics_dump_has_none(tmp_path, run, capsys):
    with collecting(tmp_path):
        run()
    assert main(["overflow", str(tmp_path / "dump")]) == 0
    assert "no call produced NaN or infinity" in capsys.readouterr().out


def test_the_nth_overflow_stops_with_everything_on_disk(tmp_path):
    debugger = PrecisionDebugger(configured(tmp_path, task="overflow_check", section={"overflow_nums": 2}))
    debugger.start()
    first = ops.exp(Tensor([100.0]))
    with pytest.raises(OverflowStop) as stopped:
        first + 1
    message = str(stopped.value)
    directory = tmp_path / "dump" / "step0" / "rank"
    for part in ("Tensor.__add__.0.forward", "step 0", "test_overflow.py", "first + 1", str(directory), "2"):
        assert part in message
    data = json.loads((directory / "dump.json").read_text())["data"]  # before stop(): it is there
    assert [(name, record["overflow"]) for name, record in data.items()] == [
        ("Functional.exp.0.forward", "producer"),
        ("Tensor.__add__.0.forward", "propagator"),
    ]
    for record in data.values():
        assert (directory / "dump_tensor_data" / record["output"][0]["data_name"]).exists()


def test_the_stop_leaves_a_backward_pass_too(tmp_path):
    debugger = PrecisionDebugger(configured(tmp_path, task="overflow_check"))
    debugger.start()
    with pytest.raises(
        OverflowStop, match=r"Functional\.sqrt\.0\.backward produced infinity, step 0, .*test_overflow.py"
    ):
        ms.grad(lambda x: ops.sqrt(x).sum())(Tensor([0.0]))
    ops.exp(Tensor([100.0]))
    debugger.stop()
    ops.exp(Tensor([100.0]))
    assert ms.grad(ops.sqrt)(Tensor(4.0)).asnumpy() == 0.25


class Blows(nn.Cell):
    def construct(self, x: Any) -> Any:
        return ops.exp(x * 1000)


class Same(nn.Cell):
    def construct(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_cell_is_the_place_of_an_overflow(tmp_path, level, capsys):
    model = nn.SequentialCell(nn.Dense(4, 4, weight_init="ones"), Blows(), Same())
    with collecting(tmp_path, model, level=level, task="overflow_check", section=NEVER) as dump:
        model(Tensor(np.ones((2, 4), np.float32)))
    assert producers(dump) == ["Cell.1.Blows.forward.0" if level == "L0" else "Functional.exp.0.forward"]
    assert dump["Cell.2.Same.forward.0"]["overflow"] == "propagator"
    main(["overflow", str(tmp_path / "dump"), "--json"])
    assert json.loads(capsys.readouterr().out)["producer"]["module"] == "Cell.1.Blows.forward.0"


def test_the_parameters_of_a_cell_that_overflows_are_saved_with_it(tmp_path):
    model = nn.SequentialCell(nn.Dense(2, 2, weight_init=Tensor([[3e38, 3e38], [1.0, 1.0]]), bias_init="ones"))
    x = Tensor([[1.0, 2.0]])
    with collecting(tmp_path, model, level="L0", task="overflow_check", section=NEVER) as dump:
        model(x)
    record = dump["Cell.0.Dense.forward.0"]
    assert record["overflow"] == "producer"
    weight, bias = (dump.tensor(record["parameters"][name]) for name in ("weight", "bias"))
    with np.errstate(all="ignore"):
        again = dump.tensor(record["input_args"][0]) @ weight.T + bias
    assert np.isinf(again).any()


def test_a_bad_weight_makes_its_cell_a_propagator(tmp_path):
    model = nn.SequentialCell(nn.Dense(2, 2, weight_init=Tensor([[math.nan, 1.0], [1.0, 1.0]])), nn.ReLU())
    with collecting(tmp_path, model, level="L0", task="overflow_check", section=NEVER) as dump:
        model(Tensor(np.ones((2, 2), np.float32)))
    assert dump["Cell.0.Dense.forward.0"]["overflow"] == "propagator"
    assert "data_name" not in dump["Cell.0.Dense.forward.0"]["parameters"]["weight"]
    assert producers(dump) == []


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_an_overflow_in_the_backward_of_a_cell_alone(tmp_path, level, capsys):
    class Root(nn.Cell):
        def construct(self, x):
            return ops.sqrt(x)

    model = nn.SequentialCell(nn.Dense(2, 2, weight_init="zeros", bias_init="zeros"), Root(), nn.ReLU())
    gradient = ms.value_and_grad(lambda x: model(x).sum(), None, model.trainable_params())
    with collecting(tmp_path, model, level=level, task="overflow_check", section=NEVER) as dump:
        gradient(Tensor(np.ones((2, 2), np.float32)))
    assert producers(dump) == ["Cell.1.Root.backward.0" if level == "L0" else "Functional.sqrt.0.backward"]
    assert dump["Cell.0.Dense.parameters_grad"]["overflow"] == "propagator"
    main(["overflow", str(tmp_path / "dump"), "--json"])
    assert json.loads(capsys.readouterr().out)["producer"]["direction"] == "backward"


def test_a_gradient_that_came_in_bad_makes_the_parameters_propagators(tmp_path):
    class Outer(nn.Cell):  # the outermost Cell has no record: at L0 nobody sees the exp
        def __init__(self):
            super().__init__()
            self.fc = nn.Dense(2, 2, weight_init="ones")

        def construct(self, x):
            return ops.exp(self.fc(x)).mean()

    model = Outer()
    gradient = ms.value_and_grad(model, None, model.trainable_params())
    with collecting(tmp_path, model, level="L0", task="overflow_check", section=NEVER) as dump:
        gradient(Tensor(np.full((2, 2), 100.0, np.float32)))
    assert {name: record["overflow"] for name, record in dump.data.items()} == {
        "Cell.fc.Dense.parameters_grad": "propagator"
    }


def scaled_training(path: Any, section: Any, scaler: Any, steps: int = 2) -> Any:
    """The loss is small; only what the scaler makes of its gradients overflows."""
    net = nn.Dense(2, 1, weight_init="zeros", bias_init="zeros")
    optimizer = nn.SGD(net.trainable_params(), learning_rate=0.1)
    forward = ms.value_and_grad(lambda x: scaler.scale((net(x) * 1000.0).sum()), None, optimizer.parameters)
    debugger = PrecisionDebugger(configured(path, task="overflow_check", section=section))
    for _ in range(steps):
        debugger.start()
        _, gradients = forward(Tensor(np.ones((4, 2), np.float32)))
        finite = amp.all_finite(gradients)
        gradients = scaler.unscale(gradients)
        if finite:
            optimizer(gradients)
        scaler.adjust(grads_finite=finite)
        debugger.stop()
        debugger.step()
    debugger._lifecycle.close()
    return net


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_gradients_of_a_scaled_loss_do_not_count(tmp_path, logged, kind):
    before = amp.DynamicLossScaler.scale, amp.StaticLossScaler.adjust, amp._all_finite
    made = amp.DynamicLossScaler(1e37, 2, 10) if kind == "dynamic" else amp.StaticLossScaler(1e37)
    net = scaled_training(tmp_path, {}, made)
    assert (amp.DynamicLossScaler.scale, amp.StaticLossScaler.adjust, amp._all_finite) == before
    assert not net.weight.asnumpy().any()
    assert logged("2 optimizer steps were skipped")
    data = Dump(tmp_path / "dump").data
    assert {record["overflow"] for name, record in data.items() if name.startswith("Jit._grad_unscale")} <= {
        "propagator"
    }


def test_a_cell_that_scales_the_loss_is_watched_too(tmp_path, logged):
    class OnCpu(nn.TrainOneStepWithLossScaleCell):  # the framework's own look needs Ascend or a GPU
        def construct(self, x):
            weights = self.weights
            loss = self.network(x)
            _, _ = self.start_overflow_check(loss, self.scale_sense)
            gradients = self.grad(self.network, weights)(x, ops.ones_like(loss) * self.scale_sense)
            overflow = self.process_loss_scale(ops.logical_not(amp.all_finite(gradients)))
            if not overflow:
                self.optimizer(gradients)
            return loss

    class Loss(nn.Cell):
        def __init__(self):
            super().__init__()
            self.fc = nn.Dense(2, 1, weight_init="zeros", bias_init="zeros")

        def construct(self, x):
            return (self.fc(x) * 1000.0).sum()

    loss = Loss()
    manager = nn.DynamicLossScaleUpdateCell(loss_scale_value=2.0**125, scale_factor=2, scale_window=10)
    cell = OnCpu(loss, nn.SGD(loss.trainable_params(), learning_rate=0.1), manager)
    with collecting(tmp_path, task="overflow_check"):
        cell(Tensor(np.ones((4, 2), np.float32)))
    PrecisionDebugger._current._lifecycle.close()
    assert logged("1 optimizer step was skipped")


def test_after_scaled_gradients_masks_are_still_clean(tmp_path, logged):
    scaler = amp.DynamicLossScaler(1e37, 2, 10)
    mask = Tensor([0.0, -math.inf])
    debugger = PrecisionDebugger(configured(tmp_path, task="overflow_check"))
    for _ in range(2):
        debugger.start()
        ops.softmax(Tensor([1.0, 2.0]) + mask)
        scaler.unscale(ms.grad(lambda x: scaler.scale((x * 1000.0).sum()))(Tensor([0.0])))
        debugger.stop()
        debugger.step()
    for step in range(2):
        assert "Functional.softmax.0.forward" not in Dump(tmp_path / "dump", step).data


def test_an_output_of_64_MB_with_one_bad_value_in_its_first_part_is_found(tmp_path):
    values = np.ones(16 << 20, np.float32)
    values[7] = 3e38
    big = Tensor(values)
    with collecting(tmp_path, task="overflow_check", section=NEVER) as dump:
        big * 10
    assert producers(dump) == ["Tensor.__mul__.0.forward"]


def test_nested_outputs_count(tmp_path):
    class Nested(nn.Cell):
        def construct(self, x):
            return {"first": [x, (x, {"deep": x / 0})]}

    model = nn.SequentialCell(Nested())
    with collecting(tmp_path, model, level="L0", task="overflow_check", section=NEVER) as dump:
        model(Tensor([1.0]))
    assert producers(dump) == ["Cell.0.Nested.forward.0"]


def test_near_overflow_and_underflow_are_logged(tmp_path, logged):
    with collecting(tmp_path, task="overflow_check"):
        half(200.0) * half(200.0)
        half(1e-3, 1e-3, 1e-3, 1e-3) * half(1e-3, 1.0, 1.0, 1.0)
    PrecisionDebugger._current._lifecycle.close()
    assert "Tensor.__mul__ forward (Float16): 1 output, largest 4e+04" in logged("near overflow")[0]
    assert "Tensor.__mul__ forward (Float16): 1 output, up to 25.00% of one" in logged("underflow")[0]


def test_the_optimizer_says_which_of_its_parameters_it_blew_up(tmp_path):
    good, bad = Parameter(Tensor([1.0]), name="good"), Parameter(Tensor([3e38]), name="bad")
    with collecting(tmp_path, task="overflow_check", section=NEVER) as dump:
        nn.SGD([good, bad], learning_rate=10.0)((Tensor([0.0]), Tensor([-3e38])))
    assert list(dump["Jit.SGD.0.forward"]["changed"]) == ["bad"]
    weight = Parameter(Tensor([math.inf]), name="weight")
    with collecting(tmp_path / "again", task="overflow_check", section=NEVER) as dump:
        ops.exp(Tensor([100.0]))
        nn.SGD([weight], learning_rate=0.1)((Tensor([1.0]),))
    assert dump["Jit.SGD.0.forward"]["overflow"] == "propagator"


class Squared(nn.Cell):
    """Two Primitives with attributes, the second of which has a gradient that blows up."""

    def __init__(self):
        super().__init__()
        self.sum = ops.ReduceSum(keep_dims=True)
        self.root = ops.Sqrt()

    def construct(self, x):
        return self.root(self.sum(x, 1))


def test_primitives_are_replayed_with_their_attributes(tmp_path, capsys):
    net = Squared()
    with collecting(tmp_path, net, task="overflow_check", section=NEVER) as dump:
        net(Tensor(np.full((2, 2), 3e38, np.float32)))
        ms.grad(net)(Tensor(np.zeros((2, 2), np.float32)))
    assert producers(dump) == ["Primitive.sum.ReduceSum.0.forward", "Primitive.root.Sqrt.1.backward"]
    for producer, shape in zip(producers(dump), ("[2, 1]", "[2, 1]")):
        assert main(["overflow", "replay", str(dump.directory / producer)]) == 1
        assert f"Float32 {shape}" in capsys.readouterr().out


def test_what_a_forward_received_is_held_up_to_a_budget(tmp_path, monkeypatch, capsys):
    def loss(x):
        return ops.sqrt(x * 0.0).sum()  # x * 0.0 is gone when the gradient comes, unless it is held

    for budget, gone in ((64, False), (4, True)):
        monkeypatch.setattr(MindSporeTensorInspector, "budget", budget)
        path = tmp_path / str(budget)
        with collecting(path, task="overflow_check", section=NEVER) as dump:
            ms.grad(loss)(Tensor([1.0, 4.0]))
        record = dump["Functional.sqrt.0.backward"]
        assert record.get("forward_inputs_gone", False) == gone
        code = main(["overflow", "replay", str(dump.directory / "Functional.sqrt.0.backward")])
        assert code == (0 if gone else 1)
        assert ("ones replace them" in capsys.readouterr().out) == gone


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_nothing_is_kept_after_the_step(tmp_path, level):
    net = nn.SequentialCell(nn.Dense(2, 2), Same(), nn.ReLU())
    alive: list[Any] = []
    net[1].register_forward_hook(lambda cell, args, output: alive.append(weakref.ref(output)))
    with collecting(tmp_path, net, level=level, task="overflow_check"):
        ms.grad(lambda x: net(x).sum())(Tensor([[1.0, 2.0]]))
        net(Tensor([[1.0, 2.0]]))  # no gradient ever comes to it
    gc.collect()
    assert [one() for one in alive] == [None, None]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_off_is_off(tmp_path, level):
    net = nn.SequentialCell(nn.Dense(2, 2), nn.ReLU())
    places = (amp, amp.DynamicLossScaler, amp.StaticLossScaler, nn.TrainOneStepWithLossScaleCell, ops, Tensor)
    before = [dict(vars(place)) for place in places]
    with collecting(tmp_path, net, level=level, task="overflow_check"):
        net(Tensor([[1.0, 2.0]]))
        assert [dict(vars(place)) for place in places] != before
    assert [dict(vars(place)) for place in places] == before


@pytest.mark.parametrize("level", ["L2", "debug"])
def test_a_level_that_it_has_not_is_refused_with_those_that_it_has(tmp_path, level):
    with pytest.raises(ValueError, match='allowed: "L0", "L1", "mix"'):
        PrecisionDebugger(configured(tmp_path, level, "overflow_check"))
