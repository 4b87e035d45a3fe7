"""Any Python value becomes JSON text, and none raises: odd ones are named by their type."""

from __future__ import annotations

import collections
import dataclasses
import enum
import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msprobe.collect.records.values import Values


class Plain:
    """An adapter without a framework: its only tensor is a class of our own."""

    class Tensor:
        pass

    tensor_types = frozenset({Tensor})

    def tensor_text(self, tensor, path):
        return json.dumps({"tensor": path})

    def other_text(self, value, path):
        return None


VALUES = Values(Plain())


def shown(value, path=""):
    return json.loads(VALUES.value(value, path))


nested = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.none(), inner) | st.tuples(inner),
    max_leaves=20,
)


@given(nested)
def test_nested_values_are_valid_json(value):
    expected = json.dumps(shown(value))  # as text: NaN is not equal to itself
    (found,) = json.loads(VALUES.sequence([value], "x"))
    assert json.dumps(found) == expected
    assert isinstance(json.loads(VALUES.result(value, "")), list)


@given(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=900))
def test_simple_values_come_back(value):
    found = shown(value)
    assert found == (None if value is None else {"type": type(value).__name__, "value": value})


def test_containers_keep_their_form():
    Point = collections.namedtuple("Point", "x y")

    @dataclasses.dataclass
    class Output:
        logits: object
        past: object = None

    assert shown([1, (2.5, None)])[1] == [{"type": "float", "value": 2.5}, None]
    assert shown(Point(1, "a")) == {"x": {"type": "int", "value": 1}, "y": {"type": "str", "value": "a"}}
    assert shown(Output(True)) == {"logits": {"type": "bool", "value": True}, "past": None}
    assert shown(slice(1, None, 2)) == {"type": "slice", "value": [1, None, 2]}
    assert shown(...) == {"type": "ellipsis", "value": "..."}
    assert shown(collections.OrderedDict(a=1)) == {"a": {"type": "int", "value": 1}}


def test_tensors_are_named_by_their_place():
    tensor = Plain.Tensor()
    assert json.loads(VALUES.sequence([1, [tensor]], "call.input"))[1] == [{"tensor": "call.input.1.0"}]
    assert json.loads(VALUES.mapping({"key": {"deep": tensor}}, "call.input"))["key"]["deep"] == {
        "tensor": "call.input.key.deep"
    }
    assert json.loads(VALUES.result(tensor, "call.output")) == [{"tensor": "call.output.0"}]
    assert json.loads(VALUES.result((tensor, tensor), "call.output"))[1] == {"tensor": "call.output.1"}
    assert json.loads(VALUES.value([tensor], "")) == [{"tensor": ""}]


def test_a_result_is_a_list_of_its_members_or_of_one():
    assert len(json.loads(VALUES.result((1, 2), ""))) == 2
    assert len(json.loads(VALUES.result([1, 2], ""))) == 1
    assert json.loads(VALUES.result(None, "")) == [None]


class Hostile:
    def __repr__(self):
        raise ValueError

    __str__ = __repr__
    __hash__ = object.__hash__


class Colour(str, enum.Enum):
    RED = "red"


@pytest.mark.parametrize("value", [Hostile(), Hostile, len, lambda: None, object(), Colour.RED, {1, 2}, iter([])])
def test_odd_values_are_named(value):
    assert "type" in shown(value)
    assert "type" in shown([value])[0]


def test_a_list_that_holds_itself_ends():
    loop = []
    loop.append(loop)
    assert json.dumps(shown(loop)).count("[") > 1  # a few turns of it, then its type


def test_long_text_is_cut_and_its_length_recorded():
    found = shown("x" * 5000)
    assert len(found["value"]) == 1000
    assert found["length"] == 5000


def test_numbers_that_json_does_not_know_are_as_the_field_writes_them():
    assert VALUES.value(math.inf, "") == '{"type": "float", "value": Infinity}'
    assert VALUES.value(math.nan, "") == '{"type": "float", "value": NaN}'


def test_keys_that_are_written_alike_lose_nothing():
    found = shown({0: 1, "0": 2, "0#2": 3})
    assert {name: value["value"] for name, value in found.items()} == {"0": 1, "0#2": 2, "0#2#2": 3}
    tensors = shown({0: Plain.Tensor(), "0": Plain.Tensor()}, "call.input")
    assert [value["tensor"] for value in tensors.values()] == ["call.input.0", "call.input.0#2"]
    assert list(shown({Hostile(): 1, 10**5000: 2})) == ["Hostile", "int"]


def test_a_number_that_no_reader_takes_is_named_by_its_size():
    assert shown([10**5000, 1])[0] == {"type": "int", "bits": (10**5000).bit_length()}
    assert shown(slice(0, 10**5000)) == {"type": "slice", "value": [0, "int", None]}
    assert shown(-(10**1000))["value"] == -(10**1000)


@dataclasses.dataclass
class Node:
    number: int
    links: list


def test_objects_that_refer_to_each_other_are_cut_and_marked():
    nodes = [Node(number, []) for number in range(12)]
    for node in nodes:
        node.links = nodes
    text = VALUES.sequence([nodes[0], nodes[1]], "")
    assert len(text) < 2_000_000
    first, second = json.loads(text)
    assert len(first["links"]) == len(second["links"]) == 12
    for argument in (first, second):
        assert set(re.findall(r'"number": {"type": "int", "value": (\d+)', json.dumps(argument))) == set(
            map(str, range(12))
        )
        assert "left_out" in argument["links"][-1]


@pytest.mark.parametrize("value", [list(range(20_000)), [(1, 1)] * 3000, [[number] for number in range(20_000)]])
def test_a_value_that_is_only_long_or_shared_is_not_cut(value):
    text = VALUES.value(value, "")
    assert "left_out" not in text
    assert len(json.loads(text)) == len(value)
