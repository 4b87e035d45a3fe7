"""`msprobe again` on scripts with one planted source of nondeterminism each, and on scripts that repeat themselves."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "compare"))
from written import call, tensor, write_dump

from msprobe.cli import main

from .plants import CLEAN, PLANTS, Plant

QUICK = ("no_seed", "own_kernel", "flipped_weight")


def _again(directory: Path, script: str, *options: str) -> tuple[int, dict[str, Any], str]:
    (directory / "train.py").write_text(script)
    command = [sys.executable, "-m", "msprobe", "again", "--json", *options, "train.py"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


Answer = tuple[int, dict[str, Any], str]
AgainOn = Callable[[Plant], tuple[Path, Answer]]


@pytest.fixture(scope="module")
def again_on(tmp_path_factory: pytest.TempPathFactory) -> AgainOn:
    """The directory and the answer of a script of plants.py, which keeps its dumps there and runs once for all."""

    @functools.cache
    def run(plant: Plant) -> tuple[Path, Answer]:
        directory = tmp_path_factory.mktemp("again")
        return directory, _again(directory, plant.script, "-o", "kept")

    return run


def _marks(names: Any) -> list[Any]:
    return [pytest.param(name, marks=() if name in QUICK or name == "plain" else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", _marks(PLANTS))
def test_a_planted_source_is_named(again_on: AgainOn, name: str) -> None:
    _, (code, answer, errors) = again_on(PLANTS[name])
    assert code == 1, errors
    assert answer["cause"] == PLANTS[name].cause, answer


@pytest.mark.parametrize("name", _marks(CLEAN))
def test_a_script_that_repeats_itself_is_not_reported(again_on: AgainOn, name: str) -> None:
    _, (code, answer, errors) = again_on(CLEAN[name])
    assert (code, answer.get("repeats")) == (0, True), (answer, errors)
    assert answer["records"] > 100


def test_the_flipped_bit_is_printed_with_its_weight(again_on: AgainOn) -> None:
    _, (_, answer, _) = again_on(PLANTS["flipped_weight"])
    assert answer["sentence"].startswith(
        "Module.blocks.1.up.Linear.weight differs in one bit: bit 20 of element [0, 5]"
    )
    assert answer["step"] == 1


@pytest.mark.slow
def test_fix_says_whether_the_remedy_helps(tmp_path: Path) -> None:
    _, answer, _ = _again(tmp_path, PLANTS["time_seed"].script, "--fix")
    assert answer["helped"] is True
    (tmp_path / "mark").unlink()
    _, answer, _ = _again(tmp_path, PLANTS["clock"].script, "--fix")
    assert answer["helped"] is False


def test_an_earlier_dump_takes_the_place_of_the_first_run(again_on: AgainOn) -> None:
    directory, _ = again_on(CLEAN["plain"])
    (directory / "mark").unlink()
    code, answer, errors = _again(directory, CLEAN["plain"].script, "--against", "kept/run1/dump")
    assert code == 0, errors
    assert answer["repeats"]
    assert errors.count("run of train.py") == 1


_RANKS = """
import sys, time
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
import pathlib
mark = pathlib.Path(f"mark{rank}"); first = not mark.exists(); mark.touch()
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(3, 3, 8, 16)[rank]
for step in range(3):
    if sys.argv[1] == "order":  # rank 0 takes what comes first
        if rank == 0:
            parts = [torch.empty(8, 16), torch.empty(8, 16)]
            for part in parts:
                dist.recv(part)
            data[step] += parts[0] - 0.5 * parts[1]
        else:
            time.sleep(2 * ((rank == 1) == first))
            dist.send(data[step], 0)
    model(data[step]).square().mean().backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        if sys.argv[1] == "flip" and first and step == 1 and rank == 1 and p.shape == (4, 32):
            p.grad.numpy().view(np.int32).reshape(-1)[33] ^= 1 << 22
    optimizer.step(); optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["clean", "flip", "order"])
def test_ranks_of_torchrun(tmp_path: Path, what: str) -> None:
    (tmp_path / "train.py").write_text(_RANKS)
    ranks = "3" if what == "order" else "2"
    words = ["again", "--json", "torchrun", "--nproc_per_node", ranks, "--master_port", "29717", "train.py", what]
    done = subprocess.run(
        [sys.executable, "-m", "msprobe", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    if what == "clean":
        assert answer["repeats"]
        return
    if what == "order":
        assert (answer["cause"], answer["rank"], answer["step"]) == ("collective", 0, 0), answer
        return
    assert (answer["cause"], answer["rank"], answer["step"]) == ("bit flip", 1, 1)
    assert "bit 22 of element [1, 1] on rank 1" in answer["sentence"]


# Bad input: one clear sentence, and nothing is written over.


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give a SCRIPT"),
        (["missing.py"], "cannot read missing.py"),
        (["-o", "full", "train.py"], "full exists and is not empty"),
        (["train.py"], "failed with exit code 3"),
        (["--step", "two", "train.py"], "--step two is no list of steps"),
        (["--against", "nothing", "train.py"], "nothing does not exist"),
        (["quiet.py"], "recorded nothing: it called no"),
        (["--step", "7", "quiet.py"], "it ended before step 7, or called no"),
        (["--against", "statistics", "train.py"], "statistics/step0/rank has no checksums"),
    ],
)
def test_bad_input_gets_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    write_dump(tmp_path / "statistics", {"Tensor.add.0.forward": call(tensor(1.0), output=tensor(2.0))})
    (tmp_path / "train.py").write_text("raise SystemExit(3)")
    (tmp_path / "quiet.py").write_text("import sys")
    assert main(["again", *words]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("[msprobe]")]
    assert len(errors) == 1
    assert re.search(said, errors[0])
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"
