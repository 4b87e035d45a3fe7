"""The second stage holds every API to its own standard."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from msprobe.check.core.judge import Verdict, judge_dropout, judge_floats
from msprobe.check.core.measure import BLOCK, FORMATS, Metrics, measure_floats
from msprobe.check.core.results import DETAIL_COLUMNS, write_table
from msprobe.check.core.second_stage import api_of, compare
from msprobe.check.core.standards import ABSOLUTE, BENCHMARK, BINARY, THOUSANDTH, ULP, standard_of
from msprobe.cli import main

np = pytest.importorskip("numpy")
GOOD = dict.fromkeys(DETAIL_COLUMNS[4:21], "0") | {"Cosine": "1", "Rel Error < 1/1000": "1", "ULP Share": "0"}


def row(name: str, dtype: str = "torch.float32", **changed: str) -> dict[str, str]:
    head = {"API Name": name, "Bench Dtype": "torch.float64", "DEVICE Dtype": dtype, "Shape": "[4]"}
    return {**head, **GOOD, "Status": "pass", "Message": "", **{k.replace("_", " "): v for k, v in changed.items()}}


@pytest.mark.parametrize(
    ("name", "dtype", "changed", "other", "status"),
    [
        ("Torch.cat.0.forward.output.0", "torch.float32", {"Binary Error Rate": "0.25"}, {}, "error"),
        ("Torch.add.0.forward.output.0", "torch.int64", {"Binary Error Rate": "0.25"}, {}, "error"),
        ("Torch.add.0.forward.output.0", "torch.float32", {"Binary Error Rate": "0.25"}, {}, "pass"),
        ("Torch.add.0.forward.output.0", "torch.float32", {"Rel Error Rate": "0.01"}, {}, "error"),
        ("Functional.conv2d.0.backward.output.0", "torch.float32", {"Rel Error < 1/1000": "0.9989"}, {}, "error"),
        ("Functional.conv2d.0.forward.output.0", "torch.float32", {"Rel Error < 1/1000": "0.999"}, {}, "pass"),
        ("Torch.mm.0.forward.output.0", "torch.float32", {"ULP Mean": "65", "ULP Share": "0.06"}, {}, "error"),
        ("Torch.mm.0.forward.output.0", "torch.float32", {"ULP Mean": "65", "ULP Share": "0.04"}, {}, "pass"),
        ("Torch.mm.0.forward.output.0", "torch.bfloat16", {"ULP Share": "0.002"}, {}, "error"),
        ("Functional.layer_norm.0.forward.output.0", "torch.float32", {"RMSE": "3e-6"}, {"RMSE": "1e-6"}, "warning"),
        ("Functional.layer_norm.0.forward.output.0", "torch.float32", {"RMSE": "5e-6"}, {"RMSE": "1e-6"}, "error"),
        ("Functional.layer_norm.0.forward.output.0", "torch.float32", {"RMSE": "2e-6"}, {"RMSE": "1e-6"}, "pass"),
        ("Torch.mm.0.forward.output.0", "torch.float32", {"Inf/NaN Error Rate": "0.1"}, {}, "error"),
        ("Torch.mm.0.forward.output.0", "torch.float32", {"Cosine": ""}, {}, "SKIP"),
    ],
)
def test_each_standard_draws_its_line(
    name: str, dtype: str, changed: dict[str, str], other: dict[str, str], status: str
) -> None:
    device, trusted = row(name, dtype), row(name, dtype)
    device.update(changed)
    trusted.update(other)
    (judged,) = compare({name: device}, {name: trusted})
    assert judged.verdict.status == status
    assert bool(judged.verdict.reason) == (status != "pass")


def test_an_output_in_only_one_file_is_reported_and_does_not_pass() -> None:
    name = "Functional.layer_norm.0.forward.output.0"
    assert compare({name: row(name)}, {})[0].verdict.status == "SKIP"
    assert compare({}, {name: row(name)})[0].verdict.status == "SKIP"


def test_the_standard_follows_from_the_api_and_the_dtype() -> None:
    assert api_of("Torch.linalg.norm.3.forward.output.0") == "linalg.norm"
    assert standard_of("mm", "float32") == ULP
    assert standard_of("mm", "float64") == BENCHMARK
    assert standard_of("mm", "int64") == BINARY
    assert standard_of("conv2d", "float16") == THOUSANDTH
    assert standard_of("gelu", "float16") == ABSOLUTE


def test_two_details_files_make_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row("Torch.mm.0.forward.output.0"), row("Torch.cat.0.forward.output.0")]
    bad = [rows[0], {**rows[1], "Binary Error Rate": "0.5"}]
    for name, content in (("a.csv", bad), ("b.csv", rows)):
        write_table(tmp_path / name, [DETAIL_COLUMNS, *([one[c] for c in DETAIL_COLUMNS] for one in content)])
    command = ["api_precision_compare", "-npu", str(tmp_path / "a.csv"), "-gpu", str(tmp_path / "b.csv")]
    assert main([*command, "-o", str(tmp_path / "out")]) == 1
    (file,) = (tmp_path / "out").glob("api_precision_compare_result_*.csv")
    assert [one[:3] for one in csv.reader(file.open())][1:] == [
        ["Torch.mm.0", "pass", "SKIP"],
        ["Torch.cat.0", "error", "SKIP"],
    ]
    assert "50.00% of the elements differ" in capsys.readouterr().out
    assert main([*command, "-o", str(tmp_path / "again"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["outputs"], found["pass"], found["error"], found["not_judged"]) == (2, 1, 1, 0)
    (finding,) = found["findings"]
    assert (finding["output"], finding["status"]) == ("Torch.cat.0.forward.output.0", "error")
    assert "50.00% of the elements differ" in finding["reason"]
    assert finding["message"] == {"id": "second.binary", "arguments": {"share": "50.00%"}}
    (tmp_path / "b.csv").write_text("not,this\n")
    assert main([*command, "-o", str(tmp_path / "out")]) == 2


def _judged(device: Any, golden: Any, dtype: str = "float32") -> Verdict:
    return judge_floats(measure_floats(np.array(device), np.array(golden), FORMATS[dtype]), dtype)


def test_the_immediate_verdict_follows_the_published_figures() -> None:
    golden = np.linspace(1, 2, 10000)
    assert _judged(golden, golden).status == "pass"
    assert _judged(-golden, golden).status == "error"
    assert _judged(golden + 9e-4, golden).status == "pass"
    assert _judged(golden * 1.0008, golden).status == "warning"
    assert _judged(golden * 1.003, golden).status == "error"
    assert _judged(golden * 1.003, golden, "bfloat16").status == "warning"
    assert _judged(golden * 1.02, golden, "bfloat16").status == "error"
    assert _judged([1.0, np.nan], [1.0, 2.0]).status == "error"
    assert _judged([1.0, np.nan, np.inf], [1.0, np.nan, np.inf]).status == "pass"
    assert _judged([1.0, np.inf], [1.0, -np.inf]).status == "error"
    assert _judged(golden * 2e-6, golden * 1e-6).status == "error"  # a gradient twice too large
    assert _judged(np.zeros(3), np.zeros(3)).status == "pass"
    assert judge_floats(Metrics(), "float32").status == "pass"


def test_dropout_is_judged_by_its_share_of_zeros() -> None:
    assert judge_dropout(0.5, 0.49, 10000).status == "pass"
    assert judge_dropout(0.5, 0.1, 10000).status == "error"
    assert judge_dropout(0.0, 0.1, 10000).status == "error"


def test_shares_of_errors_count_the_blocks_that_are_equal_too() -> None:
    """A rate is of all elements, wherever in the tensor the wrong ones are."""
    form = FORMATS["float32"]
    golden = np.tile(np.array([form.small / 2, 1.0], np.float32), 2 * BLOCK)  # four blocks, half of each is small
    device = golden.copy()
    device[-4:] *= np.float32(1.5)
    found = measure_floats(device, golden, form)
    assert found.abs_errors == found.small_errors == 2 / (2 * BLOCK)
    assert found.rel_errors == 2 / (2 * BLOCK)
