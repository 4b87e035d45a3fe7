"""Dumps with something missing or damaged: the rest is judged, the loss is named, and nothing is called the same."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "compare"))
from written import call, scalar, tensor, write_dump

from msprobe.check.core.plan import make_plan
from msprobe.cli import main
from msprobe.dump import write_errors
from msprobe.dump.reader import open_dump

LINEAR, RELU, GELU = (f"Functional.{api}.0.forward" for api in ("linear", "relu", "gelu"))
Harm = Callable[[Path], object]


def records(last: float = 9.0) -> dict[str, Any]:
    return {
        LINEAR: call(tensor(1.0), tensor(0.5, [16, 16]), output=tensor(1.5)),
        RELU: call(tensor(1.5), scalar(1e-5), output=tensor(2.0)),
        GELU: call(tensor(2.0), output=tensor(last)),
    }


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two equal dumps of two steps and two ranks."""
    for side in ("target", "golden"):
        for step in (0, 1):
            for rank in (0, 1):
                write_dump(tmp_path / side, records(), step=step, rank=rank, run={"msprobe": "0.1.0"})
    return tmp_path / "target", tmp_path / "golden"


def remove(name: str) -> Harm:
    return lambda dump: (dump / name).rename(dump.parent / f"{dump.name} {name.replace('/', ' ')}")


def write(name: str, text: str) -> Harm:
    return lambda dump: (dump / name).write_text(text)


def damage_record(dump: Path) -> None:
    file = dump / "step1/rank0/dump.json"
    content = json.loads(file.read_text())
    content["data"][RELU] = ["not", "a", "record"]
    file.write_text(json.dumps(content))


def damage_journal(dump: Path) -> None:
    """A rank that only has its journal, with a damaged line in it."""
    rank = dump / "step1/rank0"
    (rank / "dump.json").unlink()
    head = {"format": 1, "task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
    lines = [json.dumps(["head", head]), *(json.dumps(["record", n, None, None, r]) for n, r in records().items())]
    (rank / "journal.jsonl").write_text("\n".join([*lines, '["record", 5]', ""]))


PARTIAL: dict[str, tuple[Harm, str]] = {
    "a rank is missing": (remove("step1/rank1"), "step1/rank1"),
    "a step is missing": (remove("step1"), "no such step: step 1"),
    "records were not written": (
        write("step1/rank0/dump_error_info.log", write_errors.entry(500)),
        "500 records or files could not be written",
    ),
    "the log had no room": (write("step1/rank0/dump_error_info.log", ""), "dump_error_info.log is empty"),
    "a rank is empty": (remove("step1/rank1/dump.json"), "step1/rank1 holds neither dump.json nor a journal"),
    "dump.json is cut": (write("step1/rank0/dump.json", '{"data": {'), "step1/rank0/dump.json is not JSON"),
    "dump.json has no data": (write("step1/rank0/dump.json", "{}"), 'it has no "data" object'),
    "a record is no record": (damage_record, f"{RELU}"),
    "calls are inside each other": (
        write("step1/rank0/construct.json", json.dumps({LINEAR: RELU, RELU: GELU, GELU: LINEAR, "x": LINEAR})),
        "1 call is inside itself in construct.json",
    ),
    "a line of the journal is damaged": (damage_journal, "1 damaged line of journal.jsonl was left out"),
    **{
        f"{name} is cut": (write(f"step1/rank0/{name}", "{"), f"step1/rank0/{name} is not JSON")
        for name in ("stack.json", "construct.json", "training.json", "run.json", "debug.json")
    },
}


@pytest.mark.parametrize("sides", [(0,), (1,), (0, 1)], ids=["target", "golden", "both"])
@pytest.mark.parametrize("what", PARTIAL)
def test_a_partial_comparison_is_never_the_same(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str], what: str, sides: tuple[int, ...]
) -> None:
    harm, said = PARTIAL[what]
    if len(sides) == 2 and what in ("a rank is missing", "a step is missing"):
        pytest.skip("two dumps without it have all that the other has")
    assert main(["compare", *map(str, pair)]) == 0
    passed = _passed(capsys.readouterr().out)
    for side in sides:
        harm(pair[side])
    assert main(["compare", *map(str, pair)]) == 2
    out = capsys.readouterr().out
    assert said in out
    beside = what.endswith("is cut") and what != "dump.json is cut"
    assert _passed(out) == passed if beside else 0 < _passed(out) <= passed  # the rest was judged


def _passed(out: str) -> int:
    found = re.search(r"(\d+) pass", out)
    assert found is not None
    return int(found.group(1))


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize("what", ["dump.json is cut", "a record is no record", "construct.json is cut"])
def test_a_difference_is_found_next_to_the_damage(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str], what: str, jobs: str
) -> None:
    PARTIAL[what][0](pair[0])
    write_dump(pair[0], records(12.0), step=0, rank=0)
    assert main(["compare", *map(str, pair), "--jobs", jobs]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"Origin: {GELU}")
    assert PARTIAL[what][1] in out


def test_one_rank_against_another_gets_a_note(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(pair[0] / "step0/rank1"), str(pair[1] / "step0/rank0")]) == 0
    assert "rank 1 of the target is compared with rank 0 of the golden run" in capsys.readouterr().out


@pytest.mark.parametrize("what", ["dump.json is cut", "a record is no record", "stack.json is cut"])
@pytest.mark.parametrize("verb", ["show", "overflow"])
def test_the_other_readers_go_on_and_name_it(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str], verb: str, what: str
) -> None:
    PARTIAL[what][0](pair[0])
    assert main([verb, str(pair[0])]) == 0
    assert PARTIAL[what][1] in capsys.readouterr().out


def test_run_ut_skips_a_damaged_record_and_says_why(pair: tuple[Path, Path]) -> None:
    damage_record(pair[0])
    rank = next(one for one in open_dump(pair[0]).ranks if one.label == "step1/rank0")
    plan = make_plan(rank.records)
    assert [task.call for task in plan.tasks] == ["Functional.linear.0", "Functional.gelu.0"]
    assert plan.skipped == {"Functional.relu.0": "it is damaged: the record is not a JSON object"}
    assert rank.troubles == [f"1 record is damaged in dump.json, first {RELU}"]


def test_a_run_beside_one_of_its_steps_is_compared_in_part(pair: tuple[Path, Path], capsys: Any) -> None:
    """`compare good good/step0`: what agrees is not called the same while a step has no partner."""
    assert main(["compare", str(pair[0]), str(pair[0] / "step0")]) == 2
    shown = capsys.readouterr().out
    assert shown.startswith("Compared in part: what could be compared agrees, and the rest could not be compared")
    assert "the other run has no such step: step 1 of the target" in shown


def test_two_steps_of_a_run_are_noted_once(pair: tuple[Path, Path], capsys: Any) -> None:
    main(["compare", str(pair[0] / "step0"), str(pair[0] / "step1")])
    assert capsys.readouterr().out.count("step 0 of the target is compared with step 1 of the golden run") == 1
