"""Files that are larger than the memory: a sparse file of 64 GiB takes no space on the disk. One sentence, with the
limit and what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from msprobe.cli import main
from msprobe.dump import journal, layout
from msprobe.dump.reader import DumpError, RankDump, open_dump
from msprobe.dump.recovery import recover
from msprobe.dump.untrusted.json_files import parse_json
from msprobe.system import memory

HEAD = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
SIZE = 64 << 30
SAID = r"it has 64\.0 GiB, and msprobe reads up to [\d.]+ .iB on this machine .* Use a machine with more memory"
BESIDE = {
    layout.STACK: "stacks",
    layout.CONSTRUCT: "construct",
    layout.RUN: "run",
    layout.TRAINING: "training",
    layout.DEBUG: "debug",
}


@pytest.fixture
def rank(tmp_path: Path) -> Path:
    made = tmp_path / "dump" / "step0" / "rank"
    made.mkdir(parents=True)
    (made / layout.DUMP).write_text(json.dumps({**HEAD, "data": {}}))
    return made


def make_sparse(path: Path, start: bytes = b"{", end: bytes = b"}") -> None:
    with path.open("wb") as file:
        file.write(start)
        file.seek(SIZE - len(end))
        file.write(end)


def test_a_sparse_dump_json_is_one_sentence(rank: Path) -> None:
    make_sparse(rank / layout.DUMP)
    with pytest.raises(DumpError, match=SAID):
        _ = RankDump(rank).records


@pytest.mark.parametrize("name", BESIDE)
def test_a_sparse_file_beside_it_is_left_out(rank: Path, name: str) -> None:
    make_sparse(rank / name)
    found = RankDump(rank)
    assert not getattr(found, BESIDE[name])
    (trouble,) = found.troubles
    assert f"{name} cannot be read: it has 64.0 GiB" in trouble


@pytest.mark.parametrize("name", [layout.DUMP, *BESIDE])
@pytest.mark.parametrize("verb", ["show", "compare", "overflow"])
def test_every_verb_ends_with_a_sentence(rank: Path, name: str, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    make_sparse(rank / name)
    dumps = [str(rank.parents[1])] * (2 if verb == "compare" else 1)
    code = main([verb, *dumps])
    output = "".join(capsys.readouterr())
    assert "Traceback" not in output
    assert "MemoryError" not in output
    assert code == 2 or (name != layout.DUMP and verb != "compare")


def test_a_journal_with_an_endless_line_is_read_up_to_it(rank: Path) -> None:
    (rank / layout.DUMP).unlink()
    first = journal.head_line(journal.Head("statistics", "L1", "pytorch"))
    first += journal.record_line("Torch.relu.0.forward", None, None, '"input_args": []')
    make_sparse(rank / layout.JOURNAL, first.encode() + b'["record", "b", null, null, {', b"}]\n")
    (found,) = open_dump(rank).ranks
    assert list(found.records) == ["Torch.relu.0.forward"]
    assert found.troubles == ["1 damaged line of journal.jsonl was left out"]
    assert recover(rank).records == 1


def test_a_text_within_the_limit_that_does_not_fit_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(_: bytes) -> None:
        raise MemoryError

    monkeypatch.setattr(json, "loads", run_out)
    with pytest.raises(ValueError, match="not enough memory"):
        parse_json(b"[]")


def test_the_limit_is_a_part_of_the_memory() -> None:
    assert 0 < memory.largest_text() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // memory.PARSED
    assert [memory.size_text(size) for size in (5, 1536, 3 << 20, SIZE)] == [
        "5 bytes",
        "1.5 KiB",
        "3.0 MiB",
        "64.0 GiB",
    ]
