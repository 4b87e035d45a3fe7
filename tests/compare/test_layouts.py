"""Runs in different layouts, against one device and each other: put together, judged, and the fault named."""

from __future__ import annotations

from pathlib import Path

import pytest
from layout_dumps import write_run

from msprobe.compare import compare

pytestmark = pytest.mark.fast


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("single"))


@pytest.mark.parametrize("mesh", [True, False])
@pytest.mark.parametrize(("dp", "tp"), [(1, 2), (2, 1), (2, 2), (1, 4), (4, 2)])
def test_a_clean_layout_is_the_same_as_one_device(tmp_path: Path, single: Path, dp: int, tp: int, mesh: bool) -> None:
    result = compare(write_run(tmp_path, dp, tp, mesh=mesh), single)
    assert [(row.name, row.reason) for _, row in result.rows() if row.verdict in ("warning", "error")] == []
    assert result.verdict == "same"
    assert compare(single, tmp_path).verdict == "same"


@pytest.mark.parametrize(("ours", "theirs"), [((1, 2), (1, 4)), ((2, 1), (1, 2)), ((2, 2), (1, 2)), ((4, 1), (2, 2))])
def test_one_layout_against_another(tmp_path: Path, ours: tuple[int, int], theirs: tuple[int, int]) -> None:
    target, golden = write_run(tmp_path / "a", *ours), write_run(tmp_path / "b", *theirs)
    assert compare(target, golden).verdict == "same"
    wrong = write_run(tmp_path / "c", *ours, fault="one rank")
    origin = compare(wrong, golden).origin
    assert origin is not None
    assert origin.name == "Functional.relu.1.forward"
    assert origin.ranks == (ours[0] * ours[1] - 1,)


def test_the_layout_is_said_once_with_its_dimensions(tmp_path: Path, single: Path) -> None:
    notes = compare(write_run(tmp_path, 2, 2), single).notes
    (said,) = [note for note in notes if note.startswith("layout of the target")]
    assert "dp = ranks 0, 2" in said
    assert "tp = ranks 0, 1" in said
    assert "rows agree" in said


CASES = [
    (1, 2, "missing all-reduce", "missing all-reduce", "Functional.linear.3.forward", "tp", (0, 1)),
    (2, 2, "missing all-reduce", "missing all-reduce", "Functional.linear.3.forward", "tp", (0, 1, 2, 3)),
    (1, 2, "reduced twice", "reduced twice", "Module.1.down.L.forward.0", "tp", (0, 1)),
    (1, 4, "mean for sum", "wrong factor", "Functional.linear.3.forward", "tp", (0, 1, 2, 3)),
    (2, 2, "wrong group", "wrong group", "Functional.linear.3.forward", "dp", (0, 1, 2, 3)),
    (1, 2, "mis-sliced", "shard mis-sliced", "Module.1.up.L.forward.0.parameters.weight", "tp", (1,)),
    (2, 1, "stale weight", "replica not synchronised", "Module.1.down.L.forward.0.parameters.weight", "dp", (1,)),
    (2, 1, "not averaged", "gradient not averaged", "Tensor.add_.0.forward", "dp", (0, 1)),
    (2, 2, "summed", "gradient not averaged", "Tensor.add_.0.forward", "dp", (0, 1, 2, 3)),
    (2, 1, "same data", "shard mis-sliced", "Functional.linear.0.forward", "dp", (1,)),
]


@pytest.mark.parametrize(("dp", "tp", "fault", "kind", "name", "dimension", "ranks"), CASES)
def test_a_planted_fault_is_named_with_its_ranks(
    tmp_path: Path,
    single: Path,
    dp: int,
    tp: int,
    fault: str,
    kind: str,
    name: str,
    dimension: str,
    ranks: tuple[int, ...],
) -> None:
    result = compare(write_run(tmp_path, dp, tp, fault), single)
    origin = result.origin
    assert result.exit_code == 1
    assert origin is not None
    assert (origin.kind, origin.name) == (kind, name), origin.sentence
    assert origin.dimension == dimension
    assert origin.ranks == ranks
    assert origin.sentence.startswith(kind) or kind == "call"
