"""Verdicts: what is a difference, what is rounding, what was not compared; noise, presets and discrete choices."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest
from written import call, scalar, tensor, write_dump

from msprobe.compare import Comparison, Row, compare

RELU = "Functional.relu.0.forward"
NAN = float("nan")


def judged(tmp_path: Path, target: Any, golden: Any, before: Optional[dict[str, Any]] = None, **options: Any) -> Row:
    """The verdict on one output, after the same input on both sides."""
    write_dump(tmp_path / "t", {**(before or {}), RELU: call(tensor(1.0), output=target)})
    write_dump(tmp_path / "g", {**(before or {}), RELU: call(tensor(1.0), output=golden)})
    result = compare(tmp_path / "t", tmp_path / "g", **options)
    (row,) = [row for _, row in result.rows() if row.name == f"{RELU}.output.0"]
    return row


@pytest.mark.parametrize(
    ("dtype", "off", "verdict"),
    [
        ("torch.float32", 1e-7, "pass"),
        ("torch.float32", 1e-4, "error"),
        ("torch.float64", 1e-7, "error"),
        ("torch.float16", 1e-4, "pass"),
        ("torch.bfloat16", 4e-3, "pass"),
        ("torch.bfloat16", 0.2, "error"),
        ("torch.int64", 1e-7, "error"),
    ],
)
def test_tolerance_follows_the_dtype(tmp_path: Path, dtype: str, off: float, verdict: str) -> None:
    assert judged(tmp_path, tensor(1.0 + off, dtype=dtype), tensor(1.0, dtype=dtype)).verdict == verdict


def test_bf16_against_fp32_is_judged_by_the_coarser_type(tmp_path: Path) -> None:
    row = judged(tmp_path, tensor(1.003, dtype="BFloat16"), tensor(1.0, dtype="torch.float32"))
    assert row.verdict == "pass"


def test_a_mean_that_cancels_to_nothing_is_no_difference(tmp_path: Path) -> None:
    row = judged(tmp_path, tensor(1.0, Mean=3e-9), tensor(1.0, Mean=-2e-9))
    assert row.verdict == "pass"


def test_a_mask_does_not_hide_a_changed_maximum(tmp_path: Path) -> None:
    masked = {"Min": -1e9, "Mean": -5e8, "Norm": 8e9}
    assert judged(tmp_path, tensor(1.0, **masked), tensor(2.0, **masked)).verdict == "error"


@pytest.mark.parametrize("key", ["Max", "Mean", "Norm"])
def test_nan_and_infinity_on_one_side_are_errors(tmp_path: Path, key: str) -> None:
    assert judged(tmp_path, tensor(1.0, **{key: NAN}), tensor(1.0)).reason == "NaN in the target only"
    assert judged(tmp_path, tensor(1.0), tensor(1.0, **{key: NAN})).verdict == "error"
    assert judged(tmp_path, tensor(1.0, **{key: float("inf")}), tensor(1.0)).verdict == "error"


def test_what_cannot_be_known_is_not_compared_and_says_why(tmp_path: Path) -> None:
    unknown = dict.fromkeys(("Max", "Min", "Mean", "Norm"))
    nan = dict.fromkeys(("Max", "Min", "Mean", "Norm"), NAN)
    cases: list[tuple[Any, Any, str]] = [
        (tensor(1.0, **unknown), tensor(1.0), "kind"),
        (tensor(1.0, **nan), tensor(1.0, **nan), "NaN on both sides"),
        (tensor(1.0, [3, 2]), tensor(1.0, [2, 3]), "shape"),
        (scalar(1), tensor(1.0), "kind"),
    ]
    for target, golden, reason in cases:
        row = judged(tmp_path, target, golden)
        assert row.verdict == "not_compared"
        assert reason in row.reason


def test_a_value_against_null_is_an_error(tmp_path: Path) -> None:
    assert judged(tmp_path, None, tensor(1.0)).reason == "null in the target, a value in the golden run"


def test_checksums_decide_where_there_is_nothing_else(tmp_path: Path) -> None:
    unknown = dict.fromkeys(("Max", "Min", "Mean", "Norm"))
    assert judged(tmp_path, tensor(1.0, **unknown, md5="aa"), tensor(1.0, **unknown, md5="aa")).verdict == "pass"
    assert judged(tmp_path, tensor(1.0, **unknown, md5="aa"), tensor(1.0, **unknown, md5="ab")).verdict == "error"


def test_the_same_statistics_with_other_bytes_are_a_warning(tmp_path: Path) -> None:
    row = judged(tmp_path, tensor(1.1, md5="aa"), tensor(1.1, md5="bb"))
    assert row.verdict == "warning"
    assert "a different order" in row.reason


@pytest.mark.parametrize("noise", [0.0, 1e-7])
def test_other_bytes_after_rounding_pass_and_the_answer_mentions_them(tmp_path: Path, noise: float) -> None:
    def run(away: float, digest: str) -> dict[str, Any]:
        middle = tensor(1.1 + away, md5="cc" if not away else "cd")
        return {
            "Functional.linear.0.forward": call(tensor(1.1, md5="ee"), output=middle),
            "Functional.max_pool2d.0.forward": call(middle, output=tensor(1.3, md5=digest)),
        }

    found = pair(tmp_path, run(noise, "aa"), run(0.0, "bb"))
    *_, last = [row for _, row in found.rows()]
    assert "the checksums differ and the statistics agree" in last.reason
    assert (last.verdict, found.verdict) == (("pass", "same") if noise else ("warning", "differs"))
    mentioned = [note for note in found.notes if note.startswith("in 1 row that passes the checksums differ")]
    assert len(mentioned) == (1 if noise else 0)
    equal = pair(tmp_path / "equal", run(noise, "aa"), run(0.0, "aa"))
    assert not any("checksums" in note for note in equal.notes)


def test_a_mask_that_moved_is_found_by_its_checksum_however_round_its_statistics_are(tmp_path: Path) -> None:
    ours = {"msprobe": "0.1.0", "settings": {"precision": "high"}}
    mask: dict[str, Any] = {"shape": [4], "Max": 0.0, "Min": -1e9, "Mean": -2.5e8, "Norm": 1e9}
    for side, digest in (("target", "aa"), ("golden", "bb")):
        write_dump(tmp_path / side, {RELU: call(output=tensor(1.0, **mask, md5=digest))}, run=ours)
    found = compare(tmp_path / "target", tmp_path / "golden")
    assert [row.verdict for _, row in found.rows()] == ["warning"]
    assert found.exit_code == 1


def test_statistics_that_another_tool_rounded_may_hide_the_last_bit(tmp_path: Path) -> None:
    rounded = {"Mean": 0.25, "Norm": 3.5}
    target, golden = (
        {RELU: call(tensor(1.0, **rounded, md5="cc"), output=tensor(1.0, **rounded, md5=md5))} for md5 in ("aa", "bb")
    )
    assert pair(tmp_path, target, golden).verdict == "same"


def test_requires_grad_that_differs_is_a_warning(tmp_path: Path) -> None:
    row = judged(tmp_path, tensor(1.0, requires_grad=False), tensor(1.0))
    assert (row.verdict, row.reason) == ("warning", "requires_grad is False, not True")


def _chain(noise: float, fault_at: Optional[int] = None) -> dict[str, Any]:
    data: dict[str, Any] = {}
    value = 1.0
    for index in range(8):
        output = 1.0 + noise * (index + 1) + (1e-2 if fault_at is not None and index >= fault_at else 0)
        data[f"Functional.tanh.{index}.forward"] = call(tensor(value), output=tensor(output))
        value = output
    return data


def pair(tmp_path: Path, target: dict[str, Any], golden: dict[str, Any], **options: Any) -> Comparison:
    write_dump(tmp_path / "target", target)
    write_dump(tmp_path / "golden", golden)
    return compare(tmp_path / "target", tmp_path / "golden", **options)


def test_noise_that_grows_slowly_is_noise_and_a_jump_is_not(tmp_path: Path) -> None:
    assert pair(tmp_path / "a", _chain(3e-7), _chain(0)).verdict == "same"
    result = pair(tmp_path / "b", _chain(3e-7, fault_at=5), _chain(0))
    assert result.origin is not None
    assert result.origin.name == "Functional.tanh.5.forward"


def test_a_second_golden_run_calibrates_the_tolerance(tmp_path: Path) -> None:
    target, golden = _chain(2e-5), _chain(0)
    assert pair(tmp_path, target, golden).verdict == "differs"
    write_dump(tmp_path / "again", _chain(1e-5))
    assert compare(tmp_path / "target", tmp_path / "golden", noise=tmp_path / "again").verdict == "same"
    write_dump(tmp_path / "faulty", _chain(2e-5, fault_at=3))
    result = compare(tmp_path / "faulty", tmp_path / "golden", noise=tmp_path / "again")
    assert result.origin is not None
    assert result.origin.name == "Functional.tanh.3.forward"


def test_the_presets_judge_by_the_constants_of_the_field(tmp_path: Path) -> None:
    assert judged(tmp_path / "a", tensor(1.3), tensor(1.0), tolerance="8.3").verdict == "pass"
    assert judged(tmp_path / "b", tensor(1.6), tensor(1.0), tolerance="8.3").verdict == "warning"
    assert judged(tmp_path / "c", tensor(1.3), tensor(1.0), tolerance="26").verdict == "warning"
    assert judged(tmp_path / "d", tensor(1.6), tensor(1.0), tolerance="26").verdict == "error"


def test_uninitialised_memory_is_never_judged(tmp_path: Path) -> None:
    data = [
        {"Torch.empty.0.forward": call(scalar(3), output=tensor(value)), RELU: call(tensor(1.0), output=tensor(1.0))}
        for value in (1.0, 9.0)
    ]
    result = pair(tmp_path, data[0], data[1])
    assert result.verdict == "same"
    assert result.reasons == {"uninitialised memory": 1}


def test_an_argument_that_no_result_shows_is_a_note(tmp_path: Path) -> None:
    def data(eps: float) -> dict[str, Any]:
        return {"Functional.layer_norm.0.forward": call(tensor(1.0), eps=scalar(eps), output=tensor(1.0))}

    result = pair(tmp_path, data(1e-6), data(1e-5))
    assert result.origin is None
    assert "Functional.layer_norm: eps is 1e-06, not 1e-05; this changes no result" in result.notes


def test_a_discrete_choice_is_named_and_what_follows_is_put_under_it(tmp_path: Path) -> None:
    def data(noise: float, index: float) -> dict[str, Any]:
        indices = {**tensor(index, dtype="torch.int64"), "requires_grad": False}
        topk = {"input_args": [tensor(1.0 + noise)], "input_kwargs": {}, "output": [tensor(2.0 + noise), indices]}
        return {
            "Functional.softmax.0.forward": call(tensor(1.0), output=tensor(1.0 + noise)),
            "Torch.topk.0.forward": topk,
            "Functional.linear.0.forward": call(tensor(index), output=tensor(index * 2)),
        }

    result = pair(tmp_path, data(2e-7, 3.0), data(0.0, 2.0))
    assert result.origin is not None
    assert (result.origin.kind, result.origin.name) == ("choice", "Torch.topk.0.forward")
    assert "selected different elements" in result.origin.sentence
    after = [row for _, row in result.rows() if row.match.call.key == "Functional.linear"]
    assert {row.cause for row in after} == {"Torch.topk.0.forward"}


def test_other_random_numbers_are_named_as_such(tmp_path: Path) -> None:
    result = pair(
        tmp_path,
        {"Functional.dropout.0.forward": call(tensor(1.0), output=tensor(1.2))},
        {"Functional.dropout.0.forward": call(tensor(1.0), output=tensor(1.1))},
    )
    assert result.origin is not None
    assert result.origin.kind == "random"


def test_a_call_that_raised_in_one_run_is_an_error(tmp_path: Path) -> None:
    golden = {RELU: call(tensor(1.0), output=tensor(1.0))}
    target = {RELU: {"input_args": [tensor(1.0)], "input_kwargs": {}, "raised": "RuntimeError"}}
    result = pair(tmp_path, target, golden)
    assert result.verdict == "differs"
    assert result.origin is not None
    assert result.origin.slot == "raised"


def test_the_first_step_that_differs_is_blamed(tmp_path: Path) -> None:
    for step, value in ((0, 1.0), (1, 1.1), (2, 1.3)):
        write_dump(tmp_path / "target", {RELU: call(tensor(1.0), output=tensor(value))}, step=step)
        write_dump(tmp_path / "golden", {RELU: call(tensor(1.0), output=tensor(1.0))}, step=step)
    result = compare(tmp_path / "target", tmp_path / "golden")
    assert result.origin is not None
    assert result.origin.step == 1
    assert compare(tmp_path / "target", tmp_path / "golden", steps=[0]).verdict == "same"


def test_what_makes_runs_incomparable_is_said_first(tmp_path: Path) -> None:
    data = {RELU: call(tensor(1.0), output=tensor(1.0))}
    batch = [{"type": "torch.Tensor", "md5": "1"}]
    write_dump(tmp_path / "a", data, run={"torch": "2.13.0", "torch_seed": 1, "first_batch": batch})
    write_dump(tmp_path / "b", data, run={"torch": "2.12.0", "torch_seed": 2, "first_batch": [{"md5": "2"}]})
    notes = compare(tmp_path / "a", tmp_path / "b").notes
    assert notes[0].startswith("the first batches differ")
    assert "the seeds differ: 1 and 2" in notes
    assert "the PyTorch versions differ: 2.13.0 and 2.12.0" in notes


def test_a_batch_with_more_tensors_is_another_batch(tmp_path: Path) -> None:
    data = {RELU: call(tensor(1.0), output=tensor(1.0))}
    batch = [{"md5": "1", "dtype": "torch.float32"}, {"md5": "2", "dtype": "torch.float32"}]
    write_dump(tmp_path / "a", data, run={"first_batch": batch})
    write_dump(tmp_path / "b", data, run={"first_batch": batch[:1]})
    assert compare(tmp_path / "a", tmp_path / "b").notes[0].startswith("the first batches differ")


@pytest.mark.parametrize(("name", "ours", "theirs"), [("p", 0.1, 0.9), ("mode", "mean", "sum"), ("dim", 0, 1)])
def test_a_plain_result_that_passes_excuses_no_other_argument(
    tmp_path: Path, name: str, ours: Any, theirs: Any
) -> None:
    def run(off: float, argument: Any) -> dict[str, Any]:
        return {
            RELU: call(tensor(1.0), output=tensor(1.0 + off)),
            "Tensor.item.0.forward": call(tensor(1.0 + off), output=scalar(0.5 * (1.0 + off))),
            "Functional.dropout.0.forward": call(
                tensor(1.0 + off), output=tensor(1.0 + off), **{name: scalar(argument)}
            ),
        }

    write_dump(tmp_path / "t", run(1e-7, ours))
    write_dump(tmp_path / "g", run(0.0, theirs))
    result = compare(tmp_path / "t", tmp_path / "g")
    found = {row.name: row.verdict for _, row in result.rows()}
    assert found["Tensor.item.0.forward.output.0"] == "pass"
    assert any(f"{name} is {ours!r}, not {theirs!r}" in text for text in (*result.notes, str(result.origin)))


def test_several_processes_give_the_same_result(tmp_path: Path) -> None:
    for rank in range(3):
        write_dump(tmp_path / "target", _chain(1e-7, fault_at=4 if rank == 1 else None), rank=rank)
        write_dump(tmp_path / "golden", _chain(0), rank=rank)
    alone = compare(tmp_path / "target", tmp_path / "golden")
    several = compare(tmp_path / "target", tmp_path / "golden", jobs=2)
    assert alone.summary() == several.summary()
    assert alone.origin is not None
    assert alone.origin.rank == 1


@pytest.mark.parametrize(("off", "verdict"), [(8e-7, "pass"), (1e-4, "error")])
def test_a_gradient_of_a_parameter_rounds_by_the_rows_that_it_sums(tmp_path: Path, off: float, verdict: str) -> None:
    came = tensor(1.0, [4096, 16])
    backward = {"Module.fc.Linear.backward.0": {"input": [came], "output": [tensor(1.0, [4096, 8])]}}
    for side, value in (("t", 1.0 + off), ("g", 1.0)):
        gradient = {"weight": [tensor(value, [16, 8], Max=3.0)]}
        write_dump(tmp_path / side, {**backward, "Module.fc.Linear.parameters_grad": gradient})
    result = compare(tmp_path / "t", tmp_path / "g")
    (row,) = [row for _, row in result.rows() if "parameters_grad" in row.name]
    assert row.verdict == verdict
