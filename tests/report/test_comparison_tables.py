"""csv, xlsx and the terminal: the columns of each kind of dump, and names that try to be more than text."""

from __future__ import annotations

import csv
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written import call, saved, scalar, tensor, write_dump

from msprobe.compare import compare
from msprobe.report import xlsx
from msprobe.report.comparison_terminal import answer, print_comparison
from msprobe.report.csv import write_csv
from msprobe.report.jsonl import write_jsonl
from msprobe.view.export import export_comparison

RELU, GELU = "Functional.relu.0.forward", "Functional.gelu.0.forward"
VALUES = ["NPU max", "NPU min", "NPU mean", "NPU l2norm", "Bench max", "Bench min", "Bench mean", "Bench l2norm"]


def table(
    tmp_path: Path, target: dict[str, Any], golden: dict[str, Any], task: str = "statistics"
) -> list[dict[str, str]]:
    write_dump(tmp_path / "target", target, task=task)
    write_dump(tmp_path / "golden", golden, task=task)
    write_csv(compare(tmp_path / "target", tmp_path / "golden"), tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_saved_tensors_have_the_tensor_columns(tmp_path: Path) -> None:
    arrays = [np.ones((2, 2), np.float32), np.array([[1, 1], [1, 2]], np.float32)]
    items = [
        saved(tmp_path / s / "step0" / "rank", f"{RELU}.output.0", a) for s, a in zip(("target", "golden"), arrays)
    ]
    (row,) = table(tmp_path, {RELU: call(output=items[0])}, {RELU: call(output=items[1])}, "tensor")
    names = list(row)
    assert names[8:14] == [
        "Cosine", "EucDist", "MaxAbsErr", "MaxRelativeErr", "One Thousandth Err Ratio", "Five Thousandths Err Ratio",
    ]  # fmt: skip
    assert names[14:22] == VALUES
    after = ["Requires_grad Consistent", "Result", "Accuracy Reached or Not", "Err_message", "Data_name"]
    assert names[22:27] == after
    assert row["EucDist"] == row["MaxAbsErr"] == "1.0"
    assert row["MaxRelativeErr"] == "0.5"
    assert row["One Thousandth Err Ratio"] == "0.75"
    assert row["Accuracy Reached or Not"] == "No"
    assert row["Data_name"] == f"['{RELU}.output.0.npy', '{RELU}.output.0.npy']"


def test_checksums_alone_have_the_md5_columns(tmp_path: Path) -> None:
    unknown = dict.fromkeys(("Max", "Min", "Mean", "Norm"))
    items = [tensor(1.0, **unknown, md5=digest) for digest in ("aa", "bb")]
    (row,) = table(tmp_path, {RELU: call(output=items[0])}, {RELU: call(output=items[1])})
    assert list(row)[8:10] == ["NPU MD5", "BENCH MD5"]
    assert (row["NPU MD5"], row["BENCH MD5"], row["Result"]) == ("aa", "bb", "error")
    assert not set(VALUES) & set(row)


def test_equal_numbers_are_written_in_full_on_both_sides(tmp_path: Path) -> None:
    figures = {"Max": 0.1 + 0.2, "Min": -1e-300, "Mean": 1e22, "Norm": 3.0}
    zeros = {"Max": [0.0, -0.0], "Min": [0.0, 0.0], "Mean": [0.0, 0.0], "Norm": [0.0, 0.0]}
    sides = [
        {RELU: call(tensor(1.0, **figures), output=tensor(1.0, **{key: pair[side] for key, pair in zeros.items()}))}
        for side in (0, 1)
    ]
    given, result = table(tmp_path, *sides)
    assert [given[name] for name in VALUES] == 2 * ["0.30000000000000004", "-1e-300", "1e+22", "3.0"]
    assert {given[name] for name in given if " diff" in name or "RelativeErr" in name} == {"0.0"}
    assert (result["NPU max"], result["Bench max"], result["Max diff"]) == ("0.0", "-0.0", "0.0")


def test_one_side_alone_is_not_applicable_on_the_other(tmp_path: Path) -> None:
    rows = table(tmp_path, {RELU: call(output=tensor(1.0))}, {"Torch.sub.0.forward": call(output=tensor(1.0, [3]))})
    assert {(row["NPU Name"], row["Bench Name"], row["Result"]) for row in rows} == {
        (f"{RELU}.output.0", "N/A", "not compared"),
        ("N/A", "Torch.sub.0.forward.output.0", "not compared"),
    }


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "+1", "-2+3", "@SUM(1)"])
def test_a_name_never_becomes_a_formula(tmp_path: Path, name: str) -> None:
    data = {f"{name}.0.forward": call(scalar(name), output=tensor(1.0))}
    rows = table(tmp_path, data, data)
    assert all(not cell.startswith(("=", "+", "-", "@")) for row in rows for cell in list(row.values())[:2])
    assert rows[0]["NPU max"].startswith("'")


@pytest.mark.parametrize("member", ["dtype", "md5", "Max", "Norm"])
def test_no_member_of_an_item_becomes_a_formula(tmp_path: Path, member: str) -> None:
    formula = "=HYPERLINK(1)"
    data = {RELU: call(output={**tensor(1.0), "md5": "aa", member: formula})}
    rows = table(tmp_path, data, data)
    if member == "md5":  # a column of dumps with checksums alone
        alone = {**tensor(1.0), **dict.fromkeys(("Max", "Min", "Mean", "Norm")), "md5": formula}
        rows = table(tmp_path, *[{RELU: call(output=alone)}] * 2)
    cells = [cell for row in rows for cell in row.values()]
    assert any(formula in cell for cell in cells) == (member != "Max")  # a figure that is none is left out
    assert not any(cell.startswith("=") for cell in cells)


def test_xlsx_continues_in_a_second_sheet_and_survives_control_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xml.etree import ElementTree

    monkeypatch.setattr(xlsx, "ROWS_A_SHEET", 2)
    data = {f"Torch.\x01a<b>&.{n}.forward": call(tensor(1.0), output=tensor(float("inf"))) for n in range(2)}
    write_dump(tmp_path / "dump", data)
    xlsx.write_xlsx(compare(tmp_path / "dump", tmp_path / "dump"), tmp_path / "out.xlsx")
    with zipfile.ZipFile(tmp_path / "out.xlsx") as book:
        sheets = sorted(name for name in book.namelist() if "worksheets" in name)
        counts = [len(ElementTree.fromstring(book.read(name)).findall(".//{*}row")) for name in sheets]
        assert b"a&lt;b&gt;&amp;" in book.read(sheets[0])
    assert sum(counts) - len(counts) == 4
    assert len(sheets) >= 2


def test_the_terminal_shows_control_characters_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "Torch.\x1b[31mred.0.forward"
    write_dump(tmp_path / "a", {name: call(tensor(1.0), output=tensor(1.0))})
    write_dump(tmp_path / "b", {name: call(tensor(1.0), output=tensor(2.0))})
    print_comparison(compare(tmp_path / "a", tmp_path / "b"))
    assert "\x1b" not in capsys.readouterr().out


def test_the_answer_of_equal_dumps_is_two_lines(tmp_path: Path) -> None:
    write_dump(tmp_path / "a", {RELU: call(tensor(1.0), output=tensor(1.0))})
    assert answer(compare(tmp_path / "a", tmp_path / "a")) == [
        "Same: every compared row agrees within the rounding of its dtype.",
        "Rows: 2, of them 2 pass, 0 warning, 0 error, 0 not compared",
    ]


def test_entries_of_the_debug_level_are_compared_by_name(tmp_path: Path) -> None:
    import json

    for side, value in (("a", 1.0), ("b", 1.5)):
        directory = tmp_path / side / "step0" / "rank"
        directory.mkdir(parents=True)
        entry = {"x": tensor(1.0), "loss": tensor(value, [])}
        head = {"task": "statistics", "level": "debug", "framework": "pytorch", "dump_data_dir": None}
        (directory / "debug.json").write_text(json.dumps({**head, "data": {"probe.0.debug": entry}}))
    result = compare(tmp_path / "a", tmp_path / "b")
    assert result.origin is not None
    assert (result.origin.name, result.origin.slot) == ("probe.0.debug", "loss")
    assert result.counts == {"pass": 1, "error": 1}


def test_damaged_items_affect_only_their_own_row_in_every_report(tmp_path: Path) -> None:
    """Shapes of text and negative sizes, integers that no float can hold, NaN inside of a plain value."""
    odd = [
        tensor(1.0, shape=["a"]),  # type: ignore[list-item]
        tensor(1.0, shape=[-2, 3]),
        {**tensor(1.0), "Max": 10**400},
        {**tensor(1.0), "Norm": [float("nan")]},
        scalar(10**400),
        {"type": "list", "value": [1.5, float("inf")]},
    ]
    for side, last in (("target", 2.0), ("golden", 3.0)):
        calls = {f"Functional.relu.{n}.forward": call(item, output=item) for n, item in enumerate(odd)}
        write_dump(tmp_path / side, {**calls, GELU: call(tensor(1.0), output=tensor(last))})
    found = compare(tmp_path / "target", tmp_path / "golden")
    assert found.origin is not None
    assert found.origin.name == GELU
    assert "it has no valid shape" in {row.why.detail for _, row in found.rows()}
    write_csv(found, tmp_path / "out.csv")
    write_jsonl(found, tmp_path / "out.jsonl")
    export_comparison(found, tmp_path / "out.html")
    xlsx.write_xlsx(found, tmp_path / "out.xlsx")
    print_comparison(found)


@pytest.mark.parametrize("damaged", ["target", "golden"])
@pytest.mark.parametrize("member", [{"Max": 10**400}, {"Norm": 10**400}, {"Norm": [1.0]}, {"Min": {}}, {"Mean": "x"}])
def test_a_damaged_statistic_next_to_a_difference(tmp_path: Path, member: dict[str, Any], damaged: str) -> None:
    """The row differs in its other figures, so that it is judged, explained and printed."""
    for side, value in (("target", 2.0), ("golden", 3.0)):
        item = {**tensor(value), **(member if side == damaged else {})}
        write_dump(tmp_path / side, {RELU: call(item, output=item), GELU: call(item, output=tensor(value))})
    found = compare(tmp_path / "target", tmp_path / "golden")
    assert found.exit_code == 1
    assert found.origin is not None
    print_comparison(found)
