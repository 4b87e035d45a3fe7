"""register_custom_api: a registered function works as before for every caller, and restore puts the original back."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import pickle
import types

import pytest
import torch
import torch.nn.functional as F
from collecting import Dump, configured
from torch import nn

from msprobe.collect.custom import CustomApis
from msprobe.collect.run.lifecycle import UsageError
from msprobe.pytorch import PrecisionDebugger

X = torch.ones(2)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Steeper(Scale):
    @staticmethod
    def forward(ctx, x):
        return x * 5


class Base:
    scale = 2
    builtin = torch.neg

    def __init__(self, own=3):
        self.own = own

    @staticmethod
    def static(x):
        return x * 2

    @classmethod
    def of_class(cls, x):
        return x * cls.scale

    def method(self, x):
        return x * self.own

    @functools.lru_cache(maxsize=4)  # noqa: B019
    def cached(self, x):
        return x * self.own

    later = functools.partialmethod(method)


class Derived(Base):
    scale = 10


class Helped(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), 3.0))

    def helper(self, x):
        return x * self.weight

    def forward(self, x):
        return self.helper(x)


def fused(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """Doc."""
    return torch.relu(x) * scale


@pytest.fixture
def debugger(tmp_path):
    return PrecisionDebugger(configured(tmp_path))


class Registered:
    """Registers for a block; the attributes of the owner are the same objects after it."""

    def __init__(self, debugger, owner, *names):
        self.debugger, self.owner, self.names = debugger, owner, names

    def __enter__(self):
        self.before = dict(vars(self.owner))
        for name in self.names:
            self.debugger.register_custom_api(self.owner, name)

    def __exit__(self, *error):
        for name in self.names:
            self.debugger.restore_custom_api(self.owner, name)
        after = dict(vars(self.owner))
        assert after.keys() == self.before.keys()
        assert all(after[key] is value for key, value in self.before.items())


def calls():
    made, derived = Base(), Derived(own=7)
    results = [Base.static(X), made.static(X), Derived.static(X), Base.of_class(X), made.of_class(X)]
    results += [Derived.of_class(X), derived.of_class(X), Base.method(made, X), made.method(X), derived.method(X)]
    results += [derived.builtin(X), derived.cached(X), derived.later(X), Scale.apply(X), Steeper.apply(X)]
    return [result.tolist() for result in results]


@pytest.mark.parametrize("owner", [Base, Derived])
def test_every_kind_in_a_class_binds_as_before(owner, debugger, tmp_path):
    names = ("static", "of_class", "method", "cached", "later", "builtin")
    wanted = calls()
    with Registered(debugger, owner, *names), Registered(debugger, Scale, "apply"):
        assert calls() == wanted
        assert owner.cached.cache_info().maxsize == 4
        assert str(inspect.signature(owner.of_class)) == "(x)"
        assert pickle.loads(pickle.dumps(Derived(9).method))(X).tolist() == [9, 9]
        debugger.start()
        assert calls() == wanted
        debugger.stop()
        debugger.step()
    assert calls() == wanted
    dump = Dump(tmp_path / "dump")
    for name in names:
        assert f"{owner.__name__}.{name}.0.forward" in dump.names
    assert [name for name in dump.names if "apply" in name] == ["Scale.apply.0.forward", "Scale.apply.1.forward"]
    method = dump[f"{owner.__name__}.method.0.forward"]["input_args"]
    assert [value["type"] for value in method][-1] == "torch.Tensor"


def test_all_autograd_functions_through_their_base(debugger):
    with Registered(debugger, torch.autograd.Function, "apply"):
        assert (Scale.apply(X).tolist(), Steeper.apply(X).tolist()) == ([2, 2], [5, 5])
    assert (Scale.apply(X).tolist(), Steeper.apply(X).tolist()) == ([2, 2], [5, 5])
    assert "apply" not in vars(Scale)


def test_an_inherited_method_of_tensor(debugger, tmp_path):
    before = torch.Tensor.exp
    with Registered(debugger, torch.Tensor, "exp"):
        debugger.start()
        assert torch.equal(X.exp(), torch.exp(X))
        debugger.stop()
        debugger.step()
    assert torch.Tensor.exp is before
    assert Dump(tmp_path / "dump")["Tensor.exp.0.forward"]["input_args"][0]["shape"] == [2]


def test_an_instance_can_be_saved_and_copied_and_the_copy_is_independent(debugger):
    model = Helped()
    with Registered(debugger, model, "helper"):
        saved = io.BytesIO()
        torch.save(model, saved)
        saved.seek(0)
        copies = [copy.deepcopy(model), torch.load(saved, weights_only=False)]
        assert model(X).tolist() == [3, 3]
    assert b"msprobe" not in saved.getvalue()
    with torch.no_grad():
        model.weight.fill_(4)
    for one in copies:
        assert one(X).tolist() == [3, 3]


def test_a_function_in_an_instance_or_in_a_slot_is_restored(debugger):
    class Slotted:
        __slots__ = ("act",)

    slotted, plain = Slotted(), types.SimpleNamespace(act=F.relu)
    slotted.act = F.relu
    debugger.register_custom_api(slotted, "act")
    with Registered(debugger, plain, "act"):
        assert (plain.act(-X).sum(), slotted.act(-X).sum()) == (0, 0)
    debugger.restore_custom_api(slotted, "act")
    assert slotted.act is F.relu


def test_a_function_is_still_one_for_those_who_look(debugger):
    """Pickled by name, compiled and scripted while it is registered."""
    library = types.ModuleType("library")
    library.fused, library.neg = fused, torch.neg
    with Registered(debugger, library, "fused", "neg"):
        assert inspect.isfunction(library.fused)
        assert pickle.loads(pickle.dumps(library.neg)) is torch.neg
        assert torch.jit.script(library.fused)(X, 2.0).tolist() == [2, 2]
        compiled = torch.compile(lambda x: library.fused(x, 3.0), backend="eager", fullgraph=True)
        assert compiled(X).tolist() == [3, 3]


@pytest.mark.parametrize(
    ("owner", "name", "message"),
    [
        (nn, "Linear", r"torch\.nn\.Linear is a class.*Register one of its methods"),
        (int, "__add__", r"int\.__add__ cannot be replaced .*a function of your own"),
        (nn.Sequential(nn.ReLU()), "0", "cannot be replaced"),
        (torch, "nothing", "torch has no function 'nothing'"),
    ],
)
def test_an_object_that_cannot_be_replaced_gives_one_sentence(owner, name, message, debugger):
    with pytest.raises(UsageError, match=message) as logged:
        debugger.register_custom_api(owner, name)
    assert "\n" not in str(logged.value)
    with pytest.raises(UsageError, match="was not registered"):
        debugger.restore_custom_api(owner, name)
    assert isinstance(nn.Linear(1, 1), nn.Linear)


def test_another_debugger_records_and_restores_what_was_registered_before(tmp_path):
    library = types.SimpleNamespace(fused=fused, __name__="library")
    PrecisionDebugger(configured(tmp_path / "one")).register_custom_api(library, "fused")
    second = PrecisionDebugger(configured(tmp_path / "two"))
    second.register_custom_api(library, "fused")
    second.start()
    library.fused(X)
    second.stop()
    second.step()
    PrecisionDebugger.restore_custom_api(library, "fused")
    assert library.fused is fused
    assert Dump(tmp_path / "two" / "dump").names == ["library.fused.0.forward"]


def test_what_the_script_put_over_it_since_is_left_there(logged):
    class Records:
        def record_custom(self, api, func, args, kwargs):
            raise AssertionError("restored")

    apis = CustomApis(lambda prefix, name: (prefix, name))
    library = types.SimpleNamespace(fused=fused, __name__="library")
    apis.register(library, "fused", None)
    ours = library.fused
    library.fused = patch = lambda x: ours(x) + 1
    apis.restore(library, "fused")
    apis.attach(Records())
    assert library.fused is patch
    assert library.fused(X).tolist() == [2, 2]
    assert logged("other code has replaced library.fused since")
