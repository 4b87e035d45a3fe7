"""Faults of parallel runs beyond those of test_layouts: calls, orders and shards of some ranks, and by statistics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from layout_dumps import write_run, write_sequence

from msprobe.cli import main
from msprobe.compare import compare

pytestmark = pytest.mark.fast


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("single"))


def test_a_call_that_only_one_rank_makes_is_named(tmp_path: Path, single: Path) -> None:
    origin = compare(write_run(tmp_path, 2, 1, "extra call"), single).origin
    assert origin is not None
    assert (origin.kind, origin.ranks) == ("extra call", (1,))
    assert "only rank 1 calls Torch.dropout.0.forward" in origin.sentence


@pytest.mark.parametrize("ranks", [(1,), (0, 1)])
def test_another_argument_of_the_rank_that_differs_is_named(
    tmp_path: Path, single: Path, ranks: tuple[int, ...]
) -> None:
    run = write_run(tmp_path, 2, 1, "one rank")
    for rank in ranks:
        file = run / "step0" / f"rank{rank}" / "dump.json"
        content = json.loads(file.read_text())
        content["data"]["Functional.relu.1.forward"]["input_kwargs"]["inplace"] = {"type": "bool", "value": True}
        file.write_text(json.dumps(content))
    origin = compare(run, single).origin
    assert origin is not None
    assert origin.name == "Functional.relu.1.forward"
    said = "was called with a different argument on rank 1: inplace is True, not None"
    assert (said in origin.sentence) == (ranks == (1,))


def test_the_rank_whose_stored_shard_differs_is_named(tmp_path: Path, single: Path) -> None:
    """Every rank gathers the weight, so all have the wrong one: the shard that differs says whose it is."""
    origin = compare(write_run(tmp_path, 2, 1, "stored shard"), single).origin
    assert origin is not None
    assert (origin.kind, origin.ranks) == ("weight", (1,))
    assert "that rank 1 keeps" in origin.sentence


def test_a_balanced_sequence_agrees_and_one_in_order_does_not(tmp_path: Path) -> None:
    golden = write_sequence(tmp_path / "golden")
    assert compare(write_sequence(tmp_path / "clean", 2), golden).verdict == "same"
    origin = compare(write_sequence(tmp_path / "wrong", 2, "not balanced"), golden).origin
    assert origin is not None
    assert origin.name == "Torch.sin.0.forward"


@pytest.mark.parametrize(
    ("dp", "tp", "fault", "kind", "ranks"),
    [
        (2, 1, "stale weight", "replica not synchronised", (1,)),
        (1, 2, "missing all-reduce", "missing all-reduce", (0, 1)),
        (1, 2, "reduced twice", "reduced twice", (0, 1)),
        (2, 1, "summed", "gradient not averaged", (0, 1)),
    ],
)
def test_statistics_name_the_kind_and_the_ranks(
    tmp_path: Path, dp: int, tp: int, fault: str, kind: str, ranks: tuple[int, ...]
) -> None:
    golden = write_run(tmp_path / "golden", saves=False)
    origin = compare(write_run(tmp_path / "wrong", dp, tp, fault, saves=False), golden).origin
    assert origin is not None
    assert (origin.kind, origin.ranks) == (kind, ranks), origin.sentence


def _write_names(run: Path, names: list[list[str]]) -> None:
    for place, own in enumerate(names):
        step = {"event": "optimizer_step", "type": "torch.optim.SGD", "groups": [{"lr": 0.1, "names": own}]}
        folder = run / "step0" / ("rank" if len(names) == 1 else f"rank{place}")
        (folder / "training.json").write_text(json.dumps({"events": [step]}))


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        ([["a.weight", "a.bias", "b.weight"], ["a.weight", "a.bias", "b.weight"]], ()),
        ([["module.a.weight", "module.a.bias", "module.b.weight"]] * 2, ()),
        ([["a.weight", "a.bias"], ["b.weight"]], ()),
        ([["a.weight", "a.bias"], ["a.weight", "a.bias"]], (0, 1)),
        ([["a.weight", "a.bias", "b.weight"], ["a.weight", "a.bias"]], (1,)),
        ([["fused.weight", "a.bias"], ["fused.weight", "a.bias"]], ()),
    ],
)
def test_a_parameter_that_no_optimizer_updates_is_named(
    tmp_path: Path, names: list[list[str]], ranks: tuple[int, ...]
) -> None:
    golden, target = write_run(tmp_path / "golden"), write_run(tmp_path / "target", 2, 1)
    _write_names(golden, [["a.weight", "a.bias", "b.weight"]])
    _write_names(target, names)
    result = compare(target, golden)
    assert (result.verdict == "same") == (not ranks)
    if ranks:
        assert result.origin is not None
        assert result.origin.ranks == ranks
        assert "does not update b.weight" in result.origin.sentence


def _harm(run: Path, other: Path, harm: str) -> None:
    own = run / "step0" / "rank1"
    if harm == "a missing rank":
        own.rename(run / "elsewhere")
    elif harm == "another run":
        own.rename(run / "elsewhere")
        (other / "step0" / "rank1").rename(own)
    else:
        for rank, placement in ((0, "S(1)"), (1, "S(0)")):
            file = run / "step0" / f"rank{rank}" / "dump.json"
            content = json.loads(file.read_text())
            weight = content["data"]["Module.1.up.L.forward.0"]["parameters"]["weight"]
            weight["layout"] = {"shape": [6, 12], "mesh": 0, "placements": ["R", placement]}
            file.write_text(json.dumps(content))


@pytest.mark.parametrize("golden", ["one device", "a layout"])
@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        ("a missing rank", "rank 1 of 2 is missing"),
        ("another run", "are not from the same run"),
        ("placements", "contradict each other"),
    ],
)
def test_a_bad_layout_is_one_error_and_exit_2(
    tmp_path: Path, single: Path, capsys: pytest.CaptureFixture[str], harm: str, sentence: str, golden: str
) -> None:
    run, other = write_run(tmp_path / "run", 1, 2), write_run(tmp_path / "other", 2, 2)
    _harm(run, write_run(tmp_path / "third", 1, 4), harm)
    assert main(["compare", str(run), str(single if golden == "one device" else other)]) == 2
    said = capsys.readouterr()
    assert sentence in said.err + said.out
    assert "Traceback" not in said.err
    assert "Same" not in said.out
