"""What `--json` prints: strict, versioned, as its schema says. tests/conftest.py checks the output of other tests."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "compare"))
from written import call, scalar, tensor, write_dump

from json_schemas import check_schema
from msprobe import cli
from msprobe.cli import main
from msprobe.messages import read_message
from msprobe.schemas import schema_names

LINEAR, NORM = "Functional.linear.0.forward", "Functional.layer_norm.{}.forward"


def records(output: float) -> dict[str, Any]:
    norms = {NORM.format(n): call(tensor(1.5), scalar(1e-5), output=tensor(output if n else 2.0)) for n in range(12)}
    return {LINEAR: call(tensor(1.0), tensor(0.5, [16, 16]), output=tensor(1.5)), **norms}


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    construct = {NORM.format(n): f"Module.blocks.{n}.norm.LayerNorm.forward.0" for n in range(12)}
    write_dump(tmp_path / "target", records(3.0), construct)
    write_dump(tmp_path / "golden", records(2.0), construct)
    return str(tmp_path / "target"), str(tmp_path / "golden")


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    main(list(words))
    return json.loads(capsys.readouterr().out, parse_constant=lambda token: pytest.fail(f"not strict: {token}"))


@pytest.mark.parametrize("name", schema_names())
def test_every_schema_is_a_schema_with_its_version(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "schema", name)
    jsonschema.Draft202012Validator.check_schema(found)
    assert found["$id"] == f"msprobe/{name}/1"
    assert name == "compare-row" or found["properties"]["schema"] == {"const": f"msprobe/{name}/1"}


def test_every_verb_with_json_has_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    listed = capsys.readouterr().out.split()
    for verb, _ in cli.VERBS:
        parser = argparse.ArgumentParser()
        importlib.import_module(f"msprobe.cli.{verb}").add_arguments(parser)
        if "--json" in parser.format_help():
            assert verb in listed


def test_the_docs_list_every_schema() -> None:
    docs = (Path(__file__).resolve().parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
    assert [name for name in schema_names() if f"`{name}`" not in docs] == []


def test_the_messages_are_printed_in_both_languages(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "schema", "messages")["values.norm"] == ["norm differs", "范数不同"]


def test_an_unknown_schema_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "../compare"]) == 2
    assert "There is no schema '../compare'; choose from " in capsys.readouterr().err


def test_a_comparison_and_its_rows_fit_their_schemas(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(capsys, "compare", *pair, "--json")["schema"] == "msprobe/compare/1"
    main(["compare", *pair, "--json", str(tmp_path / "rows.jsonl")])
    first, *rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    check_schema("compare", first)
    assert rows
    for row in rows:
        check_schema("compare-row", row)
    ids = [row["id"] for row in rows]
    assert len(set(ids)) == len(ids)
    assert "step0/rank/Functional.layer_norm.3.forward.output.0" in ids
    origin = first["origin"]
    assert origin["message"]["id"] == "origin.call"
    assert read_message(origin["message"], 1000) == origin["sentence"]
    assert said_by(origin, "evidence") == origin["evidence"]
    assert said_by(origin, "next") == [origin["next"]]
    reasons = [row for row in rows if row["reason"]]
    assert reasons
    assert all(read_message(row["message"], 1000) == row["reason"] for row in reasons)


def said_by(record: dict[str, Any], name: str) -> list[Any]:
    """The texts of the messages of a member."""
    found = record["messages"][name]
    return [read_message(one, 1000) for one in (found if isinstance(found, list) else [found])]


def test_nan_and_infinities_are_texts_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side in ("a", "b"):
        write_dump(tmp_path / side, {LINEAR: call(tensor(1.0), output=tensor(float("inf")))})
    file = tmp_path / "rows.jsonl"
    main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json", str(file)])
    capsys.readouterr()
    rows = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    items = [row["target_item"] for row in rows if row["target"].endswith("output.0")]
    assert items[0]["Max"] == "Infinity"
    for row in rows:
        check_schema("compare-row", row)
    from msprobe.dump.strict_json import strict

    assert strict({"a": [float("nan"), (float("-inf"), 1.5)]}) == {"a": ["NaN", ["-Infinity", 1.5]]}
    from msprobe.watch.alarms.alarm import Alarm

    assert Alarm(1, "rule", "scalar", "loss", "it is NaN").as_json()["value"] == "NaN"


def test_rows_are_filtered_and_paged(pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = printed(capsys, "rows", *pair, "--json", "--where", "module=blocks.1", "--verdict", "error")
    assert [row["target"] for row in page["rows"]] == ["Functional.layer_norm.1.forward.output.0"]
    assert (page["total"], page["next"]) == (1, None)
    first = printed(capsys, "rows", *pair, "--json", "--verdict", "error", "--limit", "4")
    assert (first["total"], first["next"], len(first["rows"])) == (11, 4, 4)
    last = printed(capsys, "rows", *pair, "--json", "--verdict", "error", "--limit", "4", "--offset", "8")
    assert (last["next"], len(last["rows"])) == (None, 3)
    for where in ("call=Functional.layer_norm.*", "dtype=float32", "step=0"):
        assert printed(capsys, "rows", *pair, "--json", "--where", where)["total"] > 11
    main(["compare", *pair, "--json", str(tmp_path / "rows.jsonl")])
    capsys.readouterr()
    again = printed(capsys, "rows", str(tmp_path / "rows.jsonl"), "--json", "--verdict", "error", "--limit", "4")
    assert again == first
    assert main(["rows", *pair, "--verdict", "error", "--limit", "4"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "4 of 11 rows; the next page: --offset 4"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["DIR/target", "DIR/golden", "--where", "nix=1"], "--where takes FIELD=VALUE, not 'nix=1'"),
        (["DIR/target", "DIR/golden", "--where", "module"], "--where takes FIELD=VALUE"),
        (["DIR/target", "DIR/golden", "--limit", "0"], "--limit must be at least 1"),
        (["DIR/target"], "give two dumps, or one file"),
        (["DIR/text"], "is not a file of `msprobe compare --json FILE`"),
    ],
)
def test_bad_input_of_rows_is_one_sentence(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], reason: str
) -> None:
    (tmp_path / "text").write_text("not json")
    assert main(["rows", *(word.replace("DIR", str(tmp_path)) for word in words)]) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") == 1


def test_one_dump_fits_its_schemas(pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("show", "overflow", "recover"):
        assert printed(capsys, verb, pair[0], "--json")["schema"] == f"msprobe/{verb}/1"
    assert printed(capsys, "baseline", "list", "--in", str(tmp_path / "none"), "--json")["baselines"] == []
