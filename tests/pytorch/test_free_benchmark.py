"""free_benchmark on PyTorch: unstable functions are found by the mode that should find them, stable ones are not."""

from __future__ import annotations

import csv
import json
import math
import types
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from collecting import configured

from msprobe.pytorch import PrecisionDebugger

COLUMNS = ["rank", "pert_mode", "stage", "step", "api_name", "max_rel", "dtype", "shape", "output_index"]


class Rows:
    def __init__(self, tmp_path):
        self.path = tmp_path / "dump" / "free_benchmark.csv"

    def __iter__(self):
        if not self.path.exists():
            return iter(())
        return iter(list(csv.DictReader(self.path.open())))

    @property
    def names(self):
        return [row["api_name"] for row in self]


@contextmanager
def checking(tmp_path, mode, **section):
    section = {"pert_mode": mode, "fuzz_device": "cpu" if mode == "to_cpu" else "npu", **section}
    debugger = PrecisionDebugger(configured(tmp_path, task="free_benchmark", section=section))
    debugger.start()
    try:
        yield Rows(tmp_path)
    finally:
        debugger.stop()
        debugger.step()
    assert not list(tmp_path.rglob("dump_error_info.log")), next(tmp_path.rglob("dump_error_info.log")).read_text()
    assert not list((tmp_path / "dump").glob("step*"))


def run_registered(tmp_path, function, mode, *args, **section):
    """Registers `function` as an API of its own and calls it once."""
    home = types.ModuleType("home")
    home.function = function
    section = {"pert_mode": mode, "fuzz_device": "cpu" if mode == "to_cpu" else "npu", **section}
    debugger = PrecisionDebugger(configured(tmp_path, task="free_benchmark", section=section))
    debugger.register_custom_api(home, "function")
    debugger.start()
    output = home.function(*args)
    if section.get("fuzz_stage") == "backward":
        output.sum().backward()
    debugger.stop()
    debugger.step()
    assert not list(tmp_path.rglob("dump_error_info.log")), next(tmp_path.rglob("dump_error_info.log")).read_text()
    return Rows(tmp_path).names


def cancellation(x):
    return (x + 1000) - 1000


def naive_softmax(x):
    power = torch.exp(x)
    return power / power.sum(-1, keepdim=True)


def naive_variance(x):
    return (x * x).mean() - x.mean() ** 2


def accumulated_in_low_precision(x):
    total = torch.zeros((), dtype=x.dtype)
    for value in x:
        total = total + value
    return total


def difference_of_logarithms(x):
    return torch.log(1 + x) - torch.log(1 + x * 0.999)


def naive_norm(x):
    return torch.sqrt((x * x).sum())


def quadratic_root(x):
    return x - torch.sqrt(x * x - 1)


def one_minus_cosine(x):
    return 1 - torch.cos(x)


def a_pole(x):
    return 1 / (x - 1)


def a_steep_step(x):
    return torch.sigmoid((x - 1) * 1e6)


def a_sign(x):
    return torch.sign(x - 1)


def a_pole_near_zero(x):
    return 1 / (x - 1.9999e-4)


def order_weighted(x):
    return (x * torch.arange(x.numel())).sum()


def running_product(x):
    return torch.cumprod(x, 0)


CALLS = [0]


def nondeterministic(x):
    CALLS[0] += 1
    return x + CALLS[0] * 1e-6


def first_element(x):
    return x[0] * 2


RAMP = torch.linspace(0.5, 3, 64)
UNSTABLE = [
    (cancellation, "improve_precision", RAMP.half()),
    (naive_softmax, "improve_precision", torch.tensor([[12.0, 11.5, 3.0]]).half()),
    (naive_variance, "improve_precision", 100 + RAMP.half()),
    (accumulated_in_low_precision, "improve_precision", torch.full((4000,), 1.0, dtype=torch.float16)),
    (difference_of_logarithms, "improve_precision", RAMP.half()),
    (naive_norm, "improve_precision", torch.full((64,), 300.0).half()),
    (quadratic_root, "to_cpu", torch.tensor([3000.0, 5000.0])),
    (one_minus_cosine, "to_cpu", torch.tensor([1e-3, 2e-3])),
    (a_pole, "bit_noise", torch.tensor([1.0 + 2**-20, 2.0])),
    (a_steep_step, "bit_noise", torch.tensor([1.0 + 2**-20, 2.0])),
    (a_sign, "bit_noise", torch.tensor([1.0, 2.0])),
    (a_pole_near_zero, "add_noise", torch.tensor([2e-4, 1.0])),
    (order_weighted, "change_value", RAMP),
    (running_product, "change_value", RAMP),
    (nondeterministic, "no_change", RAMP),
    (first_element, "change_value", RAMP),
]


@pytest.mark.parametrize(
    ("function", "mode", "x"), UNSTABLE, ids=[f"{function.__name__}-{mode}" for function, mode, _ in UNSTABLE]
)
def test_an_unstable_function_is_found(tmp_path, function, mode, x):
    assert run_registered(tmp_path, function, mode, x) == ["home.function.0"]


STABLE = [
    (lambda x: torch.softmax(x, -1), "improve_precision", RAMP.half()),
    (lambda x: x.var(), "improve_precision", 100 + RAMP.half()),
    (lambda x: x.sum(), "improve_precision", RAMP.bfloat16()),
    (lambda x: x @ x, "improve_precision", RAMP.bfloat16()),
    (torch.log1p, "to_cpu", RAMP),
    (torch.tanh, "bit_noise", RAMP),
    (lambda x: F.layer_norm(x, (64,)), "bit_noise", RAMP.half()),
    (lambda x: torch.softmax(x, -1), "bit_noise", torch.tensor([1.0, float("-inf"), 2.0]).half()),
    (lambda x: x.float() * 2, "bit_noise", RAMP.bfloat16()),
    (lambda x: x @ x, "add_noise", RAMP),
    (torch.sum, "change_value", RAMP),
    (torch.exp, "no_change", RAMP),
    (lambda x: F.dropout(x, 0.5), "no_change", RAMP),
]


@pytest.mark.parametrize(("function", "mode", "x"), STABLE)
def test_a_stable_function_is_not_reported(tmp_path, function, mode, x):
    assert run_registered(tmp_path, function, mode, x) == []


def test_a_gradient_is_checked_too(tmp_path):
    x = (1 + torch.linspace(1e-4, 1, 16)).requires_grad_()
    assert run_registered(tmp_path, a_pole, "bit_noise", x, fuzz_stage="backward") == ["home.function.0"]
    row = next(iter(Rows(tmp_path)))
    assert (row["stage"], row["dtype"], row["shape"]) == ("backward", "torch.float32", "(16,)")


def test_a_stable_gradient_is_not_reported(tmp_path):
    x = RAMP.clone().requires_grad_()
    assert run_registered(tmp_path, torch.tanh, "bit_noise", x, fuzz_stage="backward") == []


def test_a_row_has_the_columns_of_mindstudio_probe(tmp_path):
    with checking(tmp_path, "change_value", list=["add_"]) as rows:
        torch.arange(6.0).view(2, 3).half().add_(1)
    (row,) = rows
    assert list(row) == COLUMNS
    assert row["api_name"] == "Tensor.add_.0"
    assert (row["rank"], row["step"], row["stage"], row["output_index"]) == ("0", "0", "forward", "")
    assert row["pert_mode"] == "change_value"
    assert (row["dtype"], row["shape"]) == ("torch.float16", "(2, 3)")


def test_a_member_of_several_outputs_is_named_by_its_index(tmp_path):
    def two(x):
        return x * 2, cancellation(x)

    run_registered(tmp_path, two, "improve_precision", RAMP.half())
    assert [row["output_index"] for row in Rows(tmp_path)] == ["1"]


def test_filters_choose_the_calls(tmp_path):
    with checking(tmp_path, "no_change", scope=["Torch.rand_like.1"]):
        pass
    with checking(tmp_path / "b", "change_value", scope=["Torch.relu.1", "Torch.exp.0"]) as rows:
        for _ in range(2):
            torch.relu(RAMP)
            torch.exp(RAMP)
    assert rows.names == ["Torch.exp.0", "Torch.relu.1"]
    with checking(tmp_path / "c", "change_value", list=["relu"]) as rows:
        torch.relu(torch.exp(RAMP))
        F.relu(RAMP)
    assert rows.names == ["Torch.relu.0", "Functional.relu.0"]


def test_the_name_of_a_backward_chooses_its_call(tmp_path):
    x = RAMP.clone().requires_grad_()
    with checking(tmp_path, "change_value", list=["Torch.exp.1.backward"], fuzz_stage="backward") as rows:
        torch.exp(torch.exp(x)).sum().backward()
    assert rows.names == ["Torch.exp.1"]


def train(steps=3, debugger=None, low_precision=False):
    torch.manual_seed(5)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(inplace=True), torch.nn.Dropout(0.2)
    ).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        if debugger is not None:
            debugger.start(model)
        optimizer.zero_grad()
        x = torch.randn(16, 8).bfloat16()
        y = model(x)
        y[:, 0] = y[:, 1].detach()
        loss = (y.float() - x.float()).square().mean() + y.argmax().float() * 0
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
        if debugger is not None:
            debugger.stop()
            debugger.step()
    state = [tensor.double().sum().item().hex() for tensor in model.state_dict().values()]
    return losses, state, torch.get_rng_state().sum().item()


@pytest.mark.parametrize("stage", ["forward", "backward"])
@pytest.mark.parametrize("mode", ["improve_precision", "add_noise", "bit_noise", "no_change", "change_value", "to_cpu"])
def test_training_is_bit_identical(tmp_path, mode, stage):
    bare = train()
    section = {"pert_mode": mode, "fuzz_device": "cpu" if mode == "to_cpu" else "npu", "fuzz_stage": stage}
    debugger = PrecisionDebugger(configured(tmp_path, task="free_benchmark", section=section))
    assert train(debugger=debugger) == bare
    assert not list(tmp_path.rglob("dump_error_info.log")), next(tmp_path.rglob("dump_error_info.log")).read_text()


def test_checkpointing_is_bit_identical(tmp_path):
    from torch.utils.checkpoint import checkpoint

    def gradient():
        torch.manual_seed(2)
        x = torch.randn(4, 4).requires_grad_()
        checkpoint(lambda value: F.dropout(torch.tanh(value), 0.5), x, use_reentrant=False).sum().backward()
        return x.grad

    bare = gradient()
    with checking(tmp_path, "no_change") as rows:
        again = gradient()
    assert torch.equal(bare, again)
    assert rows.names == []


class Attending(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm = torch.nn.Embedding(32, 32), torch.nn.LayerNorm(32)
        self.query, self.key, self.value = (torch.nn.Linear(32, 32) for _ in range(3))
        self.up, self.down, self.head = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32), torch.nn.Linear(32, 10)

    def forward(self, tokens):
        x = self.embedding(tokens)
        z = self.norm(x)
        scores = self.query(z) @ self.key(z).transpose(-1, -2) / 6
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
        x = x + torch.softmax(scores, -1) @ self.value(z)
        return self.head(x + self.down(F.gelu(self.up(x)))).mean(1)


class Convolving(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = torch.nn.Conv2d(3, 8, 3), torch.nn.GroupNorm(2, 8)
        self.second, self.head = torch.nn.Conv2d(8, 8, 3, stride=2), torch.nn.Linear(8, 10)

    def forward(self, images):
        x = F.relu(self.norm(self.first(images)))
        return self.head(F.relu(self.second(x)).mean((2, 3)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("stage", ["forward", "backward"])
@pytest.mark.parametrize("mode", ["improve_precision", "add_noise", "bit_noise", "no_change", "to_cpu"])
def test_sound_networks_have_no_findings(tmp_path, mode, stage, dtype):
    torch.manual_seed(0)
    batches = [
        (Attending(), torch.randint(32, (4, 16))),
        (Convolving(), torch.randn(4, 3, 12, 12).to(dtype)),
    ]
    with checking(tmp_path, mode, fuzz_stage=stage) as rows:
        for net, batch in batches:
            loss = F.cross_entropy(net.to(dtype)(batch).float(), torch.arange(4))
            (loss * (1024 if dtype is torch.float16 else 1)).backward()
    assert [(row["api_name"], row["max_rel"]) for row in rows] == []


def test_random_numbers_of_a_function_of_the_user_s_are_put_back(tmp_path):
    import random

    import numpy

    def draws(x):
        return x * random.random() + numpy.random.rand() + torch.rand(())

    def after():
        return random.random(), numpy.random.rand(), torch.rand(()).item()

    def seeded():
        random.seed(1)
        numpy.random.seed(1)
        torch.manual_seed(1)

    seeded()
    draws(RAMP)
    expected = after()
    seeded()
    assert run_registered(tmp_path, draws, "no_change", RAMP) == []
    assert after() == expected


def test_an_api_that_cannot_be_run_again_is_named_once(tmp_path, logged):
    seen = []

    def once(x):
        if len(seen) % 2:
            seen.append(1)
            raise RuntimeError("only once")
        seen.append(1)
        return x * 2

    run_registered(tmp_path, once, "no_change", RAMP)
    assert len(logged("home.function is not checked: its second run failed, RuntimeError: only once")) == 1


def test_preheating_lifts_the_limit_of_a_false_alarm(tmp_path):
    def run(where, **preheat):
        section = {"pert_mode": "add_noise", "fuzz_device": "npu", "list": ["sub"], **preheat}
        debugger = PrecisionDebugger(configured(where, task="free_benchmark", section=section))
        for _ in range(3):
            debugger.start()
            torch.sub(torch.tensor([1.002e-4, 1.001e-4]), 1e-4)  # right, but steep: noise of 1e-8 moves it
            debugger.stop()
            debugger.step()
        return [(row["step"], row["api_name"]) for row in Rows(where)]

    assert run(tmp_path / "a") == [("0", "Torch.sub.0"), ("1", "Torch.sub.0"), ("2", "Torch.sub.0")]
    assert run(tmp_path / "b", if_preheat=True, preheat_step=1) == []


def test_preheating_an_in_place_call_begins_anew_each_time(tmp_path, logged):
    with checking(tmp_path, "no_change", list=["add_"], if_preheat=True) as rows:
        x = RAMP.clone()
        x.add_(1)
    assert torch.equal(x, RAMP + 1)
    assert rows.names == []
    (limits,) = PrecisionDebugger._current._lifecycle.task.run._preheated.values()
    assert limits.limit == 1.0  # a second run that wrote its input twice would have looked like a false alarm


@pytest.mark.parametrize("mode", ["add_noise", "bit_noise", "change_value", "no_change"])
def test_fix_puts_the_second_result_in_place_and_gradients_flow(tmp_path, mode):
    """Seed 003 refuses fix only with preheat and in the backward stage."""
    x = torch.linspace(1, 2, 6).reshape(2, 3).requires_grad_()
    weight = torch.arange(6.0).reshape(2, 3)
    with checking(tmp_path, mode, list=["square"], handler_type="fix"):
        y = torch.square(x)
        (y * weight).sum().backward()
    changed = x.detach().clone()
    slope = 2 * changed * weight
    if mode == "change_value":
        changed.view(-1)[[0, -1]] = changed.view(-1)[[-1, 0]]
        slope = 2 * changed * weight
        slope.view(-1)[[0, -1]] = slope.view(-1)[[-1, 0]]
    torch.testing.assert_close(y, changed.square())
    torch.testing.assert_close(x.grad, slope)
    assert torch.equal(y.detach(), x.detach().square()) is (mode in ("no_change", "add_noise"))  # 1e-8 is below 1 ulp


def test_fix_restores_a_loss_curve(tmp_path):
    """A planted call in low precision bends the loss; with fix it runs raised, and the curve is the good one again."""
    home = types.ModuleType("home")

    def low(x):
        return (x + 512) - 512 if x.dtype is torch.float16 else x.clone()

    home.low = low

    def curve(debugger=None, broken=True):
        torch.manual_seed(1)
        weight = torch.nn.Parameter(torch.randn(16, 16) * 0.1)
        data, target = torch.randn(64, 16), torch.randn(64, 16)
        optimizer = torch.optim.SGD([weight], lr=0.5)
        losses = []
        for _ in range(20):
            if debugger is not None:
                debugger.start()
            hidden = (data @ weight).half()
            hidden = home.low(hidden) if broken else hidden
            loss = (hidden.float() - target).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if debugger is not None:
                debugger.stop()
                debugger.step()
        return losses

    good, bent = curve(broken=False), curve()
    section = {"pert_mode": "improve_precision", "handler_type": "fix", "list": ["low"]}
    debugger = PrecisionDebugger(configured(tmp_path, task="free_benchmark", section=section))
    debugger.register_custom_api(home, "low")
    fixed = curve(debugger)

    def distance(losses):
        return max(abs(a - b) for a, b in zip(losses, good))

    assert distance(bent) > 1e-3
    assert distance(fixed) < distance(bent) / 100
    assert "home.low.0" in Rows(tmp_path).names


def test_one_bad_value_in_the_first_part_of_64_MB_is_found(tmp_path):
    def spoils(x):
        y = x * 2
        if x.dtype is torch.float16:
            y[3] = 5
        return y

    assert run_registered(tmp_path, spoils, "improve_precision", torch.ones(32 << 20, dtype=torch.float16)) == [
        "home.function.0"
    ]


def test_the_summary_ranks_by_instability_with_source_lines(tmp_path, logged):
    with checking(tmp_path, "change_value", list=["cumsum", "cumprod"]):
        torch.cumsum(RAMP, 0)
        torch.cumprod(RAMP, 0)
    PrecisionDebugger._current._lifecycle.close()
    (summary,) = logged("the most unstable first")
    assert summary.index("Torch.cumprod") < summary.index("Torch.cumsum")
    assert "test_free_benchmark.py" in summary


def test_integers_and_calls_without_tensors_work(tmp_path):
    with checking(tmp_path, "bit_noise") as rows:
        torch.argmax(RAMP)
        torch.add(torch.arange(4), 1)
        RAMP.sum().item()
        torch.topk(RAMP, 3)
    assert rows.names == []


def test_the_csv_is_written_as_it_happens(tmp_path):
    debugger = PrecisionDebugger(
        configured(tmp_path, task="free_benchmark", section={"pert_mode": "change_value", "list": ["cumsum"]})
    )
    debugger.start()
    torch.cumsum(RAMP, 0)
    assert Rows(tmp_path).names == ["Torch.cumsum.0"]
    assert math.isfinite(float(next(iter(Rows(tmp_path)))["max_rel"]))
    assert json.loads((tmp_path / "config.json").read_text())["task"] == "free_benchmark"


def test_improve_precision_on_float32_says_why_nothing_was_checked(tmp_path, logged):
    with checking(tmp_path, "improve_precision", list=["square"]):
        torch.square(torch.ones(3))
    PrecisionDebugger._current._lifecycle.close()
    assert logged("no call was checked: 1 call had no float16 or bfloat16 input")
