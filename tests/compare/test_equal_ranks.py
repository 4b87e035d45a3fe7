"""Ranks that are equal byte for byte are not compared row by row, and the result is the same as if they were."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from written import call, model_data, saved, scalar, tensor, write_dump

from msprobe.compare import Comparison, compare, comparison, execute
from msprobe.compare.flow.graph import Graph
from msprobe.compare.measure import distance
from msprobe.compare.rows import Row
from msprobe.report.comparison_terminal import answer, print_comparison
from msprobe.report.jsonl import write_jsonl

RANKS, ROWS, WRONG = 64, 300, 37
RELU = "Functional.relu.0.forward"

Edit = Callable[[int, dict[str, Any]], None]


def _write(root: Path, ranks: int, edit: Optional[Edit] = None, rows: int = ROWS) -> Path:
    """Ranks of one model with numbers of their own."""
    for rank in range(ranks):
        data, construct = model_data(rows)
        for record in data.values():
            record["output"] = [tensor(1.0 + rank / 7)]
        if edit is not None:
            edit(rank, data)
        write_dump(root, data, construct, {"0": [list(data), ["File train.py, line 1, in f, \n x"]]}, rank=rank)
    return root


def _differ(rank: int, data: dict[str, Any]) -> None:
    if rank == WRONG:
        data[RELU]["output"] = [tensor(9.0)]


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    work = tmp_path_factory.mktemp("ranks")
    return _write(work / "target", RANKS, _differ), _write(work / "golden", RANKS)


def _in_full(monkeypatch: pytest.MonkeyPatch, *dumps: Path) -> Comparison:
    with monkeypatch.context() as patch:
        patch.setattr(execute, "outline_of", lambda pair: None)
        return compare(*dumps)


def _count_runs(monkeypatch: pytest.MonkeyPatch) -> list[execute.Task]:
    """The units that are compared row by row from now on."""
    seen: list[execute.Task] = []
    real = execute.run_pair

    def run_pair(task: execute.Task, mapper: execute.Mapper = execute.in_turn) -> Any:
        seen.append(task)
        return real(task, mapper)

    monkeypatch.setattr(execute, "run_pair", run_pair)
    return seen


@pytest.mark.fast
def test_one_wrong_rank_of_many_is_named_and_equal_ranks_are_not_built(
    dumps: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = _in_full(monkeypatch, *dumps)
    runs = _count_runs(monkeypatch)
    found = compare(*dumps)
    print_comparison(found)
    assert [task.pair.target.rank for task in runs] == [0, WRONG]
    assert found.origin is not None
    assert (found.origin.name, found.origin.rank) == (RELU, WRONG)
    assert found.summary() == full.summary()
    assert answer(found) == answer(full)
    assert f"Rows: {sum(full.counts.values())}" in capsys.readouterr().out


def test_every_row_is_in_a_report_of_rows(
    dumps: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(_in_full(monkeypatch, *dumps), tmp_path / "full")
    for jobs in (1, 2):
        write_jsonl(compare(*dumps, jobs=jobs), tmp_path / "found")
        assert (tmp_path / "found").read_bytes() == (tmp_path / "full").read_bytes()


_LOGGING = """import sys
from msprobe.compare import compare, execute
real = execute.run_pair
def run_pair(task, *given):
    with open(sys.argv[3], "a") as file:
        print(task.pair.target.rank, file=file)
    return real(task, *given)
execute.run_pair = run_pair
assert compare(sys.argv[1], sys.argv[2], jobs=2).origin is not None"""


def test_processes_do_not_measure_again_what_the_first_one_has(dumps: tuple[Path, Path], tmp_path: Path) -> None:
    log = tmp_path / "log"
    subprocess.run([sys.executable, "-c", _LOGGING, *map(str, dumps), str(log)], check=True, timeout=120)
    assert log.read_text().split() == ["0", str(WRONG)]


@pytest.mark.parametrize("odd", ["null", "empty", "infinite", "NaN", "uninitialised", "structure", "md5"])
def test_items_that_prove_nothing_are_counted_as_in_full(
    odd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks may have the same outline, and one of them an item that cannot be compared even with itself."""
    nothing = dict.fromkeys(("Max", "Min", "Mean", "Norm"))

    def edit(rank: int, data: dict[str, Any]) -> None:
        item = data[RELU]["output"][0]
        if odd in ("null", "empty"):
            item.update(nothing, shape=[0] if odd == "empty" and rank % 2 == 0 else [3])
        elif odd == "infinite":
            item.update(Max=float("inf"), Min=float("inf") if rank % 2 == 0 else 1.0, Norm=float("inf"))
        elif odd == "NaN":
            item.update(dict.fromkeys(nothing, float("nan")) if rank % 2 else {})
        elif odd == "uninitialised":
            data["Torch.empty.0.forward"] = call(scalar(3), output=tensor(rank + 1.0))
        elif odd == "structure":
            item["shape"] = [rank % 2]
            for key in nothing:
                del item[key]
        else:
            item["md5"] = f"{rank + 171:08x}"

    both = [_write(tmp_path / side, 6, edit, rows=40) for side in ("target", "golden")]
    full = _in_full(monkeypatch, *both)
    assert compare(*both).summary() == full.summary()
    assert full.reasons or odd == "md5"


def test_saved_tensors_are_always_compared(tmp_path: Path) -> None:
    """Another order of the elements has the same statistics."""
    for side in ("target", "golden"):
        for rank in range(4):
            array = np.arange(16, dtype=np.float32)
            if (side, rank) == ("target", 2):
                array = array[::-1].copy()
            item = saved(tmp_path / side / "step0" / f"rank{rank}", "out", array)
            write_dump(tmp_path / side, {RELU: call(tensor(1.0), output=item)}, rank=rank, task="tensor")
    found = compare(tmp_path / "target", tmp_path / "golden")
    assert found.origin is not None
    assert found.origin.rank == 2


def test_only_the_directory_of_tensors_may_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = [_write(tmp_path / side, 3) for side in ("target", "golden")]
    for root in both:
        for file in root.rglob("dump.json"):
            file.write_text(file.read_text().replace('"dump_data_dir": null', f'"dump_data_dir": "{root}"'))
    runs = _count_runs(monkeypatch)
    assert compare(*both).verdict == "same"
    assert len(runs) <= 1
    (both[0] / "step0" / "rank1" / "training.json").write_text('{"events": [{"event": "backward"}]}')
    assert compare(*both).verdict == "same"
    assert 1 in [task.pair.target.rank for task in runs]


def test_a_damaged_file_beside_equal_records_is_reported(dumps: tuple[Path, Path], tmp_path: Path) -> None:
    both = [_write(tmp_path / side, 4, rows=40) for side in ("target", "golden")]
    assert compare(*both).verdict == "same"
    (both[1] / "step0" / "rank3" / "stack.json").write_text("{")
    found = compare(*both)
    assert found.verdict == "not_compared"
    assert any("rank3" in note and "stack.json" in note for note in found.notes)
    (both[1] / "step0" / "rank3" / "stack.json").write_text("{}")
    (both[1] / "step0" / "rank2" / "run.json").write_text(json.dumps([]))
    assert any("rank2" in note and "run.json" in note for note in compare(*both).notes)


def _round_all(rank: int, data: dict[str, Any]) -> None:
    _round(-1, data)


def _round(rank: int, data: dict[str, Any]) -> None:
    """Every result is off by rounding, as between two machines; one rank is wrong."""
    for record in data.values():
        for item in record["output"]:
            for key in ("Max", "Min", "Mean", "Norm"):
                item[key] *= 1 + 1e-7
    if rank == 5:
        data[RELU]["output"] = [tensor(9.0)]


def test_ranks_that_agree_but_for_rounding_do_not_stay_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, golden = _write(tmp_path / "target", 8, _round), _write(tmp_path / "golden", 8)
    kept = compare(target, golden)
    monkeypatch.setattr(comparison, "KEPT_ROWS", 2 * ROWS)
    found = compare(target, golden)
    assert [isinstance(unit.groups, list) for unit in found.units] == [True] * 2 + [False] * 3 + [True] + [False] * 2
    assert found.summary() == kept.summary()
    assert (found.origin.name, found.origin.rank) == (RELU, 5) if found.origin else False
    for unit, same in zip(found.units, kept.units):
        assert [(row.name, row.judgement, row.measurement) for row in unit.rows()] == [
            (row.name, row.judgement, row.measurement) for row in same.rows()
        ]
        assert len(unit.groups) == len(same.groups)


def _count_rows() -> int:
    gc.collect()
    return sum(type(one) is Row for one in gc.get_objects())


def _leave_out(rank: int, data: dict[str, Any]) -> None:
    """Where a call is missing, the flow of values says what follows from it."""
    del data[RELU]


def test_the_flow_of_values_of_a_step_does_not_stay(tmp_path: Path) -> None:
    """Also while the collector is off, as in `msprobe compare` and `msprobe view`."""
    target, golden = _write(tmp_path / "target", 6, _leave_out), _write(tmp_path / "golden", 6)
    seen = []

    def watch(outcomes: Iterable[Any], total: int, text: str) -> Iterator[Any]:
        for outcome in outcomes:
            yield outcome
            seen.append(sum(type(one) is Graph for one in gc.get_objects()))

    gc.collect()
    gc.disable()
    try:
        compare(target, golden, progress=watch)
    finally:
        gc.enable()
    assert len(seen) == 6
    assert not any(seen)


def test_no_row_of_such_ranks_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, golden = _write(tmp_path / "target", 6, _round_all), _write(tmp_path / "golden", 6)
    monkeypatch.setattr(comparison, "KEPT_ROWS", 0)
    before, seen = _count_rows(), []

    def watch(outcomes: Iterable[Any], total: int, text: str) -> Iterator[Any]:
        for outcome in outcomes:
            yield outcome
            seen.append(_count_rows() - before)

    found = compare(target, golden, progress=watch)
    assert found.verdict == "same"
    each = sum(found.counts.values()) // 6
    assert max(seen) <= 2 * each  # those of the unit at hand, not of all six
    assert sum(1 for _ in found.rows()) == 6 * each


@pytest.mark.fast
@given(st.lists(st.floats(-1e5, 1e5, allow_nan=False), min_size=8, max_size=8), st.integers(1, 9))
def test_the_quick_distance_of_usual_tensors_is_the_distance(values: list[float], size: int) -> None:
    sides: list[dict[str, Any]] = []
    for numbers in (values[:4], values[4:]):
        item: dict[str, Any] = {
            "shape": [size],
            "dtype": "torch.float32",
            **dict(zip(("Max", "Min", "Mean", "Norm"), numbers)),
        }
        sides.append({**item, "Norm": abs(item["Norm"])})
    quick = distance.of_statistics(*sides)
    pairs = [(sides[0][key], sides[1][key]) for key in ("Max", "Min", "Mean", "Norm")]
    assert quick == distance._largest(pairs, *sides)


@pytest.mark.fast
@given(st.lists(st.floats(-1e5, 1e5) | st.just(float("nan")), min_size=4, max_size=4), st.integers(0, 9))
def test_the_quick_scale_of_usual_tensors_is_the_scale(values: list[float], size: int) -> None:
    """Statistics in quotes, as some dumps have NaN, are never taken as usual."""
    item: dict[str, Any] = {"shape": [size], **dict(zip(("Max", "Min", "Mean", "Norm"), values))}
    quoted = {key: str(value) if isinstance(value, float) else value for key, value in item.items()}
    assert repr(distance.scale(item)) == repr(distance.scale(quoted))  # NaN is not equal to itself
