"""The member "parallel" of run.json: valid values are read, invalid ones give one sentence."""

from __future__ import annotations

import copy
import json

import pytest

from msprobe.dump.errors import DumpError
from msprobe.dump.parallel import BatchPart, FlatPart, Layout, Mesh, Parallel, Placement
from msprobe.dump.reader import open_dump

SOUND = {
    "groups": {"default_pg": [0, 1, 2, 3], "mesh_tp": [2, 3]},
    "meshes": [
        {"names": ["dp", "tp"], "ranks": [[0, 1], [2, 3]], "coordinate": [1, 0]},
        {"names": None, "ranks": [3, 2], "coordinate": None},
    ],
    "pipeline": {
        "stages": 4,
        "stage": [1, 3],
        "schedule": "ScheduleInterleaved1F1B",
        "microbatches": 4,
        "models": [1, None],
    },
    "context": {"mesh": 1, "dimension": "cp", "order": "load_balanced", "sequence_dimension": [2]},
    "parameters": {
        "up.weight": {"shape": [8, 4], "mesh": 0, "placements": ["S(0,2)", "S(0)"]},
        "qkv": {"shape": [12], "mesh": 1, "placements": ["S(0)"], "stride": 3, "allreduce": False},
        "norm": {"shape": None, "mesh": None, "placements": ["R"], "sequence_parallel": True},
        "flat": {"flat": True, "parts": [["a.weight", [2, 3], 4, 6], ["a.bias", [3], 0, 3]]},
    },
    "batch": {"part": 1, "of": 2, "order": "strided"},
    "modules": {"layers.0": "layers.4"},
}


def dump_with(tmp_path, parallel):
    rank = tmp_path / "step0" / "rank2"
    rank.mkdir(parents=True)
    head = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
    (rank / "dump.json").write_text(json.dumps({**head, "data": {}}))
    (rank / "run.json").write_text(json.dumps({"parallel": parallel} if parallel is not None else {"world_size": 1}))
    return open_dump(tmp_path).ranks[0]


def test_everything_that_is_written_is_read(tmp_path):
    found = dump_with(tmp_path, SOUND).parallel
    grid = Mesh(("dp", "tp"), (2, 2), (0, 1, 2, 3), (1, 0))
    line = Mesh(None, (2,), (3, 2))
    assert found.meshes == (grid, line)
    assert found.groups == {"default_pg": (0, 1, 2, 3), "mesh_tp": (2, 3)}
    assert found.parameters == {
        "up.weight": Layout((8, 4), grid, (Placement("S", 0, 2), Placement("S", 0))),
        "qkv": Layout((12,), line, (Placement("S", 0),), stride=3, allreduce=False),
        "norm": Layout(None, None, (Placement("R"),), sequence_parallel=True),
    }
    assert found.flat == {"flat": (FlatPart("a.weight", (2, 3), 4, 6), FlatPart("a.bias", (3,), 0, 3))}
    assert found.modules == {"layers.0": "layers.4"}
    assert found.pipeline.models == (1, None)
    assert (found.pipeline.stages, found.pipeline.stage, found.pipeline.microbatches) == (4, (1, 3), 4)
    assert (found.context.mesh, found.context.order, found.context.sequence_dimension) == (line, "load_balanced", (2,))
    assert found.batch == BatchPart(1, 2, "strided")
    partial = found.layout_of({"layout": {"shape": [4], "mesh": 1, "placements": ["P(sum)"]}})
    assert partial.placements == (Placement("P", reduction="sum"),)


def test_a_run_on_one_device_is_not_spread(tmp_path):
    assert dump_with(tmp_path, None).parallel == Parallel()


@pytest.mark.parametrize("item", [None, 3, {}, {"layout": "torch.sparse_coo"}])
def test_a_tensor_without_a_layout_has_none(tmp_path, item):
    assert dump_with(tmp_path, SOUND).parallel.layout_of(item) is None


def test_ranks_have_their_places_in_a_grid():
    grid = Mesh(None, (2, 3), (0, 1, 2, 10, 11, 12))
    assert [grid.coordinate_of(rank) for rank in (0, 2, 10, 12, 7)] == [(0, 0), (0, 2), (1, 0), (1, 2), None]


@pytest.mark.parametrize("text", ["S(0)", "S(1,4)", "R", "P(sum)", "P(norm2)", "P(norminf)"])
def test_a_placement_is_written_as_it_was_read(tmp_path, text):
    item = {"layout": {"shape": [4, 4], "mesh": 1, "placements": [text]}}
    assert str(dump_with(tmp_path, SOUND).parallel.layout_of(item).placements[0]) == text


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ([], 7, '"parallel" is 7'),
        (["groups"], [[0, 1]], '"groups"'),
        (["groups", "mesh_tp"], [2, 2], "'mesh_tp' has the same rank twice"),
        (["groups", "mesh_tp"], [True], "a rank of group 'mesh_tp'"),
        (["meshes"], {}, '"meshes"'),
        (["meshes", 0, "ranks"], [[0, 1], [2]], "not a grid"),
        (["meshes", 0, "ranks"], [[0, 1], [2, 0]], "mesh 0 has the same rank twice"),
        (["meshes", 0, "ranks"], [], "mesh 0 has no ranks"),
        (["meshes", 0, "ranks"], "0123", "mesh 0"),
        (["meshes", 0, "names"], ["dp"], "2 dimensions and 1 names"),
        (["meshes", 0, "coordinate"], [2, 0], "outside of mesh 0"),
        (["meshes", 0, "coordinate"], [-1, 0], "coordinate in mesh 0"),
        (["parameters", "up.weight", "mesh"], 5, "refers to mesh 5; the run has 2"),
        (["parameters", "up.weight", "mesh"], "0", "'up.weight'"),
        (["parameters", "up.weight", "shape"], [8.5, 4], "'up.weight'"),
        (["parameters", "up.weight", "shape"], [10**40], "'up.weight'"),
        (["parameters", "up.weight", "placements"], ["S(0)"], "1 placements for a mesh of 2 dimensions"),
        (["parameters", "up.weight", "placements"], ["S(2)", "R"], "cuts dimension 2"),
        (["parameters", "up.weight", "placements"], ["Shard", "R"], "placement 'Shard'"),
        (["parameters", "up.weight", "placements"], ["S(0,0)", "R"], "split factor"),
        (["parameters", "up.weight", "placements"], ["P(xor)", "R"], "placement 'P(xor)'"),
        (["parameters", "up.weight", "placements"], None, "should be a list"),
        (["parameters", "qkv", "stride"], 0, "stride"),
        (["parameters", "qkv", "allreduce"], "no", "true or false"),
        (["parameters", "flat", "parts"], [["a", [2], 1, 3]], "elements 1 to 3"),
        (["parameters", "flat", "parts"], [["a", [2], 1]], "not [name, shape, first, last]"),
        (["parameters", "norm"], None, "'norm'"),
        (["pipeline", "stage"], [4], "stages [4] of 4"),
        (["pipeline", "schedule"], 3, "schedule"),
        (["pipeline", "microbatches"], 0, "microbatches"),
        (["pipeline", "models"], ["first"], "the stage of a model"),
        (["modules", "layers.0"], 4, "the path of module 'layers.0'"),
        (["context", "order"], "random", "'random'"),
        (["context", "mesh"], 2, '"context" refers to mesh 2'),
        (["batch", "part"], 2, "part 2 of 2"),
        (["batch"], "half", '"batch"'),
    ],
)
def test_nonsense_is_one_sentence(tmp_path, path, value, words):
    parallel = copy.deepcopy(SOUND)
    if path:
        at = parallel
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
    else:
        parallel = value
    rank = dump_with(tmp_path, parallel)
    with pytest.raises(DumpError, match=r"run\.json is damaged") as raised:
        _ = rank.parallel
    message = str(raised.value)
    assert words in message
    assert message.endswith(".")
    assert "\n" not in message


def test_a_nest_without_end_is_not_followed(tmp_path):
    deep = 0
    for _ in range(900):
        deep = [deep]
    with pytest.raises(DumpError, match="mesh 0"):
        _ = dump_with(tmp_path, {"meshes": [{"ranks": deep}]}).parallel
