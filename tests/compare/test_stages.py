"""The stages of a comparison on hand-made records: measuring, judging, explaining, following, blaming."""

from __future__ import annotations

import math
from typing import Any, Optional

import ml_dtypes
import pytest
from written import call, scalar, tensor

from msprobe.compare.align.plan import plan
from msprobe.compare.align.translate import Translation
from msprobe.compare.calls import calls_of
from msprobe.compare.excuses import excuse
from msprobe.compare.judge.verdicts import Judge
from msprobe.compare.measure import distance
from msprobe.compare.measure.broadcast import of_broadcast
from msprobe.compare.measure.rows import from_records
from msprobe.compare.origin.find import suspect
from msprobe.compare.origin.trace import follow
from msprobe.compare.origin.training import training_differences
from msprobe.compare.pairing import Pairing
from msprobe.compare.phases import Phase, phases_of
from msprobe.compare.reasons import Kind
from msprobe.compare.rows import Group

Records = dict[str, Any]


def measured(target: Records, golden: Records, construct: Optional[dict[str, str]] = None) -> list[Group]:
    parents = dict(construct or {})
    pairing = Pairing(Translation())
    groups = [(m, pairing.rows(m)) for m in plan(calls_of(target, parents), calls_of(golden, parents))]
    for _, rows in groups:
        for row in rows:
            row.measurement = from_records(row)
    return groups


def judged(target: Records, golden: Records, construct: Optional[dict[str, str]] = None) -> list[Group]:
    groups = measured(target, golden, construct)
    Judge().judge_step(groups)
    return groups


def one(target: dict[str, Any], golden: dict[str, Any]) -> Any:
    """The row of an output, after the same input."""
    name = "Functional.relu.0.forward"
    (found,) = judged({name: call(tensor(1.0), output=target)}, {name: call(tensor(1.0), output=golden)})
    return found[1][-1]


def backward(*inputs: Any, output: Any) -> dict[str, Any]:
    return {"input": list(inputs), "output": [output]}


@pytest.mark.parametrize("factor", [1.05, 1.75, 3.0])
@pytest.mark.parametrize("dtype", ["torch.bfloat16", "torch.float8_e4m3fn", "torch.float8_e5m2", "torch.float16"])
def test_a_verdict_does_not_depend_on_which_side_is_golden(dtype: str, factor: float) -> None:
    small, large = tensor(1.0, dtype=dtype), tensor(factor, dtype=dtype)
    verdicts = {one(small, large).verdict, one(large, small).verdict}
    assert len(verdicts) == 1
    if factor > 1.5 or dtype in ("torch.bfloat16", "torch.float16"):
        assert verdicts <= {"warning", "error"}


FLOATS = {
    **dict.fromkeys(("float64", "double", "complex128"), "float64"),
    **dict.fromkeys(("float32", "float", "complex64", "fp32"), "float32"),
    **dict.fromkeys(("float16", "half", "complex32", "fp16"), "float16"),
    **dict.fromkeys(("bfloat16", "bf16"), "bfloat16"),
    **dict.fromkeys(("float8_e4m3fn", "Float8E4M3FN"), "float8_e4m3fn"),
    **dict.fromkeys(("float8_e5m2", "Float8E5M2"), "float8_e5m2"),
    **{name: name for name in ("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")},
    "float4_e2m1fn_x2": "float4_e2m1fn",
}


@pytest.mark.parametrize("name", FLOATS)
def test_the_spacing_of_every_float_is_that_of_numpy_or_ml_dtypes(name: str) -> None:
    assert distance.epsilon({"dtype": name}) == float(ml_dtypes.finfo(FLOATS[name]).eps)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "complex32",
                                   "float16", "bfloat16"])  # fmt: skip
def test_half_a_spacing_is_rounding_and_several_are_a_difference(dtype: str) -> None:
    spacing = float(ml_dtypes.finfo(FLOATS[dtype]).eps)
    for factor, expected in ((0.5, {"pass"}), (2.0, {"warning", "error"}), (16.0, {"error"})):
        low, high = (tensor(value, dtype=f"torch.{dtype}") for value in (1.0, 1.0 + factor * spacing))
        assert {one(low, high).verdict, one(high, low).verdict} <= expected


def test_a_dtype_of_mindspore_is_that_of_torch() -> None:
    low, same = tensor(1.06, dtype="Float8E4M3FN"), tensor(1.0, dtype="torch.float8_e4m3fn")
    assert one(low, same).verdict == "pass"


def test_five_percent_in_bf16_is_seen_under_noise() -> None:
    def run(noise: float, fault: float) -> Records:
        low = {"shape": [64, 128], "dtype": "torch.bfloat16"}
        return {
            "Functional.linear.0.forward": call(tensor(1.0, **low), output=tensor(1.0 + noise, **low)),
            "Functional.gelu.0.forward": call(tensor(1.0 + noise, **low), output=tensor(1.0 + noise + fault, **low)),
        }

    clean, faulty = judged(run(4e-3, 0.0), run(0.0, 0.0)), judged(run(4e-3, 0.05), run(0.0, 0.0))
    assert {row.verdict for _, rows in clean for row in rows} == {"pass"}
    assert [row.verdict for row in faulty[1][1]][-1] in ("warning", "error")


def test_integers_beyond_two_to_the_53_are_compared_exactly() -> None:
    big = 2**60
    left = tensor(1.0, dtype="torch.int64", shape=[2], Max=big + 1, Min=0, Mean=float(big), Norm=float(big))
    assert one(left, {**left, "Max": big}).verdict == "error"


@pytest.mark.parametrize("dtype", ["torch.int64", "torch.bool"])
def test_other_bytes_of_integers_are_a_difference(dtype: str) -> None:
    values = {"dtype": dtype, "Max": 3, "Min": 0, "Mean": 1.5, "Norm": 3.0}
    assert one(tensor(1.0, **values, md5="a"), tensor(1.0, **values, md5="b")).verdict == "error"


def test_other_bytes_beside_an_infinity_are_a_difference() -> None:
    masked = {"Min": -math.inf, "Mean": -math.inf, "Norm": math.inf}
    assert one(tensor(1.0, **masked, md5="a"), tensor(1.0, **masked, md5="b")).verdict == "error"


def test_an_infinity_on_both_sides_hides_the_rest() -> None:
    row = one(*[tensor(1.0, Max=math.inf, Min=1.0, Mean=math.inf, Norm=math.inf, shape=[3])] * 2)
    assert (row.verdict, row.why.kind) == ("not_compared", Kind.HIDDEN)


def test_a_broadcast_input_is_compared_as_what_it_stands_for() -> None:
    small = tensor(1.0, shape=[1, 16])
    large = {**small, "shape": [8, 16], "Norm": small["Norm"] * math.sqrt(8)}
    found = of_broadcast(large, small)
    assert found is not None
    assert found.distance == 0.0
    other = of_broadcast({**large, "Max": 4.0}, small)
    assert other is not None
    assert other.distance is not None
    assert other.distance > 0.1
    assert of_broadcast(tensor(1.0, shape=[3, 16]), tensor(1.0, shape=[2, 16])) is None


def test_a_damaged_item_costs_its_own_row_only() -> None:
    name = "Functional.relu.0.forward"
    good, bad = tensor(1.0), {**tensor(1.0), "shape": ["x", -3], "Max": 10**400}
    groups = judged({name: call(good, bad, output=good)}, {name: call(good, {**bad, "Max": 1}, output=good)})
    assert [row.verdict for row in groups[0][1]].count("pass") == 2


@pytest.mark.parametrize("key", ["Max", "Min", "Mean", "Norm"])
@pytest.mark.parametrize("value", ["x", [], {}, 10**400], ids=["text", "list", "dict", "huge"])
def test_a_statistic_that_is_no_number_is_not_compared(key: str, value: Any) -> None:
    good, bad = tensor(1.0), {**tensor(1.0), key: value}
    for row in (one(bad, good), one(good, bad)):
        assert (row.verdict, row.why.kind) == ("not_compared", Kind.UNREADABLE)
    without = {name: part for name, part in good.items() if name != key}
    assert one(without, good).verdict == "pass"


def test_an_item_that_no_stage_can_read_is_not_compared() -> None:
    row = one({**tensor(1.0), "places": [1]}, {**tensor(1.0), "places": [2]})
    assert (row.verdict, row.why.kind) == ("not_compared", Kind.UNREADABLE)


def test_the_target_of_a_copy_is_no_input() -> None:
    name = "Tensor.copy_.0.forward"
    runs = [{name: call(tensor(value), tensor(1.0), output=tensor(1.0))} for value in (5.0, 9.0)]
    (found,) = judged(*runs)
    assert found[1][0].why.kind is Kind.DESTINATION
    marked = [{"Torch.foo.0.forward": call({**tensor(v), "destination": True}, output=tensor(1.0))} for v in (5.0, 9.0)]
    assert judged(*marked)[0][1][0].why.kind is Kind.DESTINATION


def test_calls_after_the_last_backward_are_a_phase_of_their_own() -> None:
    records = {
        "Functional.relu.0.forward": call(tensor(1.0), output=tensor(1.0)),
        "Functional.relu.0.backward": backward(tensor(1.0), output=tensor(1.0)),
        "Tensor.sqrt.0.forward": call(tensor(1.0), output=tensor(1.0)),
        "Module.l.Linear.parameters_grad": {"weight": [tensor(1.0)]},
    }
    groups = measured(records, records)
    assert phases_of(groups) == [Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD, Phase.AFTER]


def test_a_wrong_backward_is_blamed_before_the_optimizer() -> None:
    def run(fault: float) -> Records:
        return {
            "Functional.relu.0.forward": call(tensor(1.0), output=tensor(1.0)),
            "Functional.relu.0.backward": backward(tensor(1.0), output=tensor(1.0 + fault)),
            "Tensor.sqrt.0.forward": call(tensor(1.0), output=tensor(1.0 + fault)),
        }

    trace = follow(judged(run(0.1), run(0.0)))
    found = suspect(trace)
    assert found is not None
    assert (found.match.call.name, found.phase) == ("Functional.relu.0.backward", Phase.BACKWARD)
    assert list(trace.roles.values()).count("introduced") == 1


def test_operands_that_changed_places_are_said_to_be_swapped() -> None:
    a, b = tensor(1.0), tensor(2.0, Mean=0.7)
    runs = [
        {"Tensor.__sub__.0.forward": call(*pair, output=tensor(value))}
        for pair, value in (((b, a), 1.0), ((a, b), 3.0))
    ]
    found = suspect(follow(judged(*runs)))
    assert found is not None
    assert found.kind == "swapped"
    plus = [{"Tensor.__add__.0.forward": call(*pair, output=tensor(3.0))} for pair in ((b, a), (a, b))]
    assert {row.verdict for _, rows in judged(*plus) for row in rows} == {"pass"}


def test_inputs_are_the_same_only_when_all_were_compared() -> None:
    unread = {key: value for key, value in tensor(1.0).items() if key in ("type", "dtype", "shape")}
    runs = [{"Torch.foo.0.forward": call(tensor(1.0), unread, output=tensor(value))} for value in (1.0, 2.0)]
    found = suspect(follow(judged(*runs)))
    assert found is not None
    assert "could not be compared" in found.inputs


def test_an_input_of_another_shape_is_another_input() -> None:
    runs = [
        {"Torch.foo.0.forward": call(tensor(1.0), tensor(1.0, shape=shape), output=tensor(value))}
        for shape, value in (([3, 5], 1.0), ([2, 7], 2.0))
    ]
    found = suspect(follow(judged(*runs)))
    assert found is not None
    assert found.row is not None
    assert (found.kind, found.row.slot) == ("input", "input.1")


def test_another_dtype_of_one_call_is_named() -> None:
    names = [f"Functional.linear.{i}.forward" for i in range(4)]
    golden = {name: call(tensor(1.0), output=tensor(1.0)) for name in names}
    target = {**golden, names[2]: call(tensor(1.0), output=tensor(1.0, dtype="torch.bfloat16"))}
    found = suspect(follow(judged(target, golden)))
    assert found is not None
    assert (found.kind, found.match.call.name) == ("dtype", names[2])
    low = {name: call(tensor(1.0), output=tensor(1.0, dtype="torch.bfloat16")) for name in names}
    assert suspect(follow(judged(low, golden))) is None


def test_a_missing_call_is_explained_where_its_module_agrees() -> None:
    module = "Module.a.Block.forward.0"
    golden = {
        "Functional.relu.0.forward": call(tensor(1.0), output=tensor(3.0)),
        "Torch.abs.0.forward": call(tensor(3.0), output=tensor(1.5)),
        module: {**call(tensor(1.0), output=tensor(1.0)), "parameters": {}},
    }
    target = {name: record for name, record in golden.items() if not name.startswith("Torch")}
    construct = {name: module for name in golden if name != module}
    groups = judged(target, golden, construct)
    excuse(groups)
    excused = [row for match, rows in groups if match.how == "unmatched" for row in rows]
    assert {row.why.kind for row in excused} == {Kind.COVERED}
    assert all("agree" in row.why.detail for row in excused)


def test_a_flag_that_changes_nothing_is_excused_and_a_momentum_is_not() -> None:
    def run(flag: Any, name: str) -> Records:
        return {name: call(tensor(1.0), output=tensor(1.0), option=scalar(flag))}

    statistics = {"Functional.batch_norm.0.forward": call(tensor(1.0), tensor(2.0), output=tensor(1.5))}
    for name, values, excused in (("relu", (True, False), True), ("batch_norm", (0.1, 0.2), False)):
        records = [run(value, f"Functional.{name}.0.forward") for value in values]
        for record in records:
            for one in record.values():
                one["input_args"] = next(iter(statistics.values()))["input_args"]
        groups = judged(*records)
        excuse(groups)
        assert [row.excuse is not None for _, rows in groups for row in rows if row.slot == "input.option"] == [excused]


def test_settings_of_optimizers_are_said_as_such() -> None:
    def events(**settings: Any) -> list[dict[str, Any]]:
        group = {"lr": 1e-3, "weight_decay": 0.01, "foreach": None, "parameters": 4, **settings}
        return [{"event": "optimizer_step", "after": None, "type": "torch.optim.adamw.AdamW", "groups": [group]}]

    assert training_differences(events(), events()) == []
    (found,) = training_differences(events(lr=1.1e-3), events())
    assert found.sentence == "AdamW: lr is 0.0011, not 0.001"
    (found,) = training_differences(events(foreach=True), events())
    assert found.note_only
