"""`msprobe show` says what is in a dump, to the character."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from msprobe.cli import main
from msprobe.cli.show import _places
from msprobe.dump import layout
from msprobe.dump.summary import kind_of
from msprobe.dump.writing.writer import Head, RankWriter, Worker

DATA = Path(__file__).parents[1] / "dump/data"


def tensor(norm: str, largest: str = "1.0", dtype: str = "torch.float32") -> str:
    kind = f'"type": "torch.Tensor", "dtype": "{dtype}", "shape": [2, 3]'
    return f'{{{kind}, "Max": {largest}, "Min": 0.0, "Mean": 0.5, "Norm": {norm}}}'


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """Two ranks: rank 0 has an error at a matmul and is cut off, rank 1 is finished and correct."""
    worker = Worker()
    head = Head("statistics", "mix", "pytorch")
    sick = RankWriter(layout.rank_directory(tmp_path / "dump", 0, 0), head, worker)
    sick.record("Torch.add.0.forward", None, None, f'"input_args": [{tensor("3.5")}], "output": [{tensor("7.25")}]')
    sick.record(
        "Torch.matmul.0.forward", None, None, f'"input_args": [{tensor("7.25")}], "output": [{tensor("NaN", "NaN")}]'
    )
    sick.record(
        "Torch.exp.0.forward",
        None,
        None,
        f'"input_args": [{tensor("NaN", "NaN")}], "output": [{tensor("Infinity", "Infinity")}]',
    )
    sick.record(
        "Torch.add.0.backward",
        None,
        None,
        f'"input": [{tensor("2.0")}], "output": [{tensor("0.0", "0.0", "torch.bfloat16")}, null]',
    )
    sick.begin(0, "Module.m.Net.forward.0", None, None, f'"input_args": [{tensor("3.5")}]')
    sick.flush()
    well = RankWriter(layout.rank_directory(tmp_path / "dump", 0, 1), head, worker)
    well.record("Module.m.Net.parameters_grad", None, None, f'"w": [{tensor("0.125")}]')
    well.finish()
    for writer in list(worker._open.values()):
        worker.closed(writer)  # as a crash would: the journal stays, nothing is finished
    worker.close()
    return tmp_path / "dump"


def test_a_dump_is_shown_with_its_anomalies_in_order(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(dump)]) == 0
    assert (
        capsys.readouterr().out
        == f"""{dump}: pytorch, task statistics, level mix

Records
step/rank    records  api forward  api backward  module forward  parameter gradients  state
step0/rank0        5            3             1               1                    0  unfinished
step0/rank1        1            0             0               0                    1  finished

Dtypes: 9 torch.float32, 1 torch.bfloat16

Anomalies
step/rank    anomaly                  records  first in order          at
step0/rank0  NaN                            2  Torch.matmul.0.forward  output.0
step0/rank0  infinity                       1  Torch.exp.0.forward     output.0
step0/rank0  gradient all zero              1  Torch.add.0.backward    output.0
step0/rank0  cut off inside the call        1  Module.m.Net.forward.0

The largest norms: 4 of 5; --all prints all
 norm  step/rank    record                        at                 dtype          shape
 7.25  step0/rank0  Torch.add.0.forward           output.0           torch.float32  [2, 3]
  3.5  step0/rank0  Torch.add.0.forward           input.0            torch.float32  [2, 3]
    2  step0/rank0  Torch.add.0.backward          input.0            torch.float32  [2, 3]
0.125  step0/rank1  Module.m.Net.parameters_grad  parameters_grad.w  torch.float32  [2, 3]

1 of 2 rank directories is unfinished (step0/rank0); msprobe read the journal. \
If the run has ended, `msprobe recover {dump}` finishes it.
"""
    )


def test_json_says_the_same(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(dump), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    sick, well = shown["ranks"]
    assert sick["records"] == {"api forward": 3, "api backward": 1, "module forward": 1}
    assert sick["unfinished"] is True
    assert sick["anomalies"]["NaN"]["record"] == "Torch.matmul.0.forward"
    assert well["anomalies"] == {}
    assert [row["norm"] for row in shown["largest_norms"]] == [7.25, 3.5, 2.0, 0.125, 0.0]


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.iterdir()))
def test_a_good_dump_of_mindstudio_probe_has_no_anomalies(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(DATA / name)]) == 0
    assert "Anomalies: none" in capsys.readouterr().out


def test_a_name_cannot_move_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = {"\x1b[2Jevil\n[red].0.forward": {"output": [json.loads(tensor("1.0"))]}}
    (tmp_path / "dump.json").write_text(json.dumps({"task": "\x1b[31m", "data": record}))
    assert main(["show", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\\x1b[2Jevil\\n[red].0.forward" in shown


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Functional.relu.0.forward", "api forward"),
        ("Torch.matmul.12.backward", "api backward"),
        ("Module.layer.Linear.forward.0", "module forward"),
        ("Cell.layer.Dense.backward.3", "module backward"),
        ("Module.layer.Linear.parameters_grad", "parameter gradients"),
        ("Module.layer.Linear.parameters_grad.0", "parameter gradients"),
        ("something", "other"),
    ],
)
def test_the_kind_of_a_record_is_in_its_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind


@pytest.mark.parametrize(
    "figures",
    [
        f'"Max": 1, "Min": 1, "Mean": 1, "Norm": {"9" * 400}',
        '"Max": [1], "Min": {"a": 1}, "Mean": null, "Norm": 3.0',
        '"Max": {}, "Min": "x", "Mean": true, "Norm": {}',
    ],
)
def test_statistics_that_are_not_numbers_are_ignored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], figures: str
) -> None:
    broken = f'{{"type": "torch.Tensor", "dtype": "f", "shape": [1], {figures}}}'
    record = f'{{"output": [{broken}, {tensor("2.5")}]}}'
    (tmp_path / "dump.json").write_text(f'{{"task": "statistics", "data": {{"Torch.add.0.forward": {record}}}}}')
    assert main(["show", str(tmp_path)]) == 0
    assert "Torch.add.0.forward  output.1" in capsys.readouterr().out
    assert main(["show", str(tmp_path), "--json"]) == 0


def test_a_call_that_raised_is_an_anomaly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = {
        "Module.a.Net.forward.0": {"input_args": [], "raised": "ValueError"},
        "Module.raised.parameters_grad": {"raised": [json.loads(tensor("1.0"))]},
    }
    (tmp_path / "dump.json").write_text(json.dumps({"task": "statistics", "data": records}))
    assert main(["show", str(tmp_path)]) == 0
    assert "raised an exception        1  Module.a.Net.forward.0\n" in capsys.readouterr().out
    assert main(["show", str(tmp_path), "--json"]) == 0
    (rank,) = json.loads(capsys.readouterr().out)["ranks"]
    assert rank["anomalies"] == {"raised an exception": {"count": 1, "record": "Module.a.Net.forward.0", "slot": None}}


def shown(path: Path, records: dict[str, str], capsys: pytest.CaptureFixture[str], steps: int = 1) -> str:
    worker = Worker()
    for step in range(steps):
        writer = RankWriter(layout.rank_directory(path, step, None), Head("statistics", "L1", "pytorch"), worker)
        for name, content in records.items():
            writer.record(name, None, None, content)
        writer.finish()
    worker.close()
    assert main(["show", str(path)]) == 0
    return capsys.readouterr().out


MASK = '{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": 0.0, "Min": -Infinity, "Mean": -Infinity, "Norm": Infinity}'  # noqa: E501


def test_a_mask_is_not_an_anomaly_and_an_overflow_to_minus_infinity_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    masked = {"Torch.add.0.forward": f'"input_args": [{tensor("1.0")}, {MASK}], "output": [{MASK}]'}
    assert "Anomalies: none" in shown(tmp_path / "a", masked, capsys)
    overflow = {"Torch.log.0.forward": f'"input_args": [{tensor("1.0")}], "output": [{MASK}]'}
    assert "Torch.log.0.forward" in shown(tmp_path / "b", overflow, capsys).partition("Anomalies")[2]


def test_the_largest_norms_are_of_floating_point_tensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = f'"input_args": [{tensor("9e9", dtype="torch.int64")}], "output": [{tensor("2.5")}]'
    norms = shown(tmp_path / "d", {"Torch.embedding.0.forward": content}, capsys).partition("largest norm")[2]
    assert "2.5" in norms
    assert "int64" not in norms


def test_many_steps_are_folded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = {"Torch.add.0.forward": f'"input_args": [], "output": [{tensor("2.5")}]'}
    text = shown(tmp_path / "d", content, capsys, steps=40)
    assert "Records: 5 of 40; --all prints all" in text
    assert "step0/rank" in text
    assert "step39/rank" in text
    assert "step20/rank" not in text.partition("Dtypes")[0]


def test_many_unfinished_steps_are_named_as_ranges() -> None:
    labels = [f"step{n}/rank{r}" for n in (*range(3, 40), 45) for r in (0, 1)]
    assert _places([*labels, "rank"]) == "rank, step3-39/rank0, step45/rank0, step3-39/rank1, step45/rank1"


@pytest.mark.parametrize("verb", ["show", "view", "compare"])
def test_the_directory_above_names_its_dumps(dump: Path, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = [str(dump.parent)] * (2 if verb == "compare" else 1)
    assert main([verb, *given]) == 2
    assert "is not a dump, but contains some: dump. Give one of them." in capsys.readouterr().err
