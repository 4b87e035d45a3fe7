"""Several ranks: differences are followed through collectives to the rank where they started."""

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

SCRIPT = Path(__file__).with_name("parallel_run.py")
_kept = tempfile.TemporaryDirectory(prefix="msprobe-ranks-")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@functools.cache
def parallel(layout: str, world: int, fault: str = "none") -> Path:
    out = Path(_kept.name) / f"{layout}-{world}-{fault}"

    def attempt() -> SimpleNamespace:
        port = str(_free_port())
        started = [
            subprocess.Popen(
                [sys.executable, str(SCRIPT), str(out), str(rank), str(world), port, fault, layout],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(world)
        ]
        said = [process.communicate(timeout=240)[0] for process in started]
        return SimpleNamespace(returncode=max(abs(process.returncode) for process in started), stderr="".join(said))

    done = gloo.repeated(attempt)
    assert done.returncode == 0, done.stderr
    return out


def test_a_clean_parallel_run_is_the_same() -> None:
    result = compare(parallel("data", 2), parallel("data", 2))
    assert result.verdict == "same"
    assert len(result.units) == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_one_ranks_data_is_blamed_on_that_rank(rank: int) -> None:
    result = compare(parallel("data", 2, f"data{rank}"), parallel("data", 2))
    origin = result.origin
    assert origin is not None
    assert origin.rank == rank
    assert origin.kind == "input"
    assert origin.module == "Module.up.Column"
    other = [m.call.name for m, rows in result.units[1 - rank].groups if any(r.verdict == "error" for r in rows)]
    assert other
    assert other[0].startswith("Distributed.all_reduce")
    assert any(f"reached rank {1 - rank} through Distributed.all_reduce" in line for line in origin.evidence)


def test_a_fault_in_one_rank_before_the_all_reduce_is_found_there() -> None:
    result = compare(parallel("tensor", 2, "scale1"), parallel("tensor", 2))
    assert result.origin is not None
    assert result.origin.rank == 1
    assert result.origin.name == "Tensor.__mul__.0.forward"
    assert result.origin.module == "Module.down.Row"


def test_one_rank_alone_says_that_the_difference_was_received() -> None:
    result = compare(parallel("tensor", 2, "scale1"), parallel("tensor", 2), ranks=[0])
    assert result.origin is not None
    assert result.origin.kind == "received"
    assert "another rank" in result.origin.sentence


def test_another_tensor_parallel_layout_is_put_together_and_agrees() -> None:
    result = compare(parallel("tensor", 2), parallel("tensor", 1))
    bad = [(row.name, row.reason) for _, row in result.rows() if row.verdict in ("warning", "error")]
    assert not bad
    ways = {row.name: row.joined.text for _, row in result.rows() if row.joined is not None}
    assert ways["Functional.linear.0.forward.input.0"] == "ranks R"
    assert ways["Functional.linear.0.forward.input.1"] == "ranks S(0)"
    assert ways["Functional.linear.0.forward.output.0"] == "ranks S(1)"
    assert ways["Functional.linear.1.forward.input.1"] == "ranks S(1)"
    assert ways["Functional.linear.1.forward.output.0"] == "ranks P"
    assert result.verdict == "same"
    reverse = compare(parallel("tensor", 1), parallel("tensor", 2))
    assert reverse.verdict == "same"


def test_the_layout_that_was_found_is_said_with_its_confidence() -> None:
    result = compare(parallel("tensor", 2), parallel("tensor", 1))
    (said,) = [note for note in result.notes if note.startswith("layout of the target")]
    assert "ranks 0, 1" in said
    assert "found from the values" in said
    assert "rows agree" in said


def test_a_fault_is_found_through_the_layout() -> None:
    result = compare(parallel("tensor", 2, "scale1"), parallel("tensor", 1))
    assert result.origin is not None
    assert result.origin.module == "Module.down.Row"
