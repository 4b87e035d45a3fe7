"""Every dump opens: of old and new mindstudio-probe, incomplete ones, or with one clear reason why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Optional

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from msprobe.dump import journal, layout
from msprobe.dump.reader import DumpError, items, open_dump
from msprobe.dump.untrusted.parents import cut_loops

DATA = Path(__file__).parent / "data"
SAMPLES = sorted(path.name for path in DATA.iterdir() if path.is_dir())


@pytest.mark.parametrize("name", SAMPLES)
def test_dumps_of_mindstudio_probe_open_from_any_of_their_directories(name: str) -> None:
    (rank,) = open_dump(DATA / name).ranks
    assert (rank.step, rank.rank, rank.kind, rank.unfinished) == (0, None, None, False)
    main = "debug.json" if "debug" in name else "dump.json"
    for path in (rank.path.parent, rank.path, rank.path / main):
        assert open_dump(path).ranks == [rank]
    raw = json.loads((rank.path / main).read_text())
    assert rank.head == {key: raw[key] for key in ("task", "level", "framework", "dump_data_dir")}
    if main == "debug.json":
        assert (rank.debug, rank.records) == (raw["data"], {})
    else:
        assert (rank.records, rank.debug) == (raw["data"], {})
        assert set(rank.stacks) <= set(rank.records)
        assert all(frame.startswith("File ") for frames in rank.stacks.values() for frame in frames)
        assert bool(rank.construct) == ("L1" not in name)
    assert rank.run == {}


@pytest.mark.parametrize("name", ["p83_tensor_mix_statistics", "p26_tensor_mix_statistics"])
def test_tensors_of_mindstudio_probe_are_read_as_torch_reads_them(name: str) -> None:
    (rank,) = open_dump(DATA / name).ranks
    named = {
        item["data_name"]
        for record in rank.records.values()
        for _, item in items(record)
        if item and "data_name" in item
    }
    there = {file.name for file in (rank.path / "dump_tensor_data").iterdir()}
    assert there <= named
    assert len(there) > 5
    for file in sorted(there):
        expected = torch.load(rank.path / "dump_tensor_data" / file, weights_only=True).detach().numpy()
        np.testing.assert_array_equal(rank.tensor(file), expected)


def test_the_items_of_a_record_have_the_slots_that_comparing_names() -> None:
    leaf = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [1]}
    number = {"type": "int", "value": 1}
    forward = {
        "input_args": [leaf, [number, {"type": leaf}], None],
        "input_kwargs": {"dim": number, "pair": [leaf, leaf]},
        "output": [leaf],
        "parameters": {"weight": leaf},
        "is_recompute": True,
        "unfinished": True,
    }
    assert list(items(forward)) == [
        ("input.0", leaf),
        ("input.1.0", number),
        ("input.1.1.type", leaf),
        ("input.2", None),
        ("input.dim", number),
        ("input.pair.0", leaf),
        ("input.pair.1", leaf),
        ("output.0", leaf),
        ("parameters.weight", leaf),
    ]
    assert list(items({"input": [leaf], "output": [None, leaf]})) == [
        ("input.0", leaf),
        ("output.0", None),
        ("output.1", leaf),
    ]
    assert list(items({"weight": [leaf], "bias": [None]})) == [
        ("parameters_grad.weight", leaf),
        ("parameters_grad.bias", None),
    ]
    assert list(items({"output": leaf})) == [("output.0", leaf)]
    assert list(items({"output": {"logits": leaf}})) == [("output.logits", leaf)]


def make(path: Path, text: str = '{"task": "statistics", "data": {}}', name: str = "dump.json") -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / name).write_text(text)
    return path


def test_steps_ranks_and_modes_come_in_order(tmp_path: Path) -> None:
    for name in (
        "step10/rank0",
        "step2/rank10",
        "step2/rank9",
        "graph/step0/rank0",
        "pynative/step0/rank",
        "step3/proc77",
    ):
        make(tmp_path / name)
    (tmp_path / "step4/rank0").mkdir(parents=True)
    (tmp_path / "old-20200101-000000/step0/rank").mkdir(parents=True)
    dump = open_dump(tmp_path)
    assert [rank.label for rank in dump.ranks] == [
        "step2/rank9",
        "step2/rank10",
        "step3/proc77",
        "step10/rank0",
        "graph/step0/rank0",
        "pynative/step0/rank",
    ]
    assert dump.steps == [2, 3, 10, 0]
    assert dump.notes == [f"{tmp_path / 'step4/rank0'} holds neither dump.json nor a journal"]
    assert open_dump(tmp_path / "graph/step0").ranks[0].kind == "graph"
    assert open_dump(tmp_path / "graph/step0/rank0").ranks[0].kind == "graph"
    assert [rank.kind for rank in open_dump(tmp_path / "graph").ranks] == ["graph"]


def test_a_graph_mode_dump_is_distinguished_from_other_directories(tmp_path: Path) -> None:
    (tmp_path / "rank_0/graphs").mkdir(parents=True)
    with pytest.raises(DumpError, match="Graph-mode Dump of MindSpore: see `msprobe graph --help`"):
        open_dump(tmp_path)


def test_a_dump_path_that_is_called_graph_is_not_part_of_a_dump(tmp_path: Path) -> None:
    root = tmp_path / "graph"
    rank = make(root / "step0/rank")
    (root / layout.REGISTER).write_text("{}")
    assert [one.label for one in open_dump(root).ranks] == ["step0/rank"]
    assert open_dump(rank).ranks[0].kind is None
    assert layout.dump_root(rank) == root


def test_a_directory_under_any_name_with_a_dump_json_is_a_rank(tmp_path: Path) -> None:
    (rank,) = open_dump(make(tmp_path / "anything")).ranks
    assert (rank.label, rank.step, rank.rank) == ("anything", None, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"data": {"a": {},\n\n "b": }}', "line 3"),
        ("", "line 1"),
        ("[]", "is not a JSON object"),
        ('{"task": "x"}', 'no "data" object'),
        ('{"data": []}', 'no "data" object'),
        ("[" * 100_000, "is not JSON"),
        ('{"data": {"\\ud800": {}, "a": \xff}}', "line 1"),
    ],
)
def test_a_damaged_dump_json_gives_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    (rank,) = open_dump(make(tmp_path, text)).ranks
    with pytest.raises(DumpError) as caught:
        print(rank.records)
    assert said in str(caught.value)
    assert "dump.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_path_that_is_not_a_dump_gives_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty/step0/rank0").mkdir(parents=True)
    (tmp_path / "nothing").mkdir()
    (tmp_path / "file").write_text("x")
    cases = {
        "absent": "does not exist",
        "nothing": "is not a dump",
        "empty": "is an empty dump",
        "file": "is not a dump",
    }
    for name, said in cases.items():
        with pytest.raises(DumpError, match=said):
            open_dump(tmp_path / name)


@pytest.mark.parametrize("name", ["../secret.npy", "/etc/passwd", "a/b.npy", "..", "", "a\0.npy", None, 3])
def test_a_data_name_never_leaves_its_directory(tmp_path: Path, name: object) -> None:
    make(tmp_path / "step0/rank/dump_tensor_data")
    np.save(tmp_path / "step0/rank/secret.npy", np.ones(1))
    (rank,) = open_dump(make(tmp_path / "step0/rank")).ranks
    with pytest.raises(DumpError, match="not a plain file name"):
        rank.tensor(name)  # type: ignore[arg-type]


def test_a_tensor_file_that_is_missing_is_named(tmp_path: Path) -> None:
    (rank,) = open_dump(make(tmp_path)).ranks
    with pytest.raises(DumpError, match=r"a\.npy cannot be read: No such file"):
        rank.tensor("a.npy")


def test_stacks_of_the_oldest_form_are_read(tmp_path: Path) -> None:
    make(tmp_path, '{"a": ["File x", "File y"]}', "stack.json")
    (rank,) = open_dump(make(tmp_path)).ranks
    assert rank.stacks == {"a": ["File x", "File y"]}


def test_a_journal_without_json_files_reads_like_the_finished_dump(tmp_path: Path) -> None:
    from msprobe.dump.recovery import recover

    lines = [
        journal.head_line(journal.Head("statistics", "mix", "pytorch", "/d")),
        journal.stack_line(4, ["File x"]),
        journal.begin_line(0, "Module.a.forward.0", None, 4, '"input_args": [1]'),
        journal.record_line("b", "Module.a.forward.0", 4, '"x": Infinity'),
        journal.debug_line("d", "[1]"),
        '["record", "torn", null, nu',
    ]
    make(tmp_path, "".join(lines), "journal.jsonl")
    (before,) = open_dump(tmp_path).ranks
    seen = (before.head, before.records, before.stacks, before.construct, before.debug)
    assert before.unfinished
    assert list(before.records) == ["b", "Module.a.forward.0"]
    assert before.records["Module.a.forward.0"] == {"input_args": [1], "unfinished": True}
    done = recover(tmp_path)
    assert (done.records, done.unfinished) == (3, 1)
    assert done.troubles == ["the last line was cut short by the crash and left out"]
    (after,) = open_dump(tmp_path).ranks
    assert not after.unfinished
    assert (after.head, after.records, after.stacks, after.construct, after.debug) == seen


@pytest.mark.parametrize("text", ["", '["head", {"task": "stat', "\0" * 4096, '["head", {"task": "x"}, 1]\n'])
def test_a_journal_without_its_first_line_is_reported_and_affects_only_its_rank(tmp_path: Path, text: str) -> None:
    make(tmp_path / "step0/rank0")
    lost = make(tmp_path / "step0/rank1", text, "journal.jsonl")
    dump = open_dump(tmp_path)
    assert [rank.label for rank in dump.ranks] == ["step0/rank0"]
    assert dump.notes == [f"{lost / 'journal.jsonl'} has lost its first line: nothing can be read from it"]
    for path in (lost, lost / "journal.jsonl"):
        with pytest.raises(DumpError, match=r"rank1/journal\.jsonl has lost its first line"):
            open_dump(path)


def test_many_ranks_with_nothing_to_read_are_not_all_named(tmp_path: Path) -> None:
    make(tmp_path / "step0/rank")
    for step in range(1, 50):
        make(tmp_path / f"step{step}/rank", "", "journal.jsonl")
    notes = open_dump(tmp_path).notes
    assert len(notes) == 6
    assert notes[-1] == "44 more rank directories cannot be read"


def test_what_a_primitive_was_made_with_is_an_argument() -> None:
    record = {"input_args": [], "attributes": {"epsilon": {"type": "float", "value": 1e-5}}, "output": []}
    assert list(items(record)) == [("input.epsilon", {"type": "float", "value": 1e-5})]


def test_members_about_the_end_of_a_call_are_not_gradients_but_parameters_of_that_name_are() -> None:
    assert list(items({"input_args": [], "raised": "ValueError", "unfinished": True})) == []
    weight = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": []}
    assert list(items({"raised": [weight]})) == [("parameters_grad.raised", weight)]


@given(st.dictionaries(st.sampled_from("abcdef"), st.one_of(st.none(), st.sampled_from("abcdefg"))))
def test_no_call_is_inside_itself(parents: dict[str, Optional[str]]) -> None:
    sound, cut = cut_loops(parents)
    assert sound.keys() == parents.keys()
    assert sum(sound[name] != parents[name] for name in parents) == cut
    for name in sound:
        steps, at = 0, sound.get(name)
        while at is not None:
            steps, at = steps + 1, sound.get(at)
            assert steps <= len(sound)


@pytest.mark.parametrize(
    ("phases", "expected", "trouble"),
    [
        ([[0, "forward", 0], [2, "backward", 0]], [("forward", 0), ("forward", 0), ("backward", 0)], ""),
        ([[1, "other", 7]], [None, ("other", 7), ("other", 7)], ""),
        ([[0, "forward"]], [None] * 3, "has 2 members, not 3"),
        ([[2, "forward", 0], [1, "backward", 0]], [None] * 3, "whole number from 2 to 2, not 1"),
        ([[0, "forward", -1]], [None] * 3, "a micro-batch"),
        ([[9, "forward", 0]], [None] * 3, "not 9"),
        ({}, [None] * 3, "should be a list"),
    ],
)
def test_the_phases_of_flow_json(tmp_path: Path, phases: object, expected: list[object], trouble: str) -> None:
    head = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
    (tmp_path / layout.DUMP).write_text(json.dumps({**head, "data": {"a": {}, "b": {}, "c": {}}}))
    assert open_dump(tmp_path).ranks[0].phases == {}
    (tmp_path / layout.FLOW).write_text(json.dumps({"phases": phases}))
    (rank,) = open_dump(tmp_path).ranks
    assert [rank.phases.get(name) for name in "abc"] == expected
    assert trouble in "".join(rank.troubles)
    assert bool(trouble) == bool(rank.troubles)
