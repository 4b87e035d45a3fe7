"""What two layouts do differently and rightly: own experts, own divisors, updates in the order of their stages."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from layout_dumps import BATCH, WIDTH, Rank, batch, write_run
from written import call, tensor, write_dump

from msprobe.compare import compare
from msprobe.compare.calls import Call, Match
from msprobe.compare.layout import settling
from msprobe.compare.layout.case import Case
from msprobe.compare.layout.covering import cover_inputs
from msprobe.compare.layout.joined import Held, sort_by_target
from msprobe.compare.layout.owned import take_owned
from msprobe.compare.layout.parts import Part
from msprobe.compare.layout.search import Memory, search
from msprobe.compare.layout.shards import Place, Shards
from msprobe.compare.layout.unit import _Rows
from msprobe.compare.layout.updates import Label, pair_by_parameter, separate_parameters
from msprobe.compare.layout.ways import Way, assemble, free_ways, possible_ways
from msprobe.compare.origin.optimizer_steps import innermost_steps
from msprobe.compare.origin.training import training_differences
from msprobe.compare.phases import Phase
from msprobe.compare.rows import ERROR, NOT_COMPARED, PASS, Judgement, Row

pytestmark = pytest.mark.fast
EXPERTS = 4
ONE = np.zeros((), dtype=np.int64)


def write_experts(root: Path, world: int, fault: str = "") -> Path:
    """A module whose tokens go to one of four experts each; with several ranks, each has some of the experts."""
    tokens, chosen = batch(), np.arange(BATCH) % EXPERTS
    if fault == "tokens":
        chosen[2] = 3  # the router sends this token to another expert
    made = np.random.default_rng(3)
    weights = [made.normal(size=(WIDTH, WIDTH)) for _ in range(EXPERTS)]
    normed = tokens / np.abs(tokens).max()
    outs = np.empty_like(tokens)
    ranks = [Rank(root / "step0" / ("rank" if world == 1 else f"rank{number}"), True) for number in range(world)]
    around = "Module.moe.Moe.forward.0"
    for number, rank in enumerate(ranks):
        own = np.array_split(np.arange(BATCH), world)[number]
        rank.call("Module.norm.Norm.forward.0", [tokens[own]], normed[own], None)
        held = np.array_split(np.arange(EXPERTS), world)[number]
        for place, expert in enumerate(held):
            name = f"Module.moe.experts.{expert}.Expert.forward.0"
            given, weight = normed[chosen == expert], weights[expert]
            if fault == "weight" and expert == 3:
                weight = weight * 1.1
            result = given @ weight
            if fault == "result" and expert == 3:
                result = result * 1.1
            outs[chosen == expert] = result
            rank.call(f"Functional.linear.{place}.forward", [given, weight], result, name)
            rank.call(name, [given], result, around, weight=weight)
    for number, rank in enumerate(ranks):
        own = np.array_split(np.arange(BATCH), world)[number]
        rank.call(around, [normed[own]], outs[own], None)
        run: dict[str, Any] = {"msprobe": "0", "world_size": world, "settings": {"precision": "high"}}
        write_dump(root, rank.data, rank.parents, rank=None if world == 1 else number, task="tensor", run=run)
    return root


@pytest.mark.parametrize("world", [2, 4])
def test_experts_of_ranks_are_the_experts_of_one_device(tmp_path: Path, world: int) -> None:
    single = write_experts(tmp_path / "single", 1)
    result = compare(write_experts(tmp_path / "ranks", world), single)
    assert result.verdict == "same"
    compared = {row.name for _, row in result.rows() if row.verdict == PASS}
    for expert in range(EXPERTS):
        assert f"Module.moe.experts.{expert}.Expert.forward.0.output.0" in compared
        assert f"Functional.linear.{expert}.forward.output.0" in compared
    assert compare(single, tmp_path / "ranks").verdict == "same"


@pytest.mark.parametrize(("fault", "name"), [("weight", "Expert.forward.0.parameters.weight"), ("result", "linear.3")])
def test_a_wrong_expert_is_named_with_its_rank(tmp_path: Path, fault: str, name: str) -> None:
    found = compare(write_experts(tmp_path / "ranks", 2, fault), write_experts(tmp_path / "single", 1)).origin
    assert found is not None
    assert name in found.name
    assert found.module == "Module.moe.experts.3.Expert"
    assert found.ranks == (1,)


def test_experts_that_got_other_numbers_of_tokens_are_named(tmp_path: Path) -> None:
    result = compare(write_experts(tmp_path / "ranks", 2, "tokens"), write_experts(tmp_path / "single", 1))
    assert result.verdict != "same"
    (said,) = [note for note in result.notes if note.startswith("tokens per expert")]
    assert said == "tokens per expert differ: moe.experts.2 got 1, not 2; moe.experts.3 got 3, not 2"
    clean = compare(write_experts(tmp_path / "clean", 2), tmp_path / "single")
    assert not [note for note in clean.notes if note.startswith("tokens per expert")]


def _call(name: str, order: int) -> Call:
    key, number, direction = name.rsplit(".", 2)
    return Call(name, "api", key, int(number), direction, None, order, False, {})


def test_updates_are_paired_by_their_parameters() -> None:
    names = [f"Tensor.mul_.{number}.forward" for number in range(3)]
    ours, theirs = ([_call(name, order) for order, name in enumerate(names)] for _ in range(2))
    left = {names[0]: Label("b", "mul_", True, 0), names[1]: Label("a", "mul_", True, 0)}
    right = {names[0]: Label("a", "mul_", True, 0), names[1]: Label("b", "mul_", True, 0)}
    pairs = pair_by_parameter(ours, theirs, left, right)
    assert [(m.target.name, m.golden.name) for m in pairs if m.target and m.golden] == [
        (names[0], names[1]),
        (names[1], names[0]),
    ]
    right[names[1]] = Label("c", "mul_", True, 0)  # another parameter: no counterpart
    assert [m.call.name for m in pair_by_parameter(ours, theirs, left, right)] == [names[1]]
    matches = [Match(one, other, "exact", 1.0) for one, other in zip(ours[1:], theirs[1:])]
    apart = [
        (m.target and m.target.name, m.golden and m.golden.name) for m in separate_parameters(matches, left, right)
    ]
    assert apart == [(names[1], None), (None, names[1]), (names[2], names[2])]


STEP, END = {"event": "optimizer_step"}, {"event": "optimizer_step_end"}


def test_a_wrapper_around_an_optimizer_is_no_step_of_its_own() -> None:
    """ZeroRedundancyOptimizer runs the step of AdamW for its share of the parameters."""
    outer, inner, later = ({**STEP, "type": name} for name in ("ZeroRedundancyOptimizer", "AdamW", "SGD"))
    assert innermost_steps([outer, inner, END, END, later, END]) == [inner, later]
    assert innermost_steps([inner, END, later, END]) == [inner, later]
    plain: dict[str, Any] = {**STEP, "type": "AdamW", "groups": [{"lr": 0.1}]}
    wrapped: list[dict[str, Any]] = [{**plain, "type": "ZeroRedundancyOptimizer"}, plain, END, END]
    assert training_differences(wrapped, [plain, END]) == []
    (said,) = training_differences(wrapped, [{**plain, "groups": [{"lr": 0.2}]}, END])
    assert said.sentence == "AdamW: lr is 0.1, not 0.2"


def test_a_loss_may_be_averaged_over_ranks_and_summed_over_microbatches() -> None:
    mixed = Way(("A", "P"), (1, 0))
    assert mixed in possible_ways([], [], [2, 2])
    assert mixed not in possible_ways([2], [2], [2, 2])
    shards = np.empty((2, 2), dtype=object)
    for place in np.ndindex(2, 2):
        shards[place] = np.array(float(place[0] * 10 + place[1]))
    assert assemble(shards, mixed)[0] == (0 + 1 + 10 + 11) / 2


def test_shards_that_fit_in_no_way_have_no_layout(tmp_path: Path) -> None:
    """The shapes of two ranks need not fit, although that of the first alone fits the golden one."""
    source: Any = SimpleNamespace(tensor_path=lambda name: tmp_path / name)

    def save(name: str, *shape: int) -> dict[str, Any]:
        np.save(tmp_path / name, np.ones(shape, np.float32))
        return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(shape), "data_name": name}

    items = [save("first.npy", 2, 4), save("second.npy", 2, 3)]
    target = Shards([Place(rank, 0, source, "a") for rank in (0, 1)], items, ("tp",), np.arange(2))
    golden = Shards([Place(0, 0, source, "a")], [save("golden.npy", 4, 4)], (), ONE)
    call = _call("Torch.a.0.forward", 0)
    row = Row(Match(call, call, "exact", 1.0), "output.0", "output.0", items[0], golden.first)
    case = Case(row, Phase.FORWARD, target, golden, ("kind",))
    search(case, None, Memory())
    assert case.layout is None


def test_what_only_a_pipeline_calls_stands_where_it_called_it() -> None:
    ours = [_call(f"Torch.a.{number}.forward", number) for number in range(3)]
    theirs = [_call(f"Torch.b.{number}.forward", number) for number in range(4)]
    matches = [
        Match(ours[0], theirs[2], "sequence", 0.9),
        Match(ours[1], theirs[0], "sequence", 0.9),
        Match(ours[2], None, "unmatched", 0.0),
        Match(None, theirs[1], "unmatched", 0.0),
        Match(None, theirs[3], "unmatched", 0.0),
    ]
    found = [(m.target or m.golden).name for m in sort_by_target(matches)]  # type: ignore[union-attr]
    assert found == [
        "Torch.a.0.forward",
        "Torch.b.3.forward",
        "Torch.a.1.forward",
        "Torch.b.1.forward",
        "Torch.a.2.forward",
    ]


@pytest.mark.parametrize("agrees", [True, False])
def test_other_divisors_do_not_matter_where_the_results_agree(agrees: bool) -> None:
    match = Match(_call("Tensor.div_.0.forward", 0), _call("Tensor.div_.0.forward", 0), "exact", 1.0)
    item = {"dtype": "torch.float32", "shape": [2], "Norm": 1.0}
    rows = [
        Row(match, "input.0", "input.0", {**item, "Norm": 2.0}, item),
        Row(match, "input.1", "input.1", {"type": "int", "value": 4}, {"type": "int", "value": 2}),
        Row(match, "output.0", "output.0", item, item),
    ]
    for row, verdict in zip(rows, (ERROR, ERROR, PASS if agrees else ERROR)):
        row.judgement = Judgement(verdict)
    found: dict[int, Judgement] = {}
    cover_inputs([(match, rows)], found)
    assert not found  # both runs take the batch in one part: why should they divide by other numbers?
    cover_inputs([(match, rows)], found, microbatches=2)
    covered = [row.slot for row in rows if id(row) in found and found[id(row)].verdict == NOT_COMPARED]
    assert covered == (["input.0", "input.1"] if agrees else [])


@pytest.mark.parametrize(("after", "covered"), [(False, ["input.0"]), (True, [])])
def test_another_input_matters_after_the_backward_though_the_result_agrees(after: bool, covered: list[str]) -> None:
    """Clipping gives the same result for gradients that are all twice as large."""
    item = {"dtype": "torch.float32", "shape": [2], "Norm": 1.0}
    groups = []
    for place, name in enumerate(["Torch.a.0.forward", "Torch.a.0.backward"] if after else []):
        one = _call(name, place)
        groups.append(
            (Match(one, one, "exact", 1.0), [Row(Match(one, one, "exact", 1.0), "output.0", "output.0", item, item)])
        )
    last = _call("Tensor.mul_.0.forward", 2)
    match = Match(last, last, "exact", 1.0)
    rows = [
        Row(match, "input.0", "input.0", {**item, "Norm": 2.0}, item),
        Row(match, "output.0", "output.0", item, item),
    ]
    for row, verdict in zip(rows, (ERROR, PASS)):
        row.judgement = Judgement(verdict)
    found: dict[int, Judgement] = {}
    cover_inputs([*groups, (match, rows)], found)
    assert [row.slot for row in rows if id(row) in found] == covered


def test_what_is_the_same_on_every_rank_does_not_hide_a_factor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum of two copies is a gradient of twice the size: only the rows after the first tell which it is."""
    monkeypatch.setattr(settling, "SAMPLE", 2)
    target, golden = write_run(tmp_path / "a", 1, 2), write_run(tmp_path / "b", 2, 2)
    assert compare(target, golden).verdict == "same"


def test_two_dimensions_cut_one_axis_in_either_order() -> None:
    """FSDP2 on top of tensor parallelism cuts each tensor-parallel slice again."""
    ways = [way for way in free_ways([2], [2, 2]) if way.placements == ("S(0)", "S(0)")]
    shards = np.empty((2, 2), dtype=object)
    for place in np.ndindex(2, 2):
        shards[place] = np.array([place[0] * 10 + place[1]])
    assert [assemble(shards, way)[0].tolist() for way in ways] == [[0, 1, 10, 11], [0, 10, 1, 11]]
    assert Way(("S(0)", "R"), (1, 0)) in free_ways([2], [2, 2])


def _add_exchange(root: Path, shape: list[int]) -> Path:
    """Every rank makes one more call, in the backward pass."""
    for file in root.rglob("dump.json"):
        content = json.loads(file.read_text())
        later = [(name, content["data"].pop(name)) for name in ("Functional.relu.1.backward", "Tensor.add_.0.forward")]
        item = tensor(1.0, shape)
        content["data"].update({"Distributed.all_reduce.7.forward": call(item, output=item), **dict(later)})
        file.write_text(json.dumps(content))
    return root


def test_exchanges_of_other_tensors_have_nothing_to_do_with_each_other(tmp_path: Path) -> None:
    target = _add_exchange(write_run(tmp_path / "a", 1, 2, saves=False), [3, 5])
    golden = _add_exchange(write_run(tmp_path / "b", 1, 4, saves=False), [7, 2, 2])
    result = compare(target, golden)
    (row,) = [row for _, row in result.rows() if "all_reduce.7" in row.name and row.slot == "output.0"]
    assert (row.verdict, row.judgement.reason.kind.name) == (NOT_COMPARED, "COVERED")
    assert result.verdict == "same"


def test_another_batch_on_each_rank_is_compared_rank_by_rank(tmp_path: Path) -> None:
    """Half the batch is no part of the golden run's: its ranks have other data, not copies."""
    golden = write_run(tmp_path / "b", 2, 1, mesh=False)
    target = write_run(tmp_path / "a", 4, 1, mesh=False)
    for rank in (2, 3):
        (target / f"step0/rank{rank}").rename(tmp_path / f"unused{rank}")
    for file in target.rglob("run.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "world_size": 2}))
    result = compare(target, golden)
    assert {unit.label for unit, _ in result.rows()} == {"step0/rank0", "step0/rank1"}
    assert result.verdict != "same"


def test_the_golden_run_says_how_its_own_tensors_are_split(tmp_path: Path) -> None:
    """Copies of one part of the data are no copies of what the golden run has split."""
    found = compare(write_run(tmp_path / "a", 2, 1, "same data"), write_run(tmp_path / "b", 2, 2)).origin
    assert found is not None
    assert (found.kind, found.ranks) == ("shard mis-sliced", (1,))
    assert "a different part of the data" in found.sentence


def test_a_division_by_another_number_is_judged_by_its_result(tmp_path: Path) -> None:
    golden = write_run(tmp_path / "b", 4, 1, "divided by 4")
    assert compare(write_run(tmp_path / "a", 2, 2, "divided by 2"), golden).verdict == "same"
    found = compare(write_run(tmp_path / "c", 2, 2, "divided by 1"), golden).origin
    assert found is not None
    assert (found.kind, found.name) == ("gradient not averaged", "Tensor.div_.0.forward")
    assert "summed, not averaged" in found.sentence


def test_a_group_is_wrong_against_another_layout_too(tmp_path: Path) -> None:
    found = compare(write_run(tmp_path / "a", 2, 2, "wrong group"), write_run(tmp_path / "b", 1, 2)).origin
    assert found is not None
    assert (found.kind, found.dimension) == ("wrong group", "dp")


def write_stages(root: Path, world: int, summed: bool = True) -> Path:
    """Two modules with one weight; with two ranks, each has one of them."""
    made = np.random.default_rng(5)
    grads = [made.normal(size=(4, 3)), made.normal(size=(4, 3))]
    for number in range(world):
        rank = Rank(root / "step0" / ("rank" if world == 1 else f"rank{number}"), True)
        names = ["first", "last"] if world == 1 else [["first"], ["last"]][number]
        for name in names:
            given = np.full((2, 4), 1.0 + (name == "last"))
            rank.call(f"Module.{name}.L.forward.0", [given], 2 * given, None, weight=np.ones((4, 3)))
        for name in names[::-1]:
            back = rank.item(np.full((2, 4), 3.0 + (name == "last")))
            rank.data[f"Module.{name}.L.backward.0"] = {"input": [back], "output": [back]}
            rank.data[f"Module.{name}.L.parameters_grad"] = {"weight": [rank.item(grads[name == "last"])]}
            rank.parents.update({f"Module.{name}.L.backward.0": None, f"Module.{name}.L.parameters_grad": None})
        given = sum(grads) if summed else grads[number]
        rank.call("Tensor.add_.0.forward", [np.ones((4, 3)), given], np.ones((4, 3)) - given, None)
        run: dict[str, Any] = {"msprobe": "0", "world_size": world, "settings": {"precision": "high"}}
        write_dump(root, rank.data, rank.parents, rank=None if world == 1 else number, task="tensor", run=run)
    return root


def test_a_weight_of_two_stages_needs_both_gradients(tmp_path: Path) -> None:
    found = compare(write_stages(tmp_path / "a", 2, summed=False), write_stages(tmp_path / "b", 1)).origin
    assert found is not None
    assert found.ranks == (0, 1)
    assert "gradient not summed" in found.sentence


@pytest.mark.parametrize("saves", [True, False])
def test_golden_copies_that_disagree_are_not_passed_over(tmp_path: Path, saves: bool) -> None:
    """The file says that every rank has a copy; the golden run's ranks have different tensors."""
    file = tmp_path / "layout.yaml"
    file.write_text('rows: {"Functional.linear.0.forward.input.0": {dp: R, tp: R}}')
    target, golden = (
        write_run(tmp_path / "a", 2, 1, "same data", saves=saves),
        write_run(tmp_path / "b", 2, 2, saves=saves),
    )
    rows = {row.name: row for _, row in compare(target, golden, layout=file).rows()}
    assert rows["Functional.linear.0.forward.input.0"].verdict == ERROR


def test_a_loop_of_parents_ends_the_search_for_own_calls() -> None:
    source: Any = SimpleNamespace()
    loop = [_call("Torch.a.0.forward", 0)._replace(parent="Torch.b.0.forward")]
    loop.append(_call("Torch.b.0.forward", 1)._replace(parent="Torch.a.0.forward"))
    expert = Call("Module.x.E.forward.0", "module", "Module.x.E", 0, "forward", None, 2, False, {})
    parts = [Part(rank, 0, source, [*loop, expert][: 3 - rank], {}) for rank in (0, 1)]
    shared, own = take_owned(parts, {"x"})
    assert [len(part.calls) for part in shared] == [2, 2]
    assert [[call.name for call in one.parts[0].calls] for one in own] == [[expert.name]]


@pytest.mark.parametrize(("frame", "places"), [("in _engine_run_backward, ", {2}), ("in step, ", set())])
def test_a_collective_that_the_engine_makes_may_work_on_a_gradient(frame: str, places: set[int]) -> None:
    """It is then scaled as gradients are: two layouts that cut the batch differently are the same."""
    names = (
        "Module.a.A.forward.0",
        "Module.a.A.backward.0",
        "Distributed.all_reduce.5.forward",
        "Module.b.B.backward.0",
    )
    parts = [(name, "backward" if ".backward" in name else "forward") for name in names]
    calls = [Call(name, "api", name, 0, way, None, order, False, {}) for order, (name, way) in enumerate(parts)]
    source: Any = SimpleNamespace(stacks={name: [f"File a.py, line 1, {frame}\n run()"] for name in names})
    held = {name: [Held(0, 0, source, name, {})] for name in names}
    run: Any = SimpleNamespace(calls=[], sources=[source], held=held)
    rows = _Rows([(Match(one, one, "exact", 1.0), []) for one in calls], run, run, None)
    assert rows._by_engine == places


def write_gradient_collective(root: Path, world: int, frame: str, saves: bool) -> Path:
    """The loss is the mean of a rank's own tokens: with two ranks, its gradients are twice those of one device. A
    collective in the backward passes such a gradient."""
    tokens, made = batch(), np.random.default_rng(9)
    grads = [made.normal(size=tokens.shape) for _ in range(3)]
    for number in range(world):
        rank = Rank(root / "step0" / ("rank" if world == 1 else f"rank{number}"), saves)
        own = np.array_split(np.arange(BATCH), world)[number]
        for name in "abc":
            rank.call(f"Module.{name}.M.forward.0", [tokens[own]], 2 * tokens[own], None)
        for name, grad in zip("cba", grads):
            if name == "a":
                rank.call("Distributed.all_reduce.0.forward", [world * grad[own]], world * grad[own], None)
            given = rank.item(world * grad[own])
            rank.data[f"Module.{name}.M.backward.0"] = {"input": [given], "output": [given]}
            rank.parents[f"Module.{name}.M.backward.0"] = None
        run: dict[str, Any] = {"msprobe": "0", "world_size": world, "settings": {"precision": "high"}}
        stacks = {"0": [["Distributed.all_reduce.0.forward"], [f"File a.py, line 1, {frame}, \n run()"]]}
        where = None if world == 1 else number
        task = "tensor" if saves else "statistics"
        write_dump(root, rank.data, rank.parents, stacks, rank=where, task=task, run=run)
    return root


@pytest.mark.parametrize("saves", [True, False])
@pytest.mark.parametrize(("frame", "same"), [("in _engine_run_backward", True), ("in train", False)])
def test_a_collective_of_the_backward_is_scaled_as_gradients_are(
    tmp_path: Path, frame: str, same: bool, saves: bool
) -> None:
    target = write_gradient_collective(tmp_path / "a", 2, frame, saves)
    golden = write_gradient_collective(tmp_path / "b", 1, frame, saves)
    assert (compare(target, golden).verdict == "same") is same
    assert (compare(golden, target).verdict == "same") is same
