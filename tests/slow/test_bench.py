"""The benchmark runs and measures what it says; its figures are never asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

RUN = Path(__file__).parents[2] / "benchmarks" / "run.py"


def bench(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RUN), "--no-peer", "--rounds", "2", "--layers", "1", *options]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_dump_holds_forward_backward_and_optimizer_and_leaves_the_losses_alone(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    done = bench("--only", "L1/statistics", "--json", str(figures))
    assert done.returncode == 0, done.stderr
    (case,) = json.loads(figures.read_text())
    bare, ours = case["variants"]["bare"], case["variants"]["ours"]
    assert bare["hello"]["tool"] is None
    assert bare["report"]["names"] == []
    assert len(ours["cpu"]) == len(bare["cpu"]) == 2
    assert ours["losses"] == bare["losses"]
    names = ours["report"]["names"]
    assert "Functional.cross_entropy.0.forward" in names
    assert "Functional.cross_entropy.0.backward" in names
    assert any(name.startswith("Tensor.addcdiv_.") for name in names)  # AdamW's own call
    assert ours["report"]["tensors"] > len(names)


def test_the_tensor_task_reports_the_bytes_it_left_on_disk(tmp_path: Path) -> None:
    done = bench("--only", "L0/tensor")
    assert done.returncode == 0, done.stderr
    assert "## Disk, one step of the tensor task" in done.stdout
    assert "failed" not in done.stdout


def test_an_unknown_case_is_refused_with_the_known_ones() -> None:
    done = bench("--only", "L9/statistics")
    assert done.returncode == 2
    assert "L1/statistics" in done.stderr
