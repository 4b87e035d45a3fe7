"""What the script does to torch itself, or asks torch to look at, is as without us."""

from __future__ import annotations

import pytest
import torch
import torch.fx
from collecting import collecting

from msprobe.collect import notices
from msprobe.pytorch import PrecisionDebugger


class Inner(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) + x.sum() * 2


class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.inner = Inner()

    def forward(self, x):
        return torch.nn.functional.gelu(self.inner(self.linear(x)))


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_symbolic_trace_sees_nothing_of_ours(tmp_path, level):
    model = Outer()
    expected = torch.fx.symbolic_trace(model).code
    with collecting(tmp_path, model, level=level) as dump:
        found = torch.fx.symbolic_trace(model).code
        model(torch.ones(2, 4))
    assert found == expected
    assert dump.names


@pytest.mark.parametrize("when", ["before the debugger", "before start"])
@pytest.mark.parametrize("method", ["add", "relu", "__add__", "__mul__", "norm", "split"])
def test_a_wrapper_of_a_method_runs_as_often_as_without_us(tmp_path, monkeypatch, when, method):
    runs = []
    original = getattr(torch.Tensor, method)

    def wrapper(*args, **kwargs):
        runs.append(method)
        return original(*args, **kwargs)

    def use():
        x = torch.tensor([1.0, -2.0])
        return [x.add(1), x.relu(), x + 1, x * 2, x.norm(), *x.split(1)]

    if when == "before the debugger":
        monkeypatch.setattr(torch.Tensor, method, wrapper)
    debugger = PrecisionDebugger(task="statistics", level="L1", dump_path=str(tmp_path / "dump"))
    if when == "before start":
        debugger.start()
        debugger.stop()
        monkeypatch.setattr(torch.Tensor, method, wrapper)
    expected = use()
    count = len(runs)
    assert count
    runs.clear()
    debugger.start()
    found = use()
    debugger.stop()
    debugger.step()
    assert len(runs) == count
    assert [one.tolist() for one in found] == [one.tolist() for one in expected]


def test_a_wrapper_whose_method_cannot_be_found_is_named(tmp_path, monkeypatch, logged):
    kept = {"norm": torch.Tensor.norm}

    def norm(self, *args, **kwargs):
        return kept["norm"](self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "norm", norm)
    notices.forget()
    with collecting(tmp_path):
        torch.ones(2).norm()
    assert logged("torch.Tensor.norm")


def test_calls_that_return_their_input_by_design_are_not_logged(tmp_path, logged):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.0), torch.nn.Identity())
    notices.forget()
    with collecting(tmp_path, model, level="mix"):
        x = model(torch.ones(2, 4))
        torch.nn.functional.dropout(x, 0.0).contiguous().to(torch.float32).float().sum().backward()
    assert not logged("input unchanged")


def test_the_gradients_of_a_compiled_model_are_recorded(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    compiled = torch.compile(model, backend="aot_eager")
    with collecting(tmp_path, compiled, level="mix") as dump:
        compiled(torch.ones(2, 4)).sum().backward()
    for number in (0, 2):
        found = dump[f"Module.{number}.Linear.parameters_grad"]
        assert found["weight"][0]["Norm"] == pytest.approx(model[number].weight.grad.norm().item())


def test_the_parameters_of_the_root_have_their_gradients(tmp_path):
    class Root(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.token = torch.nn.Parameter(torch.ones(4))
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x + self.token)

    model = Root()
    with collecting(tmp_path, model, level="L0") as dump:
        model(torch.ones(2, 4)).sum().backward()
    assert dump["Module.Root.parameters_grad"]["token"][0]["Norm"] == pytest.approx(model.token.grad.norm().item())


def test_the_places_of_sparse_and_nested_values_are_recorded(tmp_path):
    values = torch.tensor([1.0, 2.0])
    with collecting(tmp_path) as dump:
        for places in ([[0, 1], [1, 0]], [[0, 1], [0, 1]]):
            torch.clone(torch.sparse_coo_tensor(torch.tensor(places), values, (2, 2), check_invariants=True))
        for columns in ([0, 1], [1, 0]):
            torch.clone(torch.sparse_csr_tensor([0, 1, 2], columns, values, (2, 2), check_invariants=True))
        for sizes in ((1, 3), (2, 2)):
            torch.clone(torch.nested.nested_tensor([torch.ones(size) for size in sizes], layout=torch.jagged))
    items = [dump[f"Torch.clone.{number}.forward"]["input_args"][0] for number in range(6)]
    for first, second in (items[:2], items[2:4], items[4:]):
        assert [first[key] for key in ("Max", "Min", "Norm")] == [second[key] for key in ("Max", "Min", "Norm")]
        assert first["places"] != second["places"]
