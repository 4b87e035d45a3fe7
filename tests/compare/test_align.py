"""Alignment, planned on names and records alone."""

from __future__ import annotations

import time
from typing import Any, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.compare.align.plan import plan
from msprobe.compare.align.sequence import common_order
from msprobe.compare.align.translate import ApiRule, Translation
from msprobe.compare.calls import Match, calls_of, parse_name


def tensor(value: float = 1.0, shape: Optional[list[int]] = None, kind: str = "torch.Tensor") -> dict[str, Any]:
    return {
        "type": kind,
        "dtype": "torch.float32",
        "shape": shape or [2, 3],
        "Max": value,
        "Min": -value,
        "Mean": value / 2,
        "Norm": value * 2,
        "requires_grad": True,
    }


def record(value: float = 1.0, *arguments: Any, shape: Optional[list[int]] = None) -> dict[str, Any]:
    scalars = [{"type": "float", "value": a} for a in arguments]
    return {"input_args": [tensor(value, shape), *scalars], "input_kwargs": {}, "output": [tensor(value + 1, shape)]}


def run(
    *names: str, parents: Optional[dict[str, str]] = None, **values: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    data = {name: record(index + 1.0) for index, name in enumerate(names)}
    construct: dict[str, Any] = {name: (parents or {}).get(name) for name in names}
    return data, construct


def numbered(*apis: str) -> list[str]:
    """`relu`, `relu` -> the names that a forward run of them has."""
    seen: dict[str, int] = {}
    names = []
    for api in apis:
        names.append(f"Functional.{api}.{seen.setdefault(api, 0)}.forward")
        seen[api] += 1
    return names


def matched(matches: list[Match]) -> list[tuple[Optional[str], Optional[str]]]:
    return [(m.target and m.target.name, m.golden and m.golden.name) for m in matches]


def planned(target: Any, golden: Any, mode: str = "auto", translation: Optional[Translation] = None) -> list[Match]:
    return plan(calls_of(*target), calls_of(*golden), mode, translation)


def test_names_tell_kind_key_number_and_direction() -> None:
    assert parse_name("Functional.relu.3.forward") == ("api", "Functional.relu", 3, "forward")
    assert parse_name("Module.layers.0.fc.Linear.backward.2") == ("module", "Module.layers.0.fc.Linear", 2, "backward")
    assert parse_name("Cell.net.Dense.forward.0")[0] == "module"
    assert parse_name("Module.fc.Linear.parameters_grad") == ("grads", "Module.fc.Linear", 0, "parameters_grad")
    assert parse_name("Module.fc.Linear.parameters_grad.0") == ("grads", "Module.fc.Linear", 0, "parameters_grad")
    assert parse_name("probe.1.debug") == ("debug", "probe", 1, "debug")
    assert parse_name("Primitive.conv.Conv2D.0.forward") == ("api", "Primitive.conv.Conv2D", 0, "forward")
    assert parse_name("whatever")[0] == "other"


def test_the_same_names_match_exactly() -> None:
    data = run(*numbered("conv2d", "relu", "relu"))
    matches = planned(data, data)
    assert all(m.how == "exact" and m.confidence == 1.0 for m in matches)
    assert len(matches) == 3


def test_a_removed_call_leaves_one_hole_and_shifts_nothing() -> None:
    golden = run(*numbered("linear", "mul", "softmax", "mul", "linear"))
    names = numbered("linear", "softmax", "mul", "linear")
    target = ({name: record(v) for name, v in zip(names, (1.0, 30.0, 40.0, 50.0))}, {})
    pairs = matched(planned(target, golden))
    assert (None, "Functional.mul.0.forward") in pairs
    assert ("Functional.mul.0.forward", "Functional.mul.1.forward") in pairs
    assert ("Functional.linear.1.forward", "Functional.linear.1.forward") in pairs


def test_an_inserted_call_is_unmatched_and_stands_in_its_place() -> None:
    golden = run(*numbered("linear", "softmax", "linear"))
    names = numbered("linear", "dropout", "softmax", "linear")
    target = ({name: record(value) for name, value in zip(names, (1.0, 20.0, 30.0, 40.0))}, {})
    pairs = matched(planned(target, golden))
    assert pairs[1] == ("Functional.dropout.0.forward", None)
    assert len(pairs) == 4


def test_a_replaced_call_is_matched_by_its_place_with_little_confidence() -> None:
    golden = run(*numbered("linear", "relu", "linear"))
    target = ({name: record(v) for name, v in zip(numbered("linear", "gelu", "linear"), (1.0, 20.0, 30.0))}, {})
    (match,) = [m for m in planned(target, golden) if m.target and m.target.name == "Functional.gelu.0.forward"]
    assert match.golden is not None
    assert match.golden.name == "Functional.relu.0.forward"
    assert match.how == "position"
    assert match.confidence <= 0.5


@pytest.mark.parametrize("values", [(1.0, 4.0, 5.0), (1.0, 44.0, 55.0)], ids=["same result", "another result"])
def test_one_fused_call_stands_for_several(values: tuple[float, ...]) -> None:
    golden = run(*numbered("linear", "matmul", "softmax", "bmm", "linear"))
    names = numbered("linear", "scaled_dot_product_attention", "linear")
    target = ({name: record(value) for name, value in zip(names, values)}, {})
    (match,) = [m for m in planned(target, golden) if m.how == "fused"]
    assert match.target is not None
    assert match.golden is not None
    assert (match.target.key, match.golden.key) == ("Functional.scaled_dot_product_attention", "Functional.bmm")
    assert [c.key for c in match.before] == ["Functional.matmul", "Functional.softmax"]
    assert not [m for m in planned(target, golden) if m.how == "unmatched"]


def test_a_change_in_one_module_does_not_disturb_another() -> None:
    def model(*inner: str) -> tuple[dict[str, Any], dict[str, Any]]:
        calls = [*inner, "linear"]
        names = numbered(*calls)
        parents = dict.fromkeys(names[:-1], "Module.a.Block.forward.0")
        parents[names[-1]] = "Module.b.Block.forward.0"
        order = [*names[:-1], "Module.a.Block.forward.0", names[-1], "Module.b.Block.forward.0"]
        return {n: record(i) for i, n in enumerate(order)}, {n: parents.get(n) for n in order}

    pairs = matched(planned(model("linear", "relu"), model("linear", "linear", "linear", "relu")))
    assert ("Functional.linear.1.forward", "Functional.linear.3.forward") in pairs


def test_recomputed_forwards_do_not_take_the_place_of_the_real_ones() -> None:
    golden = run("Functional.relu.0.forward", "Functional.relu.0.backward")
    data, construct = run("Functional.relu.0.forward", "Functional.relu.1.forward", "Functional.relu.1.backward")
    data["Functional.relu.1.forward"]["is_recompute"] = True
    pairs = matched(planned((data, construct), golden))
    assert ("Functional.relu.0.forward", "Functional.relu.0.forward") in pairs
    assert ("Functional.relu.1.backward", "Functional.relu.0.backward") in pairs
    assert ("Functional.relu.1.forward", None) in pairs


def test_a_backward_follows_its_forward() -> None:
    golden = run(*numbered("mul", "mul"), "Functional.mul.1.backward", "Functional.mul.0.backward")
    data = {
        "Functional.mul.0.forward": golden[0]["Functional.mul.1.forward"],
        "Functional.mul.0.backward": record(9.0),
    }
    pairs = matched(planned((data, {}), golden))
    assert ("Functional.mul.0.forward", "Functional.mul.1.forward") in pairs
    assert ("Functional.mul.0.backward", "Functional.mul.1.backward") in pairs


def test_exact_takes_equal_names_only() -> None:
    pairs = matched(planned(run(*numbered("relu", "gelu")), run(*numbered("relu", "silu")), "exact"))
    assert pairs.count(("Functional.relu.0.forward", "Functional.relu.0.forward")) == 1
    assert ("Functional.gelu.0.forward", None) in pairs
    assert (None, "Functional.silu.0.forward") in pairs


def test_fuzzy_ignores_the_call_number() -> None:
    target = run("Functional.relu.5.forward", "Functional.gelu.2.forward")
    golden = run("Functional.relu.0.forward", "Functional.gelu.0.forward")
    matches = planned(target, golden, "fuzzy")
    assert all(m.how == "fuzzy" for m in matches)
    assert len(matches) == 2


def test_mindspore_aligns_with_pytorch_without_a_mapping() -> None:
    parents = {"MintFunctional.linear.0.forward": "Cell.fc.Dense.forward.0"}
    target = run("MintFunctional.linear.0.forward", "Cell.fc.Dense.forward.0", "Mint.add.0.forward", parents=parents)
    parents = {"Functional.linear.0.forward": "Module.fc.Linear.forward.0"}
    golden = run(
        "Functional.linear.0.forward", "Module.fc.Linear.forward.0", "Tensor.__add__.0.forward", parents=parents
    )
    matches = planned(target, golden, translation=Translation(across=True))
    assert matched(matches) == list(zip(target[0], golden[0]))


def test_an_api_mapping_is_obeyed() -> None:
    mapping = Translation(apis={"Mint.thing": ApiRule("Torch.other", {"input.0": "input.1"}, {})})
    matches = planned(run("Mint.thing.0.forward"), run("Torch.other.0.forward"), translation=mapping)
    assert matched(matches) == [("Mint.thing.0.forward", "Torch.other.0.forward")]


def test_a_cell_mapping_and_a_layer_mapping_rename_modules() -> None:
    cells = Translation(cells={"fc2.Dense": "head.Linear"})
    pairs = matched(planned(run("Cell.fc2.Dense.forward.0"), run("Module.head.Linear.forward.0"), translation=cells))
    assert pairs == [("Cell.fc2.Dense.forward.0", "Module.head.Linear.forward.0")]
    layers = Translation(layers={"TopLayer": {"network": "module"}, "Block": {"dense": "fc"}})
    pairs = matched(
        planned(run("Cell.network.dense.D.forward.0"), run("Module.module.fc.L.forward.0"), translation=layers)
    )
    assert pairs == [("Cell.network.dense.D.forward.0", "Module.module.fc.L.forward.0")]


@given(st.lists(st.sampled_from("abcd"), max_size=40), st.lists(st.sampled_from("abcd"), max_size=40))
def test_common_order_is_increasing_and_equal(left: list[str], right: list[str]) -> None:
    pairs = common_order(left, right)
    assert all(left[i] == right[j] for i, j in pairs)
    assert all(a < c and b < d for (a, b), (c, d) in zip(pairs, pairs[1:]))


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=200), st.data())
@settings(max_examples=50)
def test_removing_calls_leaves_all_others_matched(tokens: list[str], data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.integers(0, len(tokens) - 1), max_size=3))
    rest = [token for i, token in enumerate(tokens) if i not in gone]
    pairs = common_order(rest, tokens)
    assert len(pairs) >= len(rest) - 2 * len(gone)


@given(
    st.lists(st.sampled_from(["relu", "linear", "mul"]), max_size=30),
    st.lists(st.sampled_from(["relu", "linear", "mul"]), max_size=30),
)
@settings(max_examples=50)
def test_every_call_of_both_runs_is_in_the_plan_once(left: list[str], right: list[str]) -> None:
    target, golden = calls_of(*run(*numbered(*left))), calls_of(*run(*numbered(*right)))
    found = []
    for match in plan(target, golden):
        found += [call for call in (match.target, match.golden, *match.before) if call is not None]
    assert sorted(id(call) for call in found) == sorted(id(call) for call in [*target, *golden])


def test_ten_times_the_calls_take_about_ten_times_as_long() -> None:
    def cost(size: int) -> float:
        block = ["linear", "relu", "linear", "add", "layer_norm"]
        golden = run(*numbered(*block * size))
        names = numbered(*(block * (size // 2) + ["dropout"] + block[1:] + block * (size - size // 2 - 1)))
        target = ({name: record(i / 7) for i, name in enumerate(names)}, {})
        a, b = calls_of(*target), calls_of(*golden)
        start = time.process_time()
        plan(a, b)
        return time.process_time() - start

    small = min(cost(200) for _ in range(3))
    large = min(cost(2000) for _ in range(2))
    assert large < 25 * small
