"""Backward records have the values of autograd, for each call separately, whatever other calls use its inputs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from collecting import assert_same, collecting
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn

UNARY = [
    ("Torch.tanh", torch.tanh),
    ("Torch.sigmoid", torch.sigmoid),
    ("Functional.gelu", F.gelu),
    ("Functional.softplus", F.softplus),
    ("Torch.exp", lambda x: torch.exp(x)),
    ("Functional.layer_norm", lambda x: F.layer_norm(x, (3,))),
    ("Functional.softmax", lambda x: F.softmax(x, -1)),
]
BINARY = [
    ("Torch.mul", torch.mul),
    ("Torch.add", torch.add),
    ("Torch.matmul", lambda a, b: torch.matmul(a, b)),
    ("Tensor.__truediv__", lambda a, b: a / (b * b + 1)),
    ("Functional.linear", lambda a, b: F.linear(a, b)),
    ("Torch.maximum", torch.maximum),
]
NODES = st.lists(
    st.tuples(st.integers(0, len(UNARY) + len(BINARY) - 1), st.integers(0, 30), st.integers(0, 30)),
    min_size=1,
    max_size=9,
)


class Tap(torch.autograd.Function):
    """A copy of one call's argument: its own gradient is the gradient from that call alone."""

    @staticmethod
    def forward(ctx, x, kept, key):
        ctx.kept, ctx.key = kept, key
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.kept[ctx.key] = grad.clone()
        return grad, None, None


def run_dag(leaves, nodes, taps=None):
    """The values of a random graph. With `taps`, every argument and result goes through a tap."""
    values, calls = list(leaves), []
    for number, (kind, first, second) in enumerate(nodes):
        name, function = (UNARY + BINARY)[kind]
        places = [first % len(values)] if kind < len(UNARY) else [first % len(values), second % len(values)]
        given = [values[place] for place in places]
        if taps is not None:
            given = [Tap.apply(value, taps, (number, "in", n)) for n, value in enumerate(given)]
        result = function(*given)
        if taps is not None:
            result = Tap.apply(result, taps, (number, "out"))
        values.append(result)
        calls.append((name, places, result))
    return values, calls


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(nodes=NODES, data=st.data())
def test_every_record_of_a_random_graph_is_autograds(tmp_path_factory, nodes, data):
    tmp_path = tmp_path_factory.mktemp("dag")
    torch.manual_seed(0)
    leaves = [torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=n_is_odd(nodes))]
    last = data.draw(st.integers(0, len(nodes) - 1), label="also summed")
    with collecting(tmp_path) as dump:
        values, _ = run_dag(leaves, nodes)
        assume(values[-1].requires_grad or values[2 + last].requires_grad)
        (values[-1].sum() + values[2 + last].sum() * 2).backward()
    taps: dict = {}
    values, calls = run_dag(leaves, nodes, taps)
    (values[-1].sum() + values[2 + last].sum() * 2).backward()
    seen: dict[str, int] = {}
    found = dump.data
    for number, (name, places, _result) in enumerate(calls):
        if name == "Tensor.__truediv__":  # three calls inside: checked by the ones around it
            for inner in ("Tensor.__mul__", "Tensor.__add__"):
                seen[inner] = seen.get(inner, 0) + 1
        place = seen[name] = seen.get(name, -1) + 1
        record = found.get(f"{name}.{place}.backward")
        if (number, "out") not in taps:
            assert record is None
            continue
        assert_same(record["input"][0], taps[number, "out"], rel=1e-4)
        if name == "Tensor.__truediv__":
            continue
        expected = [taps.get((number, "in", n)) for n in range(len(places))]
        if "shared_gradient" in record:
            assert record["shared_gradient"] == [0, 1]
            assert places[0] == places[1]
            assert_same(record["output"][0], expected[0] + expected[1], rel=1e-4)
        else:
            for one, gradient in zip(record["output"], expected):
                assert_same(one, gradient, rel=1e-4)


def n_is_odd(nodes):
    return len(nodes) % 2 == 1


def test_an_input_that_feeds_several_calls_has_a_gradient_from_each(tmp_path):
    x = torch.randn(4, requires_grad=True)
    with collecting(tmp_path) as dump:
        y = torch.sin(x)
        (torch.exp(y) + torch.mul(y, 3)).sum().backward()
    y = torch.sin(x).detach()
    assert_same(dump["Torch.exp.0.backward"]["output"][0], y.exp())
    assert_same(dump["Torch.mul.0.backward"]["output"][0], torch.full((4,), 3.0))
    assert_same(dump["Torch.sin.0.backward"]["input"][0], y.exp() + 3)


def test_composite_apis_have_the_gradients_of_their_arguments_in_order(tmp_path):
    x, target = torch.randn(5, 3, requires_grad=True), torch.tensor([0, 1, 2, 0, 1])
    weight = torch.rand(3, requires_grad=False)
    q, k, v = (torch.randn(1, 2, 4, 8, requires_grad=True) for _ in range(3))
    with collecting(tmp_path) as dump:
        F.cross_entropy(x, target, weight).backward()
        F.scaled_dot_product_attention(q, k, v).sum().backward()
    record = dump["Functional.cross_entropy.0.backward"]
    assert_same(record["input"][0], torch.tensor(1.0))
    assert_same(record["output"][0], x.grad)
    assert record["output"][1:] == [None, None]
    record = dump["Functional.scaled_dot_product_attention.0.backward"]
    for found, tensor in zip(record["output"], (q, k, v)):
        assert_same(found, tensor.grad)


def test_the_same_tensor_twice_has_one_gradient_each_or_their_marked_sum(tmp_path):
    x = torch.randn(3, 3, requires_grad=True)
    with collecting(tmp_path) as dump:
        torch.sub(x, x).sum().backward()
    record = dump["Torch.sub.0.backward"]
    assert_same(record["output"][0], torch.ones(3, 3))
    assert_same(record["output"][1], -torch.ones(3, 3))
    attention = nn.MultiheadAttention(4, 2)
    x = torch.randn(3, 1, 4, requires_grad=True)
    with collecting(tmp_path / "b", nn.Sequential(attention), level="L0") as dump:
        attention(x, x, x)[0].sum().backward()
    record = dump["Module.0.MultiheadAttention.backward.0"]
    assert record["shared_gradient"] == [0, 1, 2]
    assert_same(record["output"][0], x.grad)


def test_gradient_accumulation_numbers_every_micro_batch(tmp_path):
    model = nn.Sequential(nn.Linear(3, 2))
    batches = [torch.randn(2, 3) for _ in range(3)]
    with collecting(tmp_path, model, level="mix") as dump:
        for batch in batches:
            (model(batch) ** 2).sum().backward()
    for number, batch in enumerate(batches):
        out = model(batch).detach()
        assert_same(dump[f"Module.0.Linear.backward.{number}"]["input"][0], 2 * out)
        assert_same(dump[f"Functional.linear.{number}.backward"]["output"][1], (2 * out).t() @ batch)
    last = (2 * model(batches[-1]).detach()).t() @ batches[-1]
    assert_same(dump["Module.0.Linear.parameters_grad"]["weight"][0], last)


def test_the_first_of_several_backwards_is_kept_and_the_rest_is_logged_once(tmp_path, logged):
    x = torch.randn(3, requires_grad=True)
    with collecting(tmp_path) as dump:
        y = torch.exp(x).sum()
        y.backward(retain_graph=True)
        (y * 5).backward()
    assert_same(dump["Torch.exp.0.backward"]["input"][0], torch.ones(3))
    assert len(logged("further backward passes")) == 1


def test_autograd_grad_is_recorded_like_a_backward(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    x = torch.randn(2, 3, requires_grad=True)
    with collecting(tmp_path, model, level="mix") as dump:
        torch.autograd.grad(model(x).sum(), [x, *model.parameters()])
    got = torch.autograd.grad(model(x).sum(), [x, *model.parameters()])
    assert_same(dump["Functional.linear.0.backward"]["output"][0], got[0])
    assert_same(dump["Functional.linear.0.backward"]["output"][1], got[1])
    assert_same(dump["Module.0.Linear.backward.0"]["output"][0], got[0])


def test_double_backward_is_bit_identical_and_recorded(tmp_path):
    def penalty():
        x = torch.linspace(0, 1, 5, requires_grad=True)
        (grad,) = torch.autograd.grad(torch.sin(x).sum(), x, create_graph=True)
        (grad**2).sum().backward()
        return x.grad

    with collecting(tmp_path) as dump:
        found = penalty()
    assert torch.equal(found, penalty())
    assert "Torch.sin.0.backward" in dump.names
    assert not any(record.get("is_recompute") for record in dump.data.values())


def test_frozen_parameters_have_no_gradient_and_the_rest_has(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[0].requires_grad_(False)
    with collecting(tmp_path, model, level="mix") as dump:
        model(torch.randn(2, 3)).sum().backward()
    assert "Module.0.Linear.backward.0" not in dump.names
    assert "Module.0.Linear.parameters_grad" not in dump.names
    assert dump["Functional.linear.1.backward"]["output"][0] is None
    assert_same(dump["Module.1.Linear.parameters_grad"]["weight"][0], model[1].weight.grad)
    assert dump["Module.0.Linear.forward.0"]["parameters"]["weight"]["requires_grad"] is False


def test_autocast_finds_a_weight_through_its_cached_cast(tmp_path):
    layer = nn.Linear(4, 4)
    x = torch.randn(2, 4)
    with collecting(tmp_path) as dump, torch.autocast("cpu", torch.bfloat16):
        first = layer(x)
        layer(first).float().sum().backward()
    for number in (0, 1):
        record = dump[f"Functional.linear.{number}.backward"]
        assert record["output"][1]["shape"] == [4, 4], record
        assert record["output"][2]["shape"] == [4]
    total = sum(dump[f"Functional.linear.{n}.backward"]["output"][2]["Mean"] for n in (0, 1))
    assert total == pytest.approx(layer.bias.grad.mean().item(), rel=2e-2)


def test_an_output_and_an_input_may_come_from_one_older_node(tmp_path):
    class Returns(nn.Module):
        def forward(self, x):
            return x * 2, self.kept

    model = nn.Sequential(Returns())
    with collecting(tmp_path, model, level="L0") as dump:
        first, model[0].kept = torch.randn(4, requires_grad=True).clone().chunk(2)
        doubled, kept = model(first)
        (doubled.sum() + 3 * kept.sum()).backward()
    record = dump["Module.0.Returns.backward.0"]
    assert_same(record["output"][0], torch.full((2,), 2.0))
    assert [one["Max"] for one in record["input"]] == [1, 3]


def test_views_have_gradients_like_any_other_call(tmp_path):
    x = torch.randn(4, 6, requires_grad=True)
    with collecting(tmp_path) as dump:
        part = x.t()[1:3]
        torch.mul(part, part).sum().backward()
    assert_same(dump["Torch.mul.0.backward"]["output"][0], x.detach().t()[1:3])


def test_in_place_on_a_view_gives_the_right_result_and_no_fault(tmp_path):
    def run():
        x = torch.ones(4, requires_grad=True)
        y = x * 2
        y[:2].mul_(3)
        y[2] = 0
        y.sum().backward()
        return x.grad

    with collecting(tmp_path):
        found = run()
    assert torch.equal(found, run())


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return torch.mul(x, factor)

    @staticmethod
    def backward(ctx, grad):
        return torch.mul(grad, ctx.factor), None


def test_a_custom_autograd_function_inside_a_module(tmp_path):
    class Scale(nn.Module):
        def forward(self, x):
            return Scaled.apply(x, 3.0)

    model = nn.Sequential(Scale())
    x = torch.ones(2, requires_grad=True)
    with collecting(tmp_path, model, level="mix") as dump:
        model(x).sum().backward()
    assert_same(dump["Module.0.Scale.backward.0"]["output"][0], torch.full((2,), 3.0))
    assert dump.construct["Torch.mul.0.forward"] == "Module.0.Scale.forward.0"
    assert "is_recompute" not in dump["Torch.mul.1.forward"]


def test_calls_in_a_backward_that_makes_a_graph_are_not_recomputations(tmp_path):
    def penalty():
        x = torch.ones(2, requires_grad=True)
        (grad,) = torch.autograd.grad(Scaled.apply(x * x, 3.0).sum(), x, create_graph=True)
        grad.sum().backward()
        return x.grad

    with collecting(tmp_path) as dump:
        found = penalty()
    assert torch.equal(found, penalty())
    assert "Torch.mul.1.forward" in dump.names
    assert not any(record.get("is_recompute") for record in dump.data.values())


def test_calls_that_return_their_input_are_logged(tmp_path, logged):
    class Same(nn.Module):
        def forward(self, x):
            return x

    model = nn.Sequential(Same())
    x = torch.sin(torch.randn(3, requires_grad=True))
    with collecting(tmp_path, model, level="L0") as dump:
        model(x).sum().backward()
    assert "Module.0.Same.forward.0" in dump.names
    assert "Module.0.Same.backward.0" not in dump.names
    assert logged("1 call returned its input unchanged")


def test_calls_that_return_their_input_by_design_are_not_logged(tmp_path, logged):
    x = torch.sin(torch.randn(3, requires_grad=True))
    with collecting(tmp_path) as dump:
        torch.sum(F.dropout(x, 0.5, training=False)).backward()
    assert "Functional.dropout.0.forward" in dump.names
    assert "Functional.dropout.0.backward" not in dump.names
    assert not logged("input unchanged")


def test_an_input_that_feeds_several_calls_of_a_module_gets_the_sum_of_their_gradients(tmp_path):
    class Residual(nn.Module):
        def forward(self, x):
            return torch.tanh(x) + x * 3

    model = nn.Sequential(Residual())
    x = torch.linspace(-1, 1, 8, requires_grad=True)
    with collecting(tmp_path, model, level="L0") as dump:
        model(x * 1).sum().backward()
    expected = x.grad
    assert expected.min() > 3  # neither edge alone gives this: tanh's is at most 1, the other exactly 3
    found = dump.data["Module.0.Residual.backward.0"]["output"][0]
    assert found["Max"] == pytest.approx(float(expected.max()))
    assert found["Min"] == pytest.approx(float(expected.min()))
    assert found["Norm"] == pytest.approx(float(expected.norm()))
