"""Every call of ten architectures gets its own result: no bit of the run may change, forward or backward.

`msprobe prove` does this at a call before it grafts a golden value there. Here all calls of a run get theirs at once,
with DDP on two ranks, plainly, under autocast and under checkpointing.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from msprobe.config.directions import Directions, Graft
from msprobe.dump.names import FORWARD, parse_name
from msprobe.dump.reader import RankDump, items, open_dump
from msprobe.rerun.first_difference import compare_runs
from msprobe.rerun.launch import Script, run_script

from .architectures import SCRIPT

pytest.importorskip("transformers")
ARCHITECTURES = ("gpt2", "llama", "bert", "gru", "convolutions", "residual", "vit", "experts", "unet", "mixer")


def _port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _own_values(rank: RankDump) -> Iterator[Graft]:
    """A graft of each recorded result of a run, with the values of the same run."""
    assert rank.step is not None
    for name, record in rank.records.items():
        found = [item for slot, item in items(record) if slot.startswith("output") and isinstance(item, dict)]
        names = [item.get("data_name") for item in found if "dtype" in item]
        if parse_name(name).direction == FORWARD and names and all(isinstance(one, str) for one in names):
            files = tuple(str(rank.tensor_path(str(one)).resolve()) for one in names)
            yield Graft(name, rank.step, rank.rank, "output", files)


@pytest.mark.slow
def test_own_values_change_no_bit_of_ten_architectures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "1")
    (tmp_path / "train.py").write_text(SCRIPT)
    section = {"summary_mode": "md5"}
    first = {"task": "tensor", "level": "mix", "dump_path": str(tmp_path / "own"), "step": [0, 1], "tensor": section}
    (tmp_path / "config.json").write_text(json.dumps(first))
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", _port()]
    command = [*start, "-m", "msprobe", "run", "--config", "config.json", "train.py"]
    subprocess.run(command, check=True)
    own = open_dump(tmp_path / "own")
    grafts = tuple(one for rank in own.ranks for one in _own_values(rank))
    second = {**first, "task": "statistics", "dump_path": str(tmp_path / "grafted"), "statistics": section}
    (tmp_path / "second.json").write_text(json.dumps(second))
    (tmp_path / "report").mkdir()
    directions = Directions("second.json", 1, grafts=grafts, whole=False, report=str(tmp_path / "report"))
    script = Script(("torchrun", "--nproc_per_node", "2", "--master_port", _port(), "train.py"))
    assert run_script(script, directions, tmp_path, os.environ) == 0
    compared = compare_runs(own, open_dump(tmp_path / "grafted"))
    assert compared.differences == []
    assert compared.ranks == 2
    reports = [json.loads(file.read_text()) for file in (tmp_path / "report").iterdir()]
    assert [one["problems"] for one in reports] == [[]] * 4
    assert [sum(one["changed"].values()) for one in reports] == [0] * 4
    done = {name for one in reports for name in one["done"]}
    for part in ARCHITECTURES:
        assert any(f".{part}." in name for name in done), part
    assert len(done) > 500
