"""`msprobe replay`: one recorded call, alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

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
