"""Real runs over gloo in the layouts of torch: the reassembled tensors are those of one device, to rounding."""

from __future__ import annotations

import functools
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

import gloo
from msprobe.compare import compare

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("layout_run.py")
_kept = tempfile.TemporaryDirectory(prefix="msprobe-layouts-")
ROUNDING = 1e-5


@functools.cache
def run(layout: str) -> Path:
    out, world = Path(_kept.name) / layout, 1 if layout == "single" else 2

    def attempt() -> SimpleNamespace:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        started = [
            subprocess.Popen(
                [sys.executable, str(SCRIPT), str(out), str(rank), str(world), port, layout],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(world)
        ]
        said = [process.communicate(timeout=400)[0] for process in started]
        return SimpleNamespace(returncode=max(abs(process.returncode) for process in started), stderr="".join(said))

    done = gloo.repeated(attempt)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.parametrize("layout", ["tp", "pp", "fsdp", "ddp", "flat", "original"])
def test_the_reassembled_tensors_are_those_of_one_device(layout: str) -> None:
    result = compare(run(layout), run("single"))
    assert result.verdict == "same"
    measured = [row.measured for _, row in result.rows() if row.joined is not None and row.measured is not None]
    assert len(measured) > 200
    assert max(one.relative_l2 for one in measured) < ROUNDING
    assert compare(run("single"), run(layout)).verdict == "same"


def test_the_reassembled_tensors_of_context_parallelism_are_those_of_one_device(tmp_path: Path) -> None:
    """The sequence is cut in the balanced order: the suite of parallel layouts has such a run."""
    command = ["-m", "benchmarks.parallel.run", "--only", "context2", "--case", "clean", "--mode", "tensor"]
    done = subprocess.run(
        [sys.executable, *command, "--keep", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = compare(tmp_path / "tensor" / "context2-clean", tmp_path / "tensor" / "single-gpt-1")
    assert result.verdict == "same"
    rows = [row for _, row in result.rows() if row.joined is not None and row.measured is not None]
    kept = [row for row in rows if row.verdict == "pass"]  # AdamW turns the noise of tiny gradients into steps
    assert len(kept) > max(1000, 0.97 * len(rows))
    assert max(row.measured.relative_l2 for row in kept if row.measured is not None) < ROUNDING


def test_two_layouts_of_two_ranks_are_compared_as_one_run() -> None:
    assert compare(run("fsdp"), run("ddp")).verdict == "same"
    assert compare(run("tp"), run("pp")).verdict == "same"


@pytest.mark.parametrize("layout", ["flat", "original"])
def test_parameters_gradients_and_updates_of_flat_parameters_are_compared(layout: str) -> None:
    """FullyShardedDataParallel: whatever is compared of FSDP2 is compared of FSDP1 too."""
    found = [
        {(row.name.partition(".")[0], row.slot) for _, row in compare(run(one), run("single")).rows() if row.measured}
        for one in (layout, "fsdp")
    ]
    assert found[1] <= found[0]
    for other in ("fsdp", "ddp"):
        assert compare(run(layout), run(other)).verdict == "same"
        assert compare(run(other), run(layout)).verdict == "same"
