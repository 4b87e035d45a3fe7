"""The parts of the call path that need no framework: finding tensors, naming modules, assigning gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msprobe.collect.calls.module_names import ModuleFacts, name_modules
from msprobe.collect.calls.tensor_search import TensorSearch
from msprobe.collect.gradients.backward_record import BackwardRecord, assign_exits


class Tensor:
    pass


@dataclass
class Output:
    loss: Any
    rest: Any


def test_tensors_are_found_in_order_however_nested():
    one, two, three, four = (Tensor() for _ in range(4))
    search = TensorSearch(Tensor)
    assert search.in_call((1, one, [two, None, "x"], Output(three, (2, [1.5]))), {"last": four}) == [
        one,
        two,
        three,
        four,
    ]
    assert search.in_value({"a": (one, {"b": [two]})}, []) == [one, two]
    assert search.in_value(Output, []) == []


def test_a_list_that_contains_itself_ends():
    loop: list[Any] = [Tensor()]
    loop.append(loop)
    assert set(map(type, TensorSearch(Tensor).in_value(loop, []))) == {Tensor}


class Module:
    def __init__(self, compiled: bool = False, **children: Any) -> None:
        self.compiled = compiled
        self.children = children


def describe(module: Module) -> ModuleFacts:
    children = () if module.compiled else reversed(module.children.items())
    return ModuleFacts("Module", module.compiled, children)


def test_modules_are_named_by_their_first_path_in_order():
    shared = Module()
    model = Module(first=Module(inner=shared), none=None, second=shared, third=Module())
    assert [(title, around) for title, _, around in name_modules([model], "M", False, describe)] == [
        ("M.first.Module", None),
        ("M.first.inner.Module", "M.first.Module"),
        ("M.third.Module", None),
    ]


def test_a_compiled_model_has_a_name_and_hides_what_is_in_it():
    models = [Module(a=Module()), Module(compiled=True, a=Module())]
    assert [title for title, _, _ in name_modules(models, "M", True, describe)] == ["M.0.a.Module", "M.1.Module"]


def make_record() -> BackwardRecord:
    return BackwardRecord("Tensor.mul.0.backward", ["Module.a.A.forward.0"], 1, 3)


def test_an_argument_gets_the_sum_over_all_edges_that_lead_to_it():
    record, position = make_record(), [1]
    assert assign_exits(record, [("n", 0, position), ("m", 2, position)]) == {"n": [(0, 1)], "m": [(2, 1)]}
    assert record.remaining == {1: 2}
    assert record.shared == ()
    assert record.parent == "Module.a.A.backward.0"


def test_a_tensor_given_twice_to_one_operator_has_one_edge_for_each():
    record, positions = make_record(), [0, 2]
    assert assign_exits(record, [("n", 0, positions), ("n", 1, positions)]) == {"n": [(0, 0), (1, 2)]}
    assert record.remaining == {0: 1, 2: 1}
    assert record.shared == ()


def test_a_tensor_given_twice_with_edges_that_cannot_be_distinguished_shares_its_gradient():
    record, positions = make_record(), [0, 2]
    assert assign_exits(record, [("n", 0, positions), ("m", 0, positions)]) == {"n": [(0, 0)], "m": [(0, 0)]}
    assert record.remaining == {0: 2}
    assert record.shared == (0, 2)
