"""`msprobe precision --emulate`: a script as it is and in emulated formats, and what can go wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from json_schemas import check_schema
from msprobe.cli import main

SCRIPT = """
import sys
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.randn(int(sys.argv[1]), 8, 16):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
print("the script has ended")
"""


def run(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "train.py").write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, "-m", "msprobe", "precision", *words], cwd=tmp_path, capture_output=True, text=True,
        timeout=300, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_the_losses_of_each_format_are_compared_with_the_script_as_it_is(tmp_path: Path) -> None:
    done = run(tmp_path, "--emulate", "bf16,mxfp4", "--steps", "4", "--keep", "2", "--json", "train.py", "6")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    check_schema("precision-emulate", found)
    bare, near, far = found["runs"]
    assert [one["format"] for one in found["runs"]] == ["", "bf16", "mxfp4"]
    assert all(one["steps"] == 4 for one in found["runs"])
    assert (near["emulated"], near["kept"]) == (["0"], ["2"])
    assert bare["gap"] == 0.0
    assert 0 < abs(near["losses"][0] - bare["losses"][0]) < abs(far["losses"][0] - bare["losses"][0])
    assert "the script has ended" not in done.stderr  # it was ended after four steps


def test_the_answer_is_a_sentence_and_a_table(tmp_path: Path) -> None:
    done = run(tmp_path, "--emulate", "mxfp4", "train.py", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("mxfp4: the loss of train.py 3 is ")
    assert "after 3 steps with 2 Linear modules in mxfp4" in done.stdout
    assert "as it is" in done.stdout
    assert done.stderr.count("the script has ended") == 2


def test_gradients_can_be_rounded_stochastically_and_the_run_repeats_itself(tmp_path: Path) -> None:
    words = ("--emulate", "mxfp4", "--steps", "3", "--json")
    nearest, one, again = (
        json.loads(run(tmp_path, *words, *more, "train.py", "3").stdout)["runs"]
        for more in ((), ("--stochastic",), ("--stochastic",))
    )
    assert [run["stochastic"] for run in one] == [False, True]
    assert one == again
    assert one[0] == nearest[0]
    assert one[1]["losses"][0] == nearest[1]["losses"][0]  # the forward is the same
    assert one[1]["losses"][1:] != nearest[1]["losses"][1:]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["dump", "--format", "mxfp8", "--stochastic"], "--keep and --stochastic are for --emulate"),
        (["--emulate", "mxfp8"], "give a SCRIPT, or -m MODULE, after the options of msprobe"),
        (["--emulate", "fp9", "train.py"], "'fp9' is not a format; known: fp16"),
        (["--emulate", "mxfp8", "none.py"], "cannot read none.py: there is no such file"),
        (["--emulate", "mxfp8", "--steps", "0", "train.py"], "--steps must be at least 1, not 0"),
        (["--emulate", "mxfp8", "--format", "nvfp4", "train.py"], "--format, --budget and --snippet are for a DUMP"),
        (["--emulate", "mxfp8", "torchrun", "train.py"], "--emulate runs one process"),
        ([], "give a DUMP and --format NAMES, or --emulate NAMES and a SCRIPT"),
    ],
)
def test_wrong_words_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], reason: str
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    assert main(["precision", *words]) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") == 1


def test_a_script_without_linear_modules_or_steps_says_so(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("import torch\nprint(torch.ones(2).sum())\n")
    done = run(tmp_path, "--emulate", "mxfp8", "other.py")
    assert done.returncode == 2
    assert "made no optimizer step after a backward" in done.stderr
