"""scope, list and data_mode against a plain reading of their rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msprobe.collect.records.call_numbers import CallNumbers
from msprobe.collect.records.selection import Selection, matches
from msprobe.dump.names import api_stem, backward_of

apis = st.sampled_from(["relu", "linear", "prelu", "conv2d", "__add__"])
calls = st.builds(
    lambda api, n, way: f"Functional.{api}.{n}.{way}",
    apis,
    st.integers(0, 12),
    st.sampled_from(["forward", "backward"]),
)

few = st.sampled_from([f"Functional.{api}.{n}.forward" for api in ("relu", "linear") for n in (0, 1, 10)])


@given(st.lists(few, max_size=20), few, few)
def test_a_scope_is_everything_from_its_first_call_to_its_last(sequence, first, last):
    selection = Selection([first, last], [], ["all"])
    found = []
    for name in sequence:
        found.append(selection.enter(name))
        selection.leave(name)
    inside, expected = False, []
    for name in sequence:
        inside = inside or name == first
        expected.append(inside)
        inside = inside and name != last
    assert found == expected
    missing = f"{first!r} in scope/list matched no call"
    assert any(logged.startswith(missing) for logged in selection.list_unmatched()) == (first not in sequence)


@given(st.lists(calls, max_size=20), st.lists(calls | apis, min_size=1, max_size=3))
def test_a_list_takes_full_names_and_parts_of_names(sequence, entries):
    selection = Selection([], entries, ["all"])
    for name in sequence:
        wanted = any(name == entry if "." in entry else entry in name.split(".")[1] for entry in entries)
        assert selection.enter(name) == wanted
    unmatched = [
        entry
        for entry in entries
        if not any(name == entry if "." in entry else entry in name.split(".")[1] for name in sequence)
    ]
    logged = selection.list_unmatched()
    assert len(logged) == bool(unmatched)
    assert not unmatched or logged[0].startswith(f"{', '.join(map(repr, unmatched))} in scope/list matched no call")


def test_one_is_not_ten():
    assert matches("Functional.relu.1", "Functional.relu.1.forward")
    assert not matches("Functional.relu.1", "Functional.relu.10.forward")
    assert not matches("Module.fc.Linear.forward.1", "Module.fc.Linear.forward.10")


def test_a_kind_and_a_direction_are_no_part_of_the_name_of_an_api():
    assert matches("rel", "Functional.relu.0.forward")
    for entry in ("Functional", "forward", "0"):
        assert not matches(entry, "Functional.relu.0.forward")
    assert not matches("parameters_grad", "Module.a.Linear.parameters_grad")


def test_a_module_takes_what_runs_inside_it_in_its_direction():
    selection = Selection([], ["Module.a.Linear.forward.0"], ["all"])
    inside = ["Module.a.Linear.forward.0", "Module.a.b.ReLU.forward.0"]
    assert selection.enter("Functional.relu.0.forward", inside)
    assert not selection.enter("Functional.relu.0.forward", ["Module.a.Linear.forward.1"])
    assert not selection.enter("Functional.relu.0.backward", ["Module.a.Linear.backward.0"])
    backward = Selection([], ["Module.a.Linear.backward.0"], ["all"])
    assert backward.enter("Functional.relu.0.backward", ["Module.a.Linear.backward.0"])
    assert not backward.enter("Functional.relu.1.forward", ["Module.a.Linear.backward.0"])  # recomputed
    both = Selection([], ["Module.a.Linear"], ["all"])
    assert both.enter("Functional.relu.0.forward", inside)
    assert both.enter("Functional.relu.0.backward", ["Module.a.Linear.backward.0"])


def test_an_unclosed_scope_does_not_reach_into_the_next_step():
    selection = Selection(["Functional.relu.0.forward", "Functional.never.0.forward"], [], ["all"])
    assert selection.enter("Functional.relu.0.forward")
    selection.restart()
    assert not selection.enter("Functional.linear.0.forward")
    (logged,) = selection.list_unmatched()
    assert logged.startswith("'Functional.never.0.forward' in scope/list matched no call")


def test_the_last_call_of_a_scope_that_never_began_is_not_called_missing():
    selection = Selection(["Functional.never.0.forward", "Functional.relu.0.forward"], [], ["all"])
    assert not selection.enter("Functional.relu.0.forward")
    (logged,) = selection.list_unmatched()
    assert logged.startswith("'Functional.never.0.forward' in scope/list matched no call")


def test_a_reversed_scope_is_logged():
    selection = Selection(["Functional.relu.0.forward", "Functional.linear.0.forward"], [], ["all"])
    for name in ("Functional.linear.0.forward", "Functional.relu.0.forward", "Functional.linear.1.forward"):
        selection.enter(name)
        selection.leave(name)
    (logged,) = selection.list_unmatched()
    assert "'Functional.linear.0.forward' in scope ran before 'Functional.relu.0.forward'" in logged


def test_which_calls_get_files():
    assert Selection([], [], ["all"], True).saves("Functional.relu.0.forward")
    assert not Selection([], [], ["all"]).saves("Functional.relu.0.forward")
    some = Selection([], [], ["all"], ("relu", "rleu"))
    assert some.saves("Functional.relu.0.forward")
    assert not some.saves("Functional.linear.0.forward")
    (logged,) = some.list_unmatched()
    assert logged.startswith("'rleu' in tensor_list matched no collected call")


def test_data_mode_is_two_axes():
    def axes(*modes):
        selection = Selection([], [], modes)
        return selection.forward, selection.backward, selection.inputs, selection.outputs

    assert axes("all") == (True, True, True, True)
    assert axes("forward") == (True, False, True, True)
    assert axes("input") == (True, True, True, False)
    assert axes("backward", "output") == (False, True, False, True)


def test_numbers_are_counted_per_name_and_backward_keeps_the_number():
    numbers = CallNumbers()
    assert [numbers.take("a"), numbers.take("a"), numbers.take("b")] == [0, 1, 0]
    numbers.restart()
    assert numbers.take("a") == 0
    assert backward_of("Functional.relu.3.forward") == "Functional.relu.3.backward"
    assert backward_of("Module.a.forward.Linear.forward.3") == "Module.a.forward.Linear.backward.3"
    assert api_stem("Functional.relu.3.forward") == "Functional.relu.3"


@pytest.mark.parametrize(
    ("entry", "name", "parents", "wanted"),
    [
        ("layers.3.*", "Module.model.layers.3.LlamaDecoderLayer.forward.0", (), True),
        ("layers.3.*", "Module.model.layers.3.mlp.up_proj.Linear.backward.0", (), True),
        ("layers.3.*", "Module.model.layers.31.mlp.up_proj.Linear.forward.0", (), False),
        ("layers.3.*", "Functional.linear.7.forward", ("Module.model.layers.3.mlp.up_proj.Linear.forward.0",), True),
        ("layers.3.*", "Functional.linear.7.forward", ("Module.model.layers.2.mlp.up_proj.Linear.forward.0",), False),
        ("layers.?.mlp.*", "Module.model.layers.2.mlp.LlamaMLP.forward.0", (), True),
        ("*norm*", "Functional.layer_norm.0.forward", (), True),
        ("*norm*", "Functional.linear.0.forward", (), False),
        ("layers.[3].*", "Module.model.layers.3.LlamaDecoderLayer.forward.0", (), False),
    ],
)
def test_an_entry_with_a_star_is_a_pattern(entry, name, parents, wanted):
    assert Selection((), (entry,), ("all",)).enter(name, parents) is wanted
