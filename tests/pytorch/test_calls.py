"""What a forward call received and returned, in every shape that arguments, results and errors come in."""

from __future__ import annotations

import collections
import dataclasses
import functools
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from collecting import assert_same, collecting
from torch import nn


class Named(nn.Module):
    """Runs a function as a module, so that a test can name and nest it."""

    def __init__(self, function, **children):
        super().__init__()
        self.function = function
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


# In-place calls: the input is the value before.


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: F.relu(x, inplace=True), "Functional.relu.0.forward"),
        (lambda x: F.relu_(x), "Functional.relu_.0.forward"),
        (lambda x: x.add_(1), "Tensor.add_.0.forward"),
        (lambda x: x.__iadd__(1), "Tensor.__iadd__.0.forward"),
        (lambda x: x.clamp_(0), "Tensor.clamp_.0.forward"),
    ],
)
def test_an_in_place_call_records_the_value_before_and_after(tmp_path, call, name):
    leaf = torch.randn(5, requires_grad=True)
    with collecting(tmp_path) as dump:
        x = torch.sin(leaf)
        before = x.detach().clone()
        call(x)
        torch.sum(x).backward()
    record = dump[name]
    assert_same(record["input_args"][0], before)
    assert_same(record["output"][0], x)
    assert_same(dump[name.replace("forward", "backward")]["input"][0], torch.ones(5))


def test_setitem_records_the_value_before(tmp_path):
    x = torch.arange(6.0)
    with collecting(tmp_path) as dump:
        x[1:3] = 9
    record = dump["Tensor.__setitem__.0.forward"]
    assert_same(record["input_args"][0], torch.arange(6.0))
    assert record["input_args"][1] == {"type": "slice", "value": [1, 3, None]}


def test_an_in_place_module_keeps_its_gradients_right(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    x = torch.randn(3, 4)
    with collecting(tmp_path, model, level="mix") as dump:
        model(x).sum().backward()
    middle = model[0](x).detach()
    assert_same(dump["Module.1.ReLU.forward.0"]["input_args"][0], middle)
    assert_same(dump["Module.1.ReLU.forward.0"]["output"][0], middle.relu())
    into = torch.ones(3, 2) @ model[2].weight.detach()
    for name in ("Module.1.ReLU.backward.0", "Functional.relu.0.backward"):
        assert_same(dump[name]["input"][0], into)
        assert_same(dump[name]["output"][0], into * (middle > 0))


def test_a_write_through_a_view_is_seen_in_the_base(tmp_path):
    x = torch.zeros(4)
    with collecting(tmp_path) as dump:
        torch.sum(x)
        view = x[:2]
        view.add_(5)
        torch.sum(x)
        x.detach().mul_(2)
        torch.sum(x)
    found = [dump[f"Torch.sum.{n}.forward"]["input_args"][0]["Max"] for n in range(3)]
    assert found == [0, 5, 10]


# Modules: shared, called twice, in threads, with hooks of the user's own.


def test_a_shared_module_has_one_name_and_numbers_its_calls(tmp_path):
    shared = nn.Linear(3, 3)
    model = nn.Sequential(collections.OrderedDict(a=shared, act=nn.Tanh(), b=shared))
    x = torch.randn(2, 3)
    with collecting(tmp_path, model, level="L0") as dump:
        model(x).sum().backward()
    assert [n for n in dump.names if "Linear" in n] == [
        "Module.a.Linear.forward.0",
        "Module.a.Linear.forward.1",
        "Module.a.Linear.backward.1",
        "Module.a.Linear.backward.0",
        "Module.a.Linear.parameters_grad",
    ]
    middle = shared(x).tanh().detach()
    assert_same(dump["Module.a.Linear.forward.1"]["input_args"][0], middle)
    assert_same(dump["Module.a.Linear.backward.1"]["output"][0], torch.ones(2, 3) @ shared.weight)
    assert_same(dump["Module.a.Linear.parameters_grad"]["weight"][0], shared.weight.grad)


def test_parents_are_the_modules_around_a_call(tmp_path):
    inner = nn.Linear(2, 2)
    model = Named(lambda self, x: F.relu(self.outer(x)), outer=nn.Sequential(inner, nn.Tanh()))
    with collecting(tmp_path, model, level="mix") as dump:
        model(torch.randn(1, 2)).sum().backward()
    parents = dump.construct
    assert parents["Functional.linear.0.forward"] == "Module.outer.0.Linear.forward.0"
    assert parents["Module.outer.0.Linear.forward.0"] == "Module.outer.Sequential.forward.0"
    assert parents["Module.outer.Sequential.forward.0"] is None
    assert parents["Functional.relu.0.forward"] is None
    assert parents["Functional.linear.0.backward"] == "Module.outer.0.Linear.backward.0"
    assert parents["Module.outer.0.Linear.backward.0"] == "Module.outer.Sequential.backward.0"


def test_a_list_of_models_is_indexed(tmp_path):
    models = [nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))]
    with collecting(tmp_path, models, level="L0") as dump:
        models[1](models[0](torch.randn(1, 2)))
    assert dump.names == ["Module.0.0.Linear.forward.0", "Module.1.0.Linear.forward.0"]


def test_hooks_of_the_user_run_and_their_changes_are_recorded(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    seen = []
    model[0].register_forward_hook(lambda module, args, output: seen.append("forward") or output * 2)
    model[1].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    model[1].register_full_backward_hook(lambda module, into, out: seen.append("backward"))
    x = torch.randn(1, 2, requires_grad=True)
    with collecting(tmp_path, model, level="mix") as dump:
        model(x).sum().backward()
    assert seen == ["forward", "backward"]
    doubled = F.linear(x, model[0].weight, model[0].bias) * 2
    assert_same(dump["Module.0.Linear.forward.0"]["output"][0], doubled)
    assert_same(dump["Module.1.Linear.forward.0"]["input_args"][0], doubled + 1)
    assert len(model[0]._forward_hooks) == 1
    assert len(model[1]._backward_hooks) == 1


def test_modules_in_new_threads_are_collected_with_their_apis(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    with collecting(tmp_path, model, level="mix") as dump:
        threads = [threading.Thread(target=model, args=(torch.randn(1, 2),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(name.startswith("Module.0.Linear.forward") for name in dump.names) == 4
    assert sum(name.startswith("Functional.linear") for name in dump.names) == 4
    assert all(dump.construct[f"Functional.linear.{n}.forward"].startswith("Module.0.Linear") for n in range(4))


# Exceptions.


def test_an_api_that_raises_keeps_its_inputs_and_nothing_after_it_is_lost(tmp_path):
    model = Named(lambda self, x: self.after(self.attempt(x)), after=nn.Tanh(), attempt=Named(None))

    def attempt(self, x):
        try:
            return torch.matmul(x, torch.ones(7, 7))
        except RuntimeError:
            return torch.add(x, 1)

    model.attempt.function = attempt
    with collecting(tmp_path, model, level="mix") as dump:
        model(torch.randn(2, 3))
    assert dump["Torch.matmul.0.forward"]["raised"] == "RuntimeError"
    assert dump["Torch.matmul.0.forward"]["input_args"][0]["shape"] == [2, 3]
    assert "output" not in dump["Torch.matmul.0.forward"]
    assert dump.construct["Torch.add.0.forward"] == "Module.attempt.Named.forward.0"
    assert dump.construct["Torch.tanh.0.forward"] == "Module.after.Tanh.forward.0"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_module_that_raises_is_closed_and_its_parents_stay_right(tmp_path, error):
    def raising(self, x):
        torch.add(x, 1)
        raise error("no")

    def outer(self, x):
        try:
            self.bad(x)
        except BaseException:
            return self.good(x)

    bad = nn.Sequential(nn.Identity(), Named(raising))
    model = nn.Sequential(Named(outer, bad=bad, good=nn.Tanh()), nn.Sigmoid())
    with collecting(tmp_path, model, level="mix") as dump:
        model(torch.randn(2))
        model(torch.randn(2))
    names = dump.names
    if error is RuntimeError:  # of others torch tells no hook: the modules they leave open end with the one around
        assert dump.construct["Module.0.good.Tanh.forward.0"] == "Module.0.Named.forward.0"
    assert dump.construct["Module.1.Sigmoid.forward.0"] is None
    assert dump.construct["Module.0.Named.forward.1"] is None
    assert "Module.1.Sigmoid.forward.1" in names
    if error is RuntimeError:
        assert dump["Module.0.bad.1.Named.forward.0"]["raised"] == "RuntimeError"
        assert dump["Module.0.bad.Sequential.forward.0"]["raised"] == "RuntimeError"
    assert "raised" not in dump["Module.0.Named.forward.0"]


def test_a_module_called_while_an_exception_is_handled_has_not_raised(tmp_path):
    model = nn.Sequential(nn.Tanh())
    with collecting(tmp_path, model, level="mix") as dump:
        try:
            raise ValueError
        except ValueError:
            model(torch.randn(2))
    assert "raised" not in dump["Module.0.Tanh.forward.0"]
    assert "output" in dump["Module.0.Tanh.forward.0"]


# Arguments and results.


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    extra: object = None


Pair = collections.namedtuple("Pair", "first second")


def test_arguments_of_every_kind(tmp_path):
    model = nn.Sequential(Named(lambda self, *args, **kwargs: kwargs["x"] + 1))
    x = torch.ones(2)
    group = [x, {"a": (x, None), "b": 1.5}]
    with collecting(tmp_path, model, level="L0") as dump:
        model[0](
            group, Output(x, "text"), Pair(x, 2), np.arange(3), np.float32(2), torch.Size([1]), True, 1 + 2j, ...,
            x=x, dtype=torch.float16, device=torch.device("cpu"), form=torch.channels_last, f=len, k=object(), b=b"ab",
        )  # fmt: skip
    args = dump["Module.0.Named.forward.0"]["input_args"]
    kwargs = dump["Module.0.Named.forward.0"]["input_kwargs"]
    assert args[0][0]["shape"] == [2]
    assert args[0][1]["a"][1] is None
    assert args[0][1]["b"] == {"type": "float", "value": 1.5}
    assert args[1]["extra"] == {"type": "str", "value": "text"}
    assert args[2]["second"] == {"type": "int", "value": 2}
    assert (args[3]["type"], args[3]["Max"], args[3]["dtype"]) == ("numpy.ndarray", 2, "int64")
    assert args[4]["value"] == 2
    assert args[5] == {"type": "torch.Size", "value": [1]}
    assert args[6] == {"type": "bool", "value": True}
    assert args[8] == {"type": "ellipsis", "value": "..."}
    assert kwargs["dtype"] == {"type": "torch.dtype", "value": "torch.float16"}
    assert kwargs["device"] == {"type": "torch.device", "value": "cpu"}
    assert kwargs["form"] == {"type": "torch.memory_format", "value": "torch.channels_last"}
    assert kwargs["k"] == {"type": "builtins.object"}
    assert kwargs["f"]["value"] == "len"


def test_a_dtype_argument_is_recorded_by_its_name(tmp_path):
    with collecting(tmp_path) as dump:
        torch.sum(torch.ones(2), dtype=torch.float64)
        torch.cumsum(torch.ones(2), 0, dtype=torch.float16)
    assert dump["Torch.sum.0.forward"]["input_kwargs"]["dtype"]["value"] == "torch.float64"


@pytest.mark.parametrize(
    ("result", "read"),
    [
        (lambda x: (x, [x + 1, None]), lambda out: out[1][0]),
        (lambda x: {"a": x, "deep": {"b": x + 1}}, lambda out: out[0]["deep"]["b"]),
        (lambda x: Output(x, [x + 1]), lambda out: out[0]["extra"][0]),
        (lambda x: Pair(x, x + 1), lambda out: out[0]["second"]),
        (lambda x: [x, x + 1], lambda out: out[0][1]),
    ],
    ids=["tuple", "dict", "dataclass", "namedtuple", "list"],
)
def test_results_of_every_kind_with_their_gradients(tmp_path, result, read):
    model = nn.Sequential(Named(lambda self, x: result(x * 2)))
    x = torch.ones(3, requires_grad=True)
    with collecting(tmp_path, model, level="L0") as dump:
        found = model(x)
        leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(found) if isinstance(leaf, torch.Tensor)]
        if isinstance(found, Output):
            leaves = [found.logits, found.extra[0]]
        sum((n + 1) * leaf.sum() for n, leaf in enumerate(leaves)).backward()
    assert_same(read(dump["Module.0.Named.forward.0"]["output"]), torch.full((3,), 3.0))
    backward = dump["Module.0.Named.backward.0"]
    assert_same(backward["input"][1], torch.full((3,), 2.0))
    assert_same(backward["output"][0], torch.full((3,), 6.0))


def test_torch_return_types_are_their_members(tmp_path):
    x = torch.randn(3, 4, requires_grad=True)
    with collecting(tmp_path) as dump:
        values, _places = torch.max(x, 1)
        values.sum().backward()
    found = dump["Torch.max.0.forward"]["output"]
    assert_same(found[0], values)
    assert found[1]["dtype"] == "torch.int64"
    assert_same(dump["Torch.max.0.backward"]["output"][0], x.grad)


def test_operators_keep_the_spelling_of_the_script(tmp_path):
    x = torch.ones(2)
    with collecting(tmp_path) as dump:
        _ = (x + 1, 1 + x, x * 2, x @ x, 1 - x, x.add(1), x**2, -x, x / 2)
        x += 1
    for name in [
        "__add__",
        "__radd__",
        "__mul__",
        "__matmul__",
        "__rsub__",
        "add",
        "__pow__",
        "__neg__",
        "__truediv__",
        "__iadd__",
    ]:
        assert any(found.startswith(f"Tensor.{name}.0.") for found in dump.names), (name, dump.names)


def test_calls_bound_before_start_are_seen(tmp_path):
    bound, partial = torch.relu, functools.partial(F.gelu, approximate="tanh")
    with collecting(tmp_path) as dump:
        bound(torch.ones(1))
        partial(torch.ones(1))
    assert dump.names == ["Torch.relu.0.forward", "Functional.gelu.0.forward"]


def test_a_stack_leads_to_the_line_of_the_script(tmp_path):
    with collecting(tmp_path) as dump:
        torch.relu(torch.ones(1))  # here
    (names, frames), *rest = dump.stacks.values()
    assert names == ["Torch.relu.0.forward"]
    assert not rest
    assert "test_calls.py" in frames[0]
    assert "# here" in frames[0]


# Modes of torch.


def test_no_grad_and_inference_mode_have_forwards_only(tmp_path):
    x = torch.ones(2, requires_grad=True)
    with collecting(tmp_path) as dump:
        with torch.no_grad():
            torch.relu(x)
        with torch.inference_mode():
            y = torch.relu(x)
            y.add_(1)
            torch.relu(y)
    assert dump.names == [
        "Torch.relu.0.forward",
        "Torch.relu.1.forward",
        "Tensor.add_.0.forward",
        "Torch.relu.2.forward",
    ]
    assert dump["Torch.relu.2.forward"]["input_args"][0]["Max"] == 2


def test_leaving_a_device_context_entered_before_start_loses_nothing(tmp_path):
    context = torch.device("meta")
    context.__enter__()
    with collecting(tmp_path) as dump:
        torch.relu(torch.ones(1))
        context.__exit__(None, None, None)
        torch.tanh(torch.ones(1))
    assert dump.names == ["Torch.relu.0.forward", "Torch.tanh.0.forward"]
    assert torch.overrides._get_current_function_mode_stack() == []
    assert torch.ones(1).device.type == "cpu"


def test_a_default_device_set_before_start_can_be_taken_back_inside(tmp_path):
    torch.set_default_device("meta")
    with collecting(tmp_path) as dump:
        torch.relu(torch.ones(1))
        torch.set_default_device(None)
        torch.relu(torch.ones(1))
    assert dump["Torch.relu.0.forward"]["input_args"][0]["unreadable"]
    assert dump["Torch.relu.1.forward"]["output"][0]["Max"] == 1
    assert torch.overrides._get_current_function_mode_stack() == []


def test_a_default_device_set_inside_is_kept(tmp_path):
    with collecting(tmp_path):
        with torch.device("meta"):
            assert torch.ones(1).device.type == "meta"
        assert torch.ones(1).device.type == "cpu"
        torch.set_default_device("meta")
        assert torch.ones(1).device.type == "meta"
    assert torch.ones(1).device.type == "meta"
    torch.set_default_device(None)
    assert torch.overrides._get_current_function_mode_stack() == []


def test_functions_that_ask_through_a_helper_run_and_what_they_call_is_seen(tmp_path):
    x, y = torch.arange(3.0), torch.arange(2.0)
    with collecting(tmp_path) as dump:
        first, _ = torch.meshgrid(x, y, indexing="ij")
        torch.relu(first)
    assert torch.equal(first, x[:, None].expand(3, 2))
    assert "Torch.relu.0.forward" in dump.names


class _Scaled(torch.Tensor):
    """The pattern of torch's own documents: some functions are handled."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.backward:
            with torch._C.DisableTorchFunctionSubclass():
                return torch.Tensor.backward(args[0] * 1024)
        if func in (torch.Tensor.split, torch.atleast_2d, nn.init.constant_):
            return "handled"
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_subclass_still_handles_its_own_calls(tmp_path, level):
    weight = nn.Parameter(torch.ones(4))
    x = torch.ones(4).as_subclass(_Scaled)
    with collecting(tmp_path, nn.Sequential(nn.ReLU()), level=level):
        (weight.as_subclass(_Scaled) * 2).sum().backward()
        handled = [x.split(2), torch.atleast_2d(x), nn.init.constant_(x, 2.0)]
    assert weight.grad.tolist() == [2048.0] * 4
    assert handled == ["handled"] * 3
