"""The one grammar of record names, and which calls are collectives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msprobe.dump.collectives import is_collective
from msprobe.dump.names import backward_of, forward_of, parse_api_name, parse_name, split_slot

NAMES = {
    "Functional.relu.3.forward": ("api", "Functional.relu", 3, "forward"),
    "Torch.linalg.norm.0.backward": ("api", "Torch.linalg.norm", 0, "backward"),
    "Module.layers.0.fc.Linear.forward.2": ("module", "Module.layers.0.fc.Linear", 2, "forward"),
    "Cell.net.Dense.backward.0": ("module", "Cell.net.Dense", 0, "backward"),
    "Module.layers.0.fc.Linear.parameters_grad": ("grads", "Module.layers.0.fc.Linear", 0, "parameters_grad"),
    "Module.layers.0.fc.Linear.parameters_grad.1": ("grads", "Module.layers.0.fc.Linear", 1, "parameters_grad"),
    "loss.0.debug": ("debug", "loss", 0, "debug"),
    "Default/Conv2D-op12": ("api", "Default/Conv2D", 12, "forward"),
    "Default/Conv2D-op12#2": ("api", "Default/Conv2D", 12, "forward"),
    "nothing of the kind": ("other", "nothing of the kind", 0, "forward"),
}


@pytest.mark.parametrize("name", NAMES)
def test_each_form_of_a_name_is_parsed(name: str) -> None:
    assert parse_name(name) == NAMES[name]


@given(
    st.text(max_size=60) | st.from_regex(r"[A-Za-z.]{0,20}\.[0-9²٣]{0,30}\.(forward|backward|debug)(\.[0-9]{0,25})?")
)
def test_any_text_is_a_name(text: str) -> None:
    parsed = parse_name(text)
    assert parsed.number >= 0
    parse_api_name(text)
    split_slot(text)


def test_forward_and_backward_names_belong_together() -> None:
    for name in ("Functional.relu.3.forward", "Module.layers.0.fc.Linear.forward.2"):
        assert backward_of(name) != name
        assert forward_of(backward_of(name)) == name
    assert backward_of("Module.a.Linear.parameters_grad") == "Module.a.Linear.parameters_grad"


def test_only_api_names_can_be_looked_up() -> None:
    assert parse_api_name("Module.x.Linear.0.forward") is None
    assert parse_api_name("Cell.x.0.forward") is None
    found = parse_api_name("Tensor.__add__.1.forward")
    assert found is not None
    assert (found.title, found.call) == ("Tensor.__add__", "Tensor.__add__.1")


@pytest.mark.parametrize(
    "key",
    [
        "Distributed.all_reduce",
        "MintDistributed.broadcast",
        "Primitive.reducer.AllReduce",
        "Ops._c10d_functional.all_reduce",
        "Torch._all_gather_base",
    ],
)
def test_collectives_of_both_frameworks_are_known(key: str) -> None:
    assert is_collective(key)


@pytest.mark.parametrize(
    "key", ["Torch.broadcast_to", "Torch.gather", "Functional.reduce_sum", "Primitive.x.ReduceSum"]
)
def test_a_name_that_only_looks_like_a_collective_is_not_one(key: str) -> None:
    assert not is_collective(key)
