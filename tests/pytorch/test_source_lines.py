"""source.json: the lines of the script around its calls, recorded with the run. No reader opens the script."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from msprobe.dump import source_lines
from msprobe.dump.reader import open_dump
from msprobe.dump.recovery import recover
from msprobe.view.material import open_material
from msprobe.view.session import Contents

SCRIPT = """import torch
from msprobe.pytorch import PrecisionDebugger

SECRET = "not near a call"



def forward(x):
    y = torch.relu(x)
    return y / torch.zeros(2)
# one
# two
# three
# four

debugger = PrecisionDebugger(dump_path={path!r}, task="statistics", level="L1", step=[0, 1])
for step in range(2):
    debugger.start()
    forward(torch.ones(2))
    debugger.stop()
    debugger.step()
"""


@pytest.fixture
def collected(tmp_path: Path) -> Path:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(path=str(tmp_path / "dump")))
    runpy.run_path(str(script), run_name="__main__")
    script.unlink()
    return tmp_path / "dump"


def test_the_lines_around_each_call_are_recorded_once(collected: Path) -> None:
    lines = SCRIPT.splitlines()
    for rank in open_dump(collected).ranks:
        (file,) = rank.sources
        assert file.endswith("train.py")
        near = {number: text for number, text in rank.sources[file].items() if number < 16}
        assert near == {number: lines[number - 1] for number in range(6, 14)}
        text = (rank.path / "source.json").read_text()
        assert text.count("torch.relu") == 1
        assert "not near a call" not in text
        assert (rank.path / "source.json").stat().st_mode & 0o777 == 0o640


def test_the_page_shows_them_although_the_script_is_gone(collected: Path) -> None:
    excerpt = Contents(open_material(collected)).answer["code"]["target"]["own"]
    assert (excerpt["line"], excerpt["first"], excerpt["note"]) == (10, 7, "")
    assert excerpt["lines"] == SCRIPT.splitlines()[6:13]


def test_a_crashed_run_has_them_too(collected: Path) -> None:
    rank = collected / "step0" / "rank"
    finished = (rank / "source.json").read_bytes()
    for file in rank.glob("*.json"):
        file.unlink()
    (unfinished,) = open_dump(rank).ranks
    assert {
        file: {str(number): text for number, text in lines.items()} for file, lines in unfinished.sources.items()
    } == (json.loads(finished))
    recover(rank)
    assert (rank / "source.json").read_bytes() == finished


def test_there_is_a_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(source_lines, "MOST_LINES", 8)
    script = tmp_path / "long.py"
    script.write_text("".join(f"f({number})  {'#' * 1000}\n" for number in range(100)))
    known = source_lines.SourceLines()
    found = [known.add([f"File {script}, line {line}, in f, \n f()"]) for line in (10, 10, 12, 50, 60)]
    numbers = [sorted(map(int, json.loads(f"{{{text}}}"))) for _, text in found]
    assert numbers == [list(range(7, 14)), [], [14, 15], [], []]
    assert max(len(text) for text in json.loads(f"{{{found[0][1]}}}").values()) == source_lines.LONGEST


@pytest.mark.parametrize("content", ['{"a": [1]}', '{"a": {"x": "y", "-1": "z", "²": "q"}}', '{"a": {"1": 5}}'])
def test_damaged_entries_are_left_out(collected: Path, content: str) -> None:
    rank = collected / "step0" / "rank"
    (rank / "source.json").write_text(content)
    assert not any(open_dump(rank).ranks[0].sources.values())
    assert Contents(open_material(rank)).answer["code"]["target"]["own"]["lines"] == ["return y / torch.zeros(2)"]
