"""Processes and a cluster give the same result, byte for byte."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from written import saved, tensor, write_dump

from msprobe.compare import compare
from msprobe.dump.errors import DumpError
from msprobe.report.jsonl import write_jsonl

LINEAR = "Functional.linear.0.forward"


@pytest.fixture
def dumps(tmp_path: Path) -> tuple[Path, Path]:
    numbers = np.random.default_rng(0)
    for rank in range(3):
        array = numbers.standard_normal((16, 16)).astype(np.float32)
        for side in ("target", "golden"):
            directory = tmp_path / side / "step0" / f"rank{rank}"
            wrong = array + 1 if (rank, side) == (2, "target") else array
            items = [saved(directory, f"{LINEAR}.output.{n}", wrong) for n in range(2)]
            data = {LINEAR: {"input_args": [tensor(1.0)], "input_kwargs": {}, "output": items}}
            write_dump(tmp_path / side, data, rank=rank, task="tensor")
    return tmp_path / "target", tmp_path / "golden"


def _bytes(path: Path, *dumps: Path, **options: object) -> bytes:
    write_jsonl(compare(*dumps, **options), path)  # type: ignore[arg-type]
    return path.read_bytes()


def test_processes_give_the_same_bytes(tmp_path: Path, dumps: tuple[Path, Path]) -> None:
    alone = _bytes(tmp_path / "alone", *dumps)
    assert _bytes(tmp_path / "units", *dumps, jobs=2) == alone
    one = _bytes(tmp_path / "one", *dumps, ranks=[2])
    assert _bytes(tmp_path / "files", *dumps, ranks=[2], jobs=2) == one
    assert json.loads(alone.splitlines()[0])["origin"]["rank"] == 2


def test_a_local_ray_gives_the_same_bytes(tmp_path: Path, dumps: tuple[Path, Path]) -> None:
    pytest.importorskip("ray", reason="ray is not installed: --engine ray was NOT tested")
    script = (
        "import sys; from pathlib import Path; from msprobe.compare import compare;"
        "from msprobe.report.jsonl import write_jsonl;"
        "write_jsonl(compare(sys.argv[1], sys.argv[2], engine='ray'), Path(sys.argv[3]))"
    )
    out = tmp_path / "ray"
    command = [sys.executable, "-c", script, *map(str, dumps), str(out)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr
    assert out.read_bytes() == _bytes(tmp_path / "alone", *dumps)


def test_an_unknown_engine_is_said(dumps: tuple[Path, Path]) -> None:
    with pytest.raises(DumpError, match="choose local or ray"):
        compare(*dumps, engine="spark")


def test_a_worker_that_meets_a_broken_dump_says_which(dumps: tuple[Path, Path]) -> None:
    (dumps[0] / "step0" / "rank1" / "dump.json").write_text("{")
    found = compare(*dumps, jobs=2)
    assert [unit.rank for unit in found.units] == [0, 2]  # the rest was compared
    assert re.search(r"rank1.*dump\.json is not JSON.*; nothing was compared there", found.notes[0])
