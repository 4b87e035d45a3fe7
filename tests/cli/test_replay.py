"""`msprobe replay`: one recorded call, alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from msprobe.analyze.repeat_record import ulps
from msprobe.cli import main
from msprobe.pytorch import PrecisionDebugger


@pytest.fixture
def ranks(tmp_path: Path) -> tuple[Path, Path]:
    """A target that computes in float32, and a golden run whose result of gelu is less exact."""
    for name in ("target", "golden"):
        torch.manual_seed(0)
        x = torch.randn(4, 8, requires_grad=True)
        debugger = PrecisionDebugger(dump_path=str(tmp_path / name), task="tensor", level="L1", step=[0])
        debugger.start()
        torch.nn.functional.gelu(x).sum().backward()
        debugger.stop()
        debugger.step()
    saved = tmp_path / "golden/step0/rank/dump_tensor_data/Functional.gelu.0.forward.output.0.pt"
    value = torch.load(saved, weights_only=True)
    saved.unlink()
    torch.save(value * 1.001, saved)
    return tmp_path / "target/step0/rank", tmp_path / "golden/step0/rank"


def test_a_call_is_repeated_and_measured(ranks: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    target, golden = (rank / "Functional.gelu.0.forward" for rank in ranks)
    assert main(["replay", str(target), "--golden", str(golden), "--times", "3", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["results"], answer["times"]) == (1, 3)
    (part,) = answer["parts"]
    assert part["here"] == part["recorded"] < 100 < part["golden"]
    assert part["nearer"] == "the target"


def test_a_backward_is_repeated(ranks: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(ranks[0] / "Functional.gelu.0.backward")]) == 0
    assert "Functional.gelu.0.backward: deterministic in 16 runs on cpu" in capsys.readouterr().out


def test_a_call_that_produces_nan_is_deterministic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A NaN is not equal to itself, but its bits are."""
    debugger = PrecisionDebugger(dump_path=str(tmp_path), task="tensor", level="L1", step=[0])
    debugger.start()
    torch.log(torch.tensor([-1.0, 0.0, 2.0]))
    debugger.stop()
    debugger.step()
    assert main(["replay", str(tmp_path / "step0/rank/Torch.log.0.forward"), "--json"]) == 0
    (part,) = json.loads(capsys.readouterr().out)["parts"]
    assert part["here"] == part["recorded"] < 2


def test_a_nan_against_a_number_is_infinitely_far() -> None:
    values, wide = np.array([1.0, np.nan, np.inf]), np.array([1.0, np.nan, np.inf])
    assert ulps(values, wide, "float32") == 0
    for strange in (np.nan, np.inf):
        assert ulps(np.array([1.0, strange, np.inf]), np.array([1.0, 2.0, np.inf]), "float32") == np.inf
        assert ulps(np.array([1.0, 2.0, np.inf]), np.array([1.0, strange, np.inf]), "float32") == np.inf


def test_a_different_number_of_threads_is_said(ranks: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    target, golden = (str(rank / "Functional.gelu.0.forward") for rank in ranks)
    here = torch.get_num_threads()
    assert main(["replay", target, "--golden", golden]) == 0
    assert "note:" not in capsys.readouterr().out
    run = ranks[1] / "run.json"
    run.write_text(json.dumps({**json.loads(run.read_text()), "threads": here + 6}))
    assert main(["replay", target, "--golden", golden]) == 0
    said = f"note: the golden run has {here + 6} threads, this one {here}"
    assert said in capsys.readouterr().out
    assert main(["replay", golden, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["threads"] == here
    assert f"set OMP_NUM_THREADS={here + 6}" in answer["notes"][0]
    said = {"id": "replay.threads_recorded", "arguments": {"recorded": here + 6, "here": here}}
    assert answer["messages"] == {"notes": [said]}


@pytest.mark.parametrize(
    ("record", "options", "said"),
    [
        ("Functional.gelu.7.forward", (), "has no record"),
        ("Functional.gelu.0.forward", ("--times", "0"), "give 1 or more"),
        ("Functional.gelu.0.forward", ("--device", "nowhere"), "cannot be replayed here"),
    ],
)
def test_bad_input_gets_one_sentence(
    ranks: tuple[Path, Path], capsys: pytest.CaptureFixture[str], record: str, options: tuple[str, ...], said: str
) -> None:
    assert main(["replay", str(ranks[0] / record), *options]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len([line for line in errors if said in line]) == 1


ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""A batch norm adds its batch in parts, one for each thread: other threads, other rounding. Importing mindspore sets
this variable where os.environ does not show it, so that the two runs of the test could differ."""
_SCRIPT = """
import random
import torch
from torch import nn


class Noisy(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (1 + random.SystemRandom().random())


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), Noisy(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # noise must not reach the weights of the second step
for batch in torch.randn(2, 4, 8):
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script whose last module is not deterministic, and a dump of its second step."""
    directory = tmp_path_factory.mktemp("modules")
    (directory / "train.py").write_text(_SCRIPT)
    command = [sys.executable, "-m", "msprobe", "run", "-o", "dump", "--task", "tensor", "--level", "L0", "--step", "1"]
    subprocess.run([*command, "train.py"], cwd=directory, check=True, env={**os.environ, **ONE_THREAD})
    return directory


@pytest.mark.parametrize(("module", "code"), [("1.BatchNorm1d", 0), ("2.Noisy", 1)])
def test_a_module_is_repeated_where_the_script_calls_it(
    modules: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], module: str, code: int
) -> None:
    monkeypatch.chdir(modules)
    monkeypatch.setenv("OMP_NUM_THREADS", ONE_THREAD["OMP_NUM_THREADS"])
    record = f"dump/step1/rank/Module.{module}.forward.0"
    assert main(["replay", record, "--golden", record, "--times", "4", "--json", "--run", "train.py"]) == code
    answer = json.loads(capsys.readouterr().out)
    assert (answer["results"] == 1) == (code == 0)
    (part,) = answer["parts"]
    assert part["dtype"] == "float32"
    if code == 0:
        assert 0 < part["here"] == part["recorded"] == part["golden"] < 1000
        assert part["nearer"] == "both alike"
        assert (answer["threads"], answer["notes"]) == (1, [])


def test_a_module_without_its_script_is_refused_with_the_remedy(
    modules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = modules / "dump/step1/rank/Module.1.BatchNorm1d.forward.0"
    assert main(["replay", str(record)]) == 2
    assert "give the script that makes it, with --run SCRIPT" in capsys.readouterr().err
    ends = modules / "ends.py"
    ends.write_text("import torch")
    assert main(["replay", str(record), "--run", str(ends)]) == 2
    assert "did not call Module.1.BatchNorm1d.forward.0 in step 1" in capsys.readouterr().err
