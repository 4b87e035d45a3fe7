"""free_benchmark on MindSpore leaves the training alone: same bits, same random numbers, nothing run that must not."""

from __future__ import annotations

import gc
import random
import stat
import types
import weakref

import mindspore as ms
import numpy as np
import pytest
from fbchecking import MODES, RAMP, Rows, assert_no_fault, checking, debugger_of, halves, run_registered, singles
from mindspore import Parameter, Tensor, mint, nn, ops
from mscollecting import configured
from msmodels import trained
from msranks import needs_msrun, run_two

from msprobe.collect.run.lifecycle import UsageError
from msprobe.config import ConfigError
from msprobe.mindspore import PrecisionDebugger
from msprobe.mindspore.executor import differentiating


def settled(run):
    """MindSpore tunes its CPU kernels over their first runs, and their last bits change with it: let it settle."""
    results = [run() for _ in range(10)]
    assert results[-1] == results[-2] == results[-3]
    return results[-1]


@pytest.fixture(scope="module")
def bare():
    return settled(lambda: trained(3))


@pytest.fixture(scope="module")
def bare_dropped():
    return settled(dropped)


@pytest.mark.parametrize(
    ("mode", "stage"),
    [*((mode, "forward") for mode in MODES), *((mode, "backward") for mode in ("bit_noise", "change_value", "to_cpu"))],
)
def test_training_is_bit_identical(tmp_path, bare, mode, stage):
    debugger = debugger_of(tmp_path, mode, fuzz_stage=stage)

    def around(net, step):
        debugger.start(net)
        step()
        debugger.stop()
        debugger.step()

    assert trained(3, around) == bare
    assert_no_fault(tmp_path)
    assert mode == "change_value" or Rows(tmp_path).names == []


class Dropping(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = nn.Dense(8, 8)
        self.drop = nn.Dropout(p=0.5)
        self.norm = nn.BatchNorm1d(8)
        self.step = Parameter(Tensor(0.0), name="step", requires_grad=False)

    def construct(self, x):
        ops.assign_add(self.step, Tensor(1.0))
        x = ops.dropout(self.norm(self.drop(self.first(x))), 0.3)
        return x + ops.standard_normal(x.shape)


def dropped(around=None):
    """Three steps of a network that draws, writes parameters in place and moves the statistics of its BatchNorm."""
    ms.set_seed(4)
    net = Dropping()
    net.set_train()
    for parameter in net.get_parameters():
        if "first" in parameter.name:
            parameter.set_data(Tensor(np.linspace(-1, 1, parameter.size, dtype=np.float32).reshape(parameter.shape)))
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    forward = ms.value_and_grad(lambda x: (net(x) ** 2).mean(), None, optimizer.parameters)
    found = b""
    for number in range(3):

        def step(number=number):
            loss, gradients = forward(singles(np.linspace(0, number + 1, 32).reshape(4, 8)))
            optimizer(gradients)
            return loss.asnumpy().tobytes()

        found += step() if around is None else around(net, step)
    return found + b"".join(p.asnumpy().tobytes() for p in net.get_parameters())


@pytest.mark.parametrize("mode", MODES)
def test_random_and_writing_calls_stay_as_they_were(tmp_path, bare_dropped, mode, logged):
    debugger = debugger_of(tmp_path, mode)

    def around(net, step):
        debugger.start(net)
        loss = step()
        debugger.stop()
        debugger.step()
        return loss

    assert dropped(around) == bare_dropped
    assert_no_fault(tmp_path)
    if mode != "improve_precision":
        (line,) = logged("Functional.dropout is not checked")
        assert "its random numbers cannot be drawn a second time" in line


@pytest.mark.parametrize("mode", ["no_change", "bit_noise", "to_cpu"])
def test_in_place_calls_are_run_on_copies(tmp_path, mode):
    def run():
        x, kept = singles(RAMP).reshape(8, 8), Parameter(singles(RAMP), name="kept")
        x[0] = 3.0
        x.add_(1)
        x += 2
        ops.assign(kept, singles(RAMP[::-1].copy()))
        ops.assign_add(kept, singles(RAMP))
        ops.scatter_add(kept, Tensor([1, 1], ms.int32), singles([1.0, 2.0]))
        return x.asnumpy().tobytes(), kept.asnumpy().tobytes()

    expected = run()
    with checking(tmp_path, mode) as rows:
        assert run() == expected
    assert rows.names == []


def test_random_numbers_of_a_function_of_the_user_s_are_put_back(tmp_path):
    def draws(x):
        return x * random.random() + np.random.rand()

    def seeded():
        random.seed(1)
        np.random.seed(1)

    seeded()
    draws(singles(RAMP))
    expected = random.random(), np.random.rand()
    seeded()
    state = ms.get_rng_state().asnumpy().tolist()
    assert run_registered(tmp_path, draws, "no_change", singles(RAMP)) == []
    assert (random.random(), np.random.rand()) == expected
    assert ms.get_rng_state().asnumpy().tolist() == state


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: ops.dropout(x, 0.5), "Dropout runs inside it, and its random numbers cannot be drawn"),
        (lambda x: x + ops.rand(64), "UniformReal runs inside it"),
        (lambda x: ops.assign(KEPT, x), "Assign runs inside it, and may write"),
    ],
)
def test_a_function_that_must_not_run_twice_is_named(tmp_path, logged, function, reason):
    assert run_registered(tmp_path, function, "no_change", singles(RAMP)) == []
    assert len(logged("home.function is not checked")) == 1
    assert reason in logged("home.function is not checked")[0]


KEPT = Parameter(singles(RAMP), name="kept")


@pytest.mark.parametrize("stage", ["forward", "backward"])
def test_an_api_that_cannot_be_run_again_is_named_once(tmp_path, logged, stage):
    seen = []

    def once(x):
        seen.append(1)
        if len(seen) % 2 == 0:
            raise RuntimeError("only once")
        return x * 2

    run_registered(tmp_path, once, "no_change", singles(RAMP), fuzz_stage=stage)
    (line,) = logged("home.function is not checked")
    assert "RuntimeError: only once" in line
    assert ms.grad(lambda x: (x * x).sum())(singles([3.0])).asnumpy().tolist() == [6.0]
    assert not differentiating()


@pytest.mark.parametrize("mode", ["to_cpu", "improve_precision"])
def test_a_call_that_fails_in_raised_precision_does_not_end_the_training(tmp_path, logged, mode):
    """While MindSpore differentiates, a failing operator would take the graph with it."""
    kernel = halves(np.ones((1, 1, 2, 2)))

    def convolved(x):
        if mode == "to_cpu":
            return ops.conv2d(x, singles(np.ones((1, 1, 2, 2))))
        if x.dtype == ms.float32:
            return ops.add(x, "no such thing")
        return ops.conv2d(x, kernel)

    home = types.ModuleType("home")
    home.convolved = convolved
    x = singles(np.ones((1, 1, 4, 4))) if mode == "to_cpu" else halves(np.ones((1, 1, 4, 4)))
    expected = ms.grad(lambda x: home.convolved(x).sum())(x).asnumpy().tolist()
    debugger = debugger_of(tmp_path, mode)
    debugger.register_custom_api(home, "convolved")
    for _ in range(3):
        debugger.start()
        assert ms.grad(lambda x: home.convolved(x).sum())(x).asnumpy().tolist() == expected
        debugger.stop()
        debugger.step()
    (line,) = logged("home.convolved is not checked")
    assert "its second run failed" in line
    assert_no_fault(tmp_path)


def test_a_compiled_region_is_never_run_twice(tmp_path, logged):
    runs = []

    @ms.jit
    def compiled(x):
        return ops.tanh(x) * 2

    expected = compiled(singles(RAMP)).asnumpy().tobytes()
    with checking(tmp_path, "change_value") as rows:
        runs.append(compiled(singles(RAMP)).asnumpy().tobytes())
        ops.exp(singles(RAMP))
    assert runs == [expected]
    assert rows.names == ["Functional.exp.0"]
    assert len(logged("Jit.compiled is not checked: what runs inside it is not seen")) == 1


@pytest.mark.parametrize("stage", ["forward", "backward"])
@pytest.mark.parametrize("mode", ["no_change", "to_cpu"])
def test_recomputation_is_bit_identical(tmp_path, mode, stage):
    class Inner(nn.Cell):
        def construct(self, x):
            return ops.exp(x * 0.2) * ops.sigmoid(x)

    class Outer(nn.Cell):
        def __init__(self):
            super().__init__()
            self.inner = Inner()
            self.inner.recompute()

        def construct(self, x):
            return self.inner(x).sum()

    net = Outer()
    expected = settled(lambda: ms.grad(net)(singles(RAMP)).asnumpy().tobytes())
    with checking(tmp_path, mode, net, fuzz_stage=stage) as rows:
        found = ms.grad(net)(singles(RAMP)).asnumpy().tobytes()
    assert found == expected
    assert rows.names == []


@pytest.mark.parametrize("mode", ["bit_noise", "no_change", "to_cpu"])
def test_integers_views_and_calls_without_tensors_work(tmp_path, mode, logged):
    x = singles(RAMP).reshape(8, 8)
    with checking(tmp_path, mode) as rows:
        ops.argmax(x)
        ops.add(Tensor([1, 2]), 1)
        ops.topk(x, 3)
        x.sum().item()
        ops.shape(x)
        view = mint.transpose(x, 0, 1)
        view = view[1:]
        (view * 2).asnumpy()
        ops.split(x, 4)
        ops.relu(singles(np.zeros((0, 3))))
    assert rows.names == []
    assert not logged("is not checked")
    assert np.array_equal(view.asnumpy(), RAMP.reshape(8, 8).T[1:])


def test_nothing_is_kept_after_the_step(tmp_path):
    seen = []

    def loss(x):
        hidden = ops.tanh(x)
        seen.append(weakref.ref(hidden))
        return ops.exp(hidden).sum()

    debugger = debugger_of(tmp_path, "to_cpu", fuzz_stage="backward")
    for stage in ("backward", "forward"):
        if stage == "forward":
            debugger = debugger_of(tmp_path / "forward", "to_cpu")
        debugger.start()
        ms.grad(loss)(singles(RAMP))
        debugger.stop()
        debugger.step()
    gc.collect()
    assert [reference() for reference in seen] == [None, None]


def test_the_result_is_readable_by_the_group_at_most(tmp_path):
    with checking(tmp_path, "change_value") as rows:
        ops.exp(singles(RAMP))
    assert stat.S_IMODE(rows.path.stat().st_mode) & ~0o640 == 0


@pytest.mark.parametrize(
    ("section", "part"),
    [
        (
            {"pert_mode": "improve_precision", "handler_type": "fix", "fuzz_stage": "backward"},
            "free_benchmark.fuzz_stage",
        ),
        ({"pert_mode": "improve_precision", "handler_type": "fix", "if_preheat": True}, "free_benchmark.if_preheat"),
        ({"pert_mode": "to_cpu"}, "free_benchmark.fuzz_device"),
        ({"pert_mode": "noise"}, "free_benchmark.pert_mode"),
        ({"fuzz_device": "cpu"}, "free_benchmark.pert_mode"),
        ({"fuzz_stage": "both"}, "free_benchmark.fuzz_stage"),
        ({"fuzz_level": "L2"}, "free_benchmark.fuzz_level"),
        ({"handler_type": "repair"}, "free_benchmark.handler_type"),
        ({"if_preheat": True, "preheat_step": 0}, "free_benchmark.preheat_step"),
        ({"if_preheat": True, "max_sample": -1}, "free_benchmark.max_sample"),
        ({"list": "add"}, "free_benchmark.list"),
        ({"unknown": 1}, "free_benchmark.unknown"),
    ],
)
def test_a_bad_configuration_is_refused_with_the_key_s_name(tmp_path, section, part):
    with pytest.raises(ConfigError) as caught:
        PrecisionDebugger(configured(tmp_path, task="free_benchmark", section=section))
    assert any(part in str(problem) for problem in caught.value.problems)
    assert not (tmp_path / "dump").exists()


@pytest.mark.parametrize("level", ["L0", "mix", "L2", "debug"])
def test_another_level_is_refused(tmp_path, level):
    with pytest.raises((ConfigError, UsageError), match="L1"):
        PrecisionDebugger(configured(tmp_path, level, "free_benchmark"))


SCRIPT = """
import sys
import numpy as np
import mindspore as ms
from mindspore import Tensor, mint, nn, ops
from mindspore.communication import get_rank, init
from msprobe.mindspore import PrecisionDebugger
from msprobe.mindspore.executor import differentiating
init()
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.reduce = ops.AllReduce()
    def construct(self, x):
        return ops.exp(self.reduce(x) * 0.1).sum()
def work():
    x = Tensor(np.arange(4) + get_rank() + 1, ms.float32)
    gradient = ms.grad(net)(x)
    mint.distributed.all_reduce(x)
    return gradient.asnumpy().tobytes() + x.asnumpy().tobytes()
net = Net()
for _ in range(3):
    expected = work()
debugger = PrecisionDebugger(sys.argv[1])
debugger.start(net)
found = work()
debugger.stop()
debugger.step()
assert found == expected
left = sorted(debugger._lifecycle.task.run._skipped.items())
assert left == [(name, "a collective is never run a second time") for name in sys.argv[2].split(",")], left
print("done", get_rank(), flush=True)
"""


@needs_msrun
def test_collectives_are_never_run_twice(tmp_path):
    config = configured(tmp_path, task="free_benchmark", section={"pert_mode": "change_value"})
    run_two(tmp_path, SCRIPT, config, "MintDistributed.all_reduce,Primitive.reduce.AllReduce")
    rows = list(Rows(tmp_path))
    assert {row["rank"] for row in rows} == {"0", "1"}
    assert "Functional.exp.0" in {row["api_name"] for row in rows}
