"""`msprobe compare` as users run it: the answer, the exit code, the reports, and what it says to bad input."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "compare"))
from written import call, saved, scalar, tensor, write_dump

from msprobe.cli import main
from msprobe.compare import compare

RELU = "Functional.relu.0.forward"
LINEAR = "Functional.linear.0.forward"


def plain(output: float = 2.0, eps: float = 1e-5) -> dict[str, Any]:
    return {
        LINEAR: call(tensor(1.0), tensor(0.5, [16, 16]), output=tensor(1.5)),
        RELU: call(tensor(1.5), scalar(eps), output=tensor(output)),
    }


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    stacks = {"0": [[RELU], ["File train.py, line 12, in forward, \n x = F.relu(x)"]]}
    write_dump(tmp_path / "target", plain(2.5), {RELU: "Module.act.ReLU.forward.0"}, stacks)
    write_dump(tmp_path / "golden", plain())
    return str(tmp_path / "target"), str(tmp_path / "golden")


def test_the_first_line_names_the_origin_and_the_exit_code_is_1(
    pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *pair]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0] == f"Origin: {RELU} in Module.act.ReLU returns a different output.0 "
        "although its inputs have the same statistics"
    )
    assert lines[1:5] == [
        f"  call    {RELU}",
        "  module  Module.act.ReLU",
        "  where   step 0, forward",
        "  source  train.py:12 in forward",
    ]
    assert any(line.startswith("Rows: 6, of them 5 pass, 0 warning, 1 error, 0 not compared") for line in lines)


def test_equal_dumps_are_the_same_with_exit_code_0(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    copy = shutil.copytree(pair[1], f"{pair[1]}_copy")
    assert main(["compare", pair[1], copy]) == 0
    assert capsys.readouterr().out.startswith("Same:")


def test_json_prints_the_result_and_nothing_else_as_in_every_verb(
    pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "--json", *pair]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["origin"]["name"]) == ("differs", RELU)


@pytest.mark.parametrize(
    ("option", "path", "part"),
    [
        ("--html", "missing/report.html", "does not exist. Create it first"),
        ("--csv", "", "is a directory; give the name of a file"),
        ("-o", "file", "is a file; give a directory"),
        ("--next-config", "missing/config.json", "does not exist. Create it first"),
    ],
)
def test_a_report_that_cannot_be_written_is_refused_before_the_work(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, path: str, part: str
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["compare", *pair, option, str(tmp_path / path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert part in printed.err
    assert len(printed.err.splitlines()) == 1


def test_a_part_of_a_dump_is_not_the_same_as_the_dump(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = tmp_path / "both"
    shutil.copytree(pair[1], both)
    shutil.copytree(both / "step0", both / "step1")
    assert main(["compare", str(both), pair[1]]) == 2
    assert not capsys.readouterr().out.startswith("Same")


def test_json_lines_are_strict_and_begin_with_the_summary(pair: tuple[str, str], tmp_path: Path) -> None:
    main(["compare", *pair, "--json", str(tmp_path / "out.jsonl")])

    def refuse(text: str) -> None:
        raise AssertionError(text)

    lines = [json.loads(line, parse_constant=refuse) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    summary = lines[0]
    assert summary["verdict"] == "differs"
    assert {key: summary["origin"][key] for key in ("name", "module", "direction", "step", "rank", "source")} == {
        "name": RELU,
        "module": "Module.act.ReLU",
        "direction": "forward",
        "step": 0,
        "rank": None,
        "source": "train.py:12 in forward",
    }
    assert (summary["rows"], summary["pass"], summary["error"]) == (6, 5, 1)
    assert (summary["warning"], summary["not_compared"]) == (0, 0)
    assert len(lines) == 7
    assert [row["verdict"] for row in lines[1:]].count("error") == 1


def test_csv_and_xlsx_have_the_columns_of_mindstudio_probe(pair: tuple[str, str], tmp_path: Path) -> None:
    main(["compare", *pair, "--csv", str(tmp_path / "out.csv"), "--xlsx", str(tmp_path / "out.xlsx")])
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:8] == [
        "NPU Name", "Bench Name", "NPU Dtype", "Bench Dtype", "NPU Tensor Shape", "Bench Tensor Shape",
        "NPU Requires_grad", "Bench Requires_grad",
    ]  # fmt: skip
    assert list(rows[0])[8:16] == [
        "Max diff", "Min diff", "Mean diff", "L2norm diff", "MaxRelativeErr", "MinRelativeErr", "MeanRelativeErr",
        "NormRelativeErr",
    ]  # fmt: skip
    last = rows[-1]
    assert last["Result"] == "error"
    assert float(last["L2norm diff"]) == pytest.approx(10.0)
    assert float(last["NormRelativeErr"]) == pytest.approx(0.25)
    with zipfile.ZipFile(tmp_path / "out.xlsx") as book:
        sheet = ElementTree.fromstring(book.read("xl/worksheets/sheet1.xml"))
        for name in book.namelist():
            ElementTree.fromstring(book.read(name))
    found = sheet.findall(".//{*}row")
    assert len(found) == 7
    assert found[-1].find("{*}c").get("s") == "2"  # type: ignore[union-attr]
    assert found[1].find("{*}c").get("s") is None  # type: ignore[union-attr]


def test_the_input_file_of_mindstudio_probe_and_the_output_directory(pair: tuple[str, str], tmp_path: Path) -> None:
    given = {
        "npu_path": pair[0] + "/step0/rank/dump.json",
        "bench_path": pair[1] + "/step0",
        "is_print_compare_log": True,
    }
    (tmp_path / "compare.json").write_text(json.dumps(given))
    assert main(["-f", "pytorch", "compare", "-i", str(tmp_path / "compare.json"), "-o", str(tmp_path / "out")]) == 1
    assert sorted(path.suffix for path in (tmp_path / "out").iterdir()) == [".html", ".xlsx"]
    assert main(["compare", "-tp", pair[0], "-gp", pair[1]]) == 1


def test_the_next_config_dumps_tensors_of_the_suspects_only(pair: tuple[str, str], tmp_path: Path) -> None:
    main(["compare", *pair, "--next-config", str(tmp_path / "next.json")])
    from msprobe.config import load

    settings = load("pytorch", str(tmp_path / "next.json"))
    assert settings.task == "tensor"
    assert json.loads((tmp_path / "next.json").read_text())["tensor"]["list"] == [RELU]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "is not a dump"),
        (lambda path: (path / "step0" / "rank0").mkdir(parents=True), "is an empty dump"),
        (lambda path: path.write_text("hello"), "is not a dump"),
    ],
)
def test_a_path_that_is_not_a_dump_gives_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Any, message: str
) -> None:
    golden = write_dump(tmp_path / "golden", plain())
    make(tmp_path / "target")
    assert main(["compare", str(tmp_path / "target"), str(golden)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", '{"data": [1]}', "[]", '{"task": "statistics"}'])
def test_an_incomplete_json_file_gives_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    golden = write_dump(tmp_path / "golden", plain())
    target = write_dump(tmp_path / "target", plain())
    (target / "step0" / "rank" / "dump.json").write_text(text)
    assert main(["compare", str(target), str(golden)]) == 2
    error = capsys.readouterr().err
    assert "dump.json" in error
    assert "Traceback" not in error


def test_a_missing_record_is_never_passed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden = write_dump(tmp_path / "golden", plain())
    data = plain()
    del data[RELU]
    target = write_dump(tmp_path / "target", data)
    assert main(["compare", str(target), str(golden)]) == 2
    out = capsys.readouterr().out
    assert out.startswith("Compared in part")
    assert "3 not compared (3 unmatched)" in out


@pytest.mark.parametrize("harm", ["remove", "cut", "noise", "other shape"])
def test_a_damaged_tensor_file_is_never_passed(tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: str) -> None:
    for side in ("target", "golden"):
        directory = tmp_path / side / "step0" / "rank"
        items = [saved(directory, f"{RELU}.{slot}", np.ones((4, 4), np.float32)) for slot in ("input.0", "output.0")]
        write_dump(tmp_path / side, {RELU: call(items[0], output=items[1])}, task="tensor")
    file = tmp_path / "target" / "step0" / "rank" / "dump_tensor_data" / f"{RELU}.output.0.npy"
    if harm == "remove":
        file.unlink()
    elif harm == "cut":
        file.write_bytes(file.read_bytes()[:-16])
    elif harm == "noise":
        file.write_bytes(os.urandom(200))
    else:
        np.save(file, np.ones((2, 8), np.float32))
    assert main(["compare", str(tmp_path / "target"), str(tmp_path / "golden")]) == 2
    assert "1 pass, 0 warning, 0 error, 1 not compared" in capsys.readouterr().out


def test_a_data_name_that_leaves_the_directory_is_not_followed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "secret.npy", np.ones(3))
    for side in ("target", "golden"):
        item = tensor(1.0, [3], data_name="../../../../secret.npy")
        write_dump(tmp_path / side, {RELU: call(output=item)}, task="tensor")
    assert main(["compare", str(tmp_path / "target"), str(tmp_path / "golden")]) == 2
    assert "not a plain file name" in capsys.readouterr().out


def test_a_dump_that_is_still_written_is_compared_as_far_as_it_got(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden = write_dump(tmp_path / "golden", {LINEAR: plain()[LINEAR]})
    directory = tmp_path / "target" / "step0" / "rank"
    directory.mkdir(parents=True)
    head = {"format": 1, "task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
    lines = [
        json.dumps(["head", head]),
        json.dumps(["record", LINEAR, None, None, plain()[LINEAR]]),
        '["record", "Func',
    ]
    (directory / "journal.jsonl").write_text("\n".join(lines))
    assert main(["compare", str(tmp_path / "target"), str(golden)]) == 0
    assert "unfinished" in capsys.readouterr().out


def test_mixed_frameworks_are_compared_and_the_wrong_f_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden = write_dump(tmp_path / "golden", {"Functional.relu.0.forward": call(tensor(1.0), output=tensor(2.0))})
    item = {**tensor(1.0), "type": "mindspore.Tensor", "dtype": "Float32"}
    data = {"MintFunctional.relu.0.forward": call(item, output={**tensor(2.0), "dtype": "Float32"})}
    target = write_dump(tmp_path / "target", data, framework="mindspore")
    assert main(["compare", str(target), str(golden)]) == 0
    assert main(["-f", "pytorch", "compare", str(target), str(golden)]) == 2
    assert "not a pytorch dump" in capsys.readouterr().err


def test_neither_framework_is_imported(pair: tuple[str, str]) -> None:
    script = (
        "import sys; from msprobe.cli import main; code = main(sys.argv[1:]);"
        "assert not {'torch', 'mindspore'} & set(sys.modules); sys.exit(code)"
    )
    ran = subprocess.run([sys.executable, "-c", script, "compare", *pair], capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stderr


def test_usage_errors_say_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare"]) == 2
    assert "Two dumps are needed" in capsys.readouterr().err
    golden = write_dump(tmp_path / "golden", plain())
    assert main(["compare", str(golden), str(golden)]) == 2
    assert f"Both paths are one directory, {golden}: give two dumps." in capsys.readouterr().err
    target = write_dump(tmp_path / "target", plain())
    assert main(["compare", str(target), str(golden), "--step", "7"]) == 2
    assert "it has step0/rank" in capsys.readouterr().err
    assert main(["compare", str(target), str(golden), "--api-mapping", str(tmp_path / "no.yaml")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_comparison_in_a_notebook_is_its_answer(pair: tuple[str, str]) -> None:
    found = compare(Path(pair[0]), Path(pair[1]))
    page = found._repr_html_()
    assert page.startswith(f"<b>Origin: {RELU} in Module.act.ReLU returns a different output.0")
    assert "Rows: 6, of them 5 pass" in page
    assert len(page) < 1000
    assert len(repr(found)) < 2000
