"""Classes of answers that fresh parallel scripts brought up: places, ranks and what must not be covered."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from layout_dumps import Rank, write_run
from written import call, tensor, write_dump

from msprobe.compare import compare
from msprobe.compare.align.plan import plan
from msprobe.compare.calls import BACKWARD, FORWARD, calls_of
from msprobe.compare.layout.faults import reductions

pytestmark = pytest.mark.fast


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("single"))


def _edit(root: Path, file: str, change: Callable[[int, Any], None]) -> None:
    for number, one in enumerate(sorted(root.glob(f"step0/rank*/{file}"))):
        content = json.loads(one.read_text())
        change(number, content)
        one.write_text(json.dumps(content))


def test_two_dimensions_of_the_mesh_may_cut_one_axis(tmp_path: Path, single: Path) -> None:
    """HSDP: both dimensions cut the batch, and a rank's part is not looked for where one of them alone would be."""

    def arrange(rank: int, run: Any) -> None:
        mesh = {"names": ["replicate", "shard"], "ranks": [[0, 1], [2, 3]], "coordinate": [rank // 2, rank % 2]}
        run["parallel"]["meshes"] = [mesh]

    target = write_run(tmp_path, 4, 1, "one rank")
    _edit(target, "run.json", arrange)
    origin = compare(target, single).origin
    assert origin is not None
    assert (origin.kind, origin.name, origin.ranks) == ("call", "Functional.relu.1.forward", (3,))


def test_a_weight_that_differs_is_not_covered_by_results_that_agree(tmp_path: Path, single: Path) -> None:
    def spoil(rank: int, dump: Any) -> None:
        weight = dump["data"]["Module.1.up.L.forward.0"]["parameters"]["weight"]
        if rank == 1:
            weight["data_name"] = dump["data"]["Module.0.up.L.forward.0"]["parameters"]["weight"]["data_name"]

    target = write_run(tmp_path, 2, 1)
    _edit(target, "dump.json", spoil)
    origin = compare(target, single).origin
    assert origin is not None
    assert (origin.kind, origin.ranks) == ("replica not synchronised", (1,))
    assert origin.name == "Module.1.up.L.forward.0.parameters.weight"


@pytest.mark.parametrize("wrong", [(0, 1), (0,)])
def test_a_plain_argument_is_named_with_its_ranks(tmp_path: Path, wrong: tuple[int, ...]) -> None:
    def give(ranks: tuple[int, ...]) -> Callable[[int, Any], None]:
        def change(rank: int, dump: Any) -> None:
            record = dump["data"]["Functional.relu.1.forward"]
            for one in (record, dump["data"]["Module.1.B.forward.0"]) if rank in ranks else ():
                one["output"] = [one["input_args"][0]]
            record["input_args"].append({"type": "float", "value": 1.0 if rank in ranks else 0.0})

        return change

    golden, target = write_run(tmp_path / "golden"), write_run(tmp_path / "target", 2, 1)
    _edit(golden, "dump.json", give(()))
    _edit(target, "dump.json", give(wrong))
    origin = compare(target, golden).origin
    assert origin is not None
    assert (origin.kind, origin.ranks) == ("argument", wrong)


def test_many_calls_of_parallel_code_do_not_make_another_model(tmp_path: Path, single: Path) -> None:
    def exchange(rank: int, dump: Any) -> None:
        more = {f"Tensor.chunk.{number}.forward": call(tensor(1.0), output=tensor(1.0)) for number in range(60)}
        dump["data"] = {**more, **dump["data"]}

    target = write_run(tmp_path, 1, 2, "missing all-reduce")
    _edit(target, "dump.json", exchange)
    origin = compare(target, single).origin
    assert origin is not None
    assert (origin.kind, origin.ranks) == ("missing all-reduce", (0, 1))


def test_equal_shapes_of_parts_do_not_mislead_the_alignment() -> None:
    """The results of three projections are cut, that of the fourth is not: it has the shape of the first one's."""

    def made(widths: list[int], more: bool) -> list[Any]:
        data: dict[str, Any] = {}
        for number, width in enumerate(widths):
            data[f"Functional.linear.{number}.forward"] = call(
                tensor(number + width, [8, 32]), tensor(1.0, [width, 32]), output=tensor(number + width, [8, width])
            )
            if more:
                data[f"Tensor.clone.{number}.forward"] = call(tensor(5.0), output=tensor(5.0 + number))
        return calls_of(data, {})

    target, golden = made([16, 16, 16, 32], more=True), made([32, 32, 32, 32], more=False)
    found = {m.target.name: m.golden.name for m in plan(target, golden, of_parts=True) if m.target and m.golden}
    assert found == {
        f"Functional.linear.{number}.forward": f"Functional.linear.{number}.forward" for number in range(4)
    }


def test_what_made_a_part_of_a_gradient_is_a_backward() -> None:
    """The backward of a function of the user makes calls that are recorded as forward ones."""
    layout = SimpleNamespace(target=SimpleNamespace(placements=("P",)))
    part = SimpleNamespace(is_input=False, joined=SimpleNamespace(layout=layout, explained=True))

    def group(direction: str) -> Any:
        made = SimpleNamespace(direction=direction, kind="api")
        return SimpleNamespace(how="exact", call=made), [part]

    trace: Any = SimpleNamespace(groups=[group(FORWARD), group(BACKWARD), group(FORWARD)])
    assert reductions._maker(2, trace, BACKWARD) == 1


@pytest.mark.parametrize(
    ("fault", "kind", "name", "ranks"),
    [
        ("same data", "shard mis-sliced", "Functional.linear.0.forward", (0, 1)),
        ("extra call", "extra call", "Functional.linear.3.forward", (1,)),
    ],
)
def test_statistics_name_the_ranks_where_they_show_them(
    tmp_path: Path, fault: str, kind: str, name: str, ranks: tuple[int, ...]
) -> None:
    golden = write_run(tmp_path / "golden", saves=False)
    origin = compare(write_run(tmp_path / "target", 2, 1, fault, saves=False), golden).origin
    assert origin is not None
    assert (origin.kind, origin.name, origin.ranks) == (kind, name, ranks)


def test_the_same_sum_on_every_rank_is_no_part_of_the_data(tmp_path: Path) -> None:
    golden = write_run(tmp_path / "golden", saves=False)
    origin = compare(write_run(tmp_path / "target", 2, 2, "wrong group", saves=False), golden).origin
    assert origin is not None
    assert origin.kind != "shard mis-sliced"


def test_a_slice_that_is_larger_than_the_complete_tensor_is_wrong(tmp_path: Path) -> None:
    def enlarge(rank: int, dump: Any) -> None:
        for record in (dump["data"][name] for name in ("Functional.relu.1.forward", "Module.1.B.forward.0")):
            if rank == 1:
                record["output"][0]["Max"] += 9.0

    golden, target = write_run(tmp_path / "golden", saves=False), write_run(tmp_path / "target", 2, 1, saves=False)
    _edit(target, "dump.json", enlarge)
    origin = compare(target, golden).origin
    assert origin is not None
    assert (origin.name, origin.ranks) == ("Functional.relu.1.forward", (1,))


def test_statistics_say_what_they_do_not_show(tmp_path: Path) -> None:
    golden = write_run(tmp_path / "golden", saves=False)
    origin = compare(write_run(tmp_path / "target", 1, 2, "mis-sliced", saves=False), golden).origin
    assert origin is not None
    assert origin.ranks == ()
    (said,) = [one for one in origin.evidence if "on which rank" in one]
    assert "--next-config" in said


def test_a_sum_of_numbers_that_was_not_reduced_is_found_in_statistics(tmp_path: Path) -> None:
    """The mean of one element is its value."""
    shares = {"golden": [20.0], "target": [8.0, 12.0]}
    for side, values in shares.items():
        for number, value in enumerate(values):
            rank = Rank(tmp_path, saves=False)
            rank.call("Tensor.pow.0.forward", [np.ones((8 // len(values), 2))], np.ones((8 // len(values), 2)), None)
            rank.call("Tensor.sum.0.forward", [np.ones((8 // len(values), 2))], value, None)
            rank.call("Tensor.sqrt.0.forward", [value], np.sqrt(value), None)
            run = {"msprobe": "0", "world_size": len(values), "settings": {"precision": "high"}}
            write_dump(tmp_path / side, rank.data, rank.parents, rank=number if len(values) > 1 else None, run=run)
    origin = compare(tmp_path / "target", tmp_path / "golden").origin
    assert origin is not None
    assert (origin.kind, origin.name, origin.ranks) == ("missing all-reduce", "Tensor.sum.0.forward", (0, 1))


def test_a_wrong_factor_of_clipping_is_not_taken_for_a_norm_in_other_parts(tmp_path: Path) -> None:
    def clip(factor: float) -> Callable[[int, Any], None]:
        def change(rank: int, dump: Any) -> None:
            update = dump["data"].pop("Tensor.add_.0.forward")
            gradient = update["input_args"][1]
            number = {**tensor(1.0, shape=[]), **dict.fromkeys(("Max", "Min", "Mean", "Norm"), factor)}
            clipped = {**gradient, **{key: gradient[key] * factor for key in ("Max", "Min", "Mean", "Norm")}}
            clips = {"input_args": [gradient, number], "input_kwargs": {}, "output": [clipped]}
            update["input_args"][1] = clipped
            dump["data"].update({"Tensor.mul_.0.forward": clips, "Tensor.add_.0.forward": update})

        return change

    target, golden = (write_run(tmp_path / str(ranks), ranks, 1, saves=False) for ranks in (2, 1))
    _edit(golden, "dump.json", clip(0.5))
    _edit(target, "dump.json", clip(0.6))
    result = compare(target, golden)
    assert result.origin is not None
    assert result.origin.name == "Tensor.mul_.0.forward"
    assert "agree" not in result.origin.sentence
    given = next(row for _, row in result.rows() if row.name == "Tensor.mul_.0.forward.input.1")
    assert given.verdict == "error"
