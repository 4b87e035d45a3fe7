"""Level L2, dynamic graph: kernels inside compiled regions, through the framework's Dump; each run is a process."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mscollecting import configured
from msranks import needs_msrun, run_two

from msprobe.dump.reader import RankDump
from msprobe.graphdump import GraphDump

SCRIPT = Path(__file__).with_name("region_train.py")


def run(top: Path, *words: str, task: str = "statistics", section: Any = None, **keys: Any) -> Any:
    config = top / "config.json"
    config.write_text(
        json.dumps({"task": task, "level": "L2", "dump_path": str(top / "d"), task: section or {}, **keys})
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOG_v": "3"}
    command = [sys.executable, str(SCRIPT), *(words if "bare" in words else (str(config), *words))]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=top)
    assert ended.returncode == 0, ended.stderr
    return ended


def test_regions_of_the_wanted_steps_are_next_to_the_operators_and_losses_stay(tmp_path: Path):
    ended = run(tmp_path, "model", task="tensor", step=[1, 3])
    assert ended.stdout == run(tmp_path, "bare").stdout
    dump = GraphDump(tmp_path / "d")
    assert dump.iterations == (1, 3)
    for step in dump.iterations:  # a region runs twice in a step, and once more between the steps
        inputs = [t for t in dump.tensors if (t.type, t.io, t.iteration) == ("Sin", "input", step)]
        assert [float(dump.value(tensor).max()) for tensor in inputs] == [step, step + 0.5]
        outputs = [t for t in dump.tensors if (t.type, t.io, t.iteration) == ("Sin", "output", step)]
        for tensor, value in zip(outputs, (step, step + 0.5)):
            np.testing.assert_allclose(dump.value(tensor), np.full((2, 3), np.sin(value)), rtol=1e-6)
    types = {tensor.type for tensor in dump.tensors}
    assert {
        "MatMul",
        "Tanh",
        "TanhGrad",
        "BiasAddGrad",
        "ApplyMomentum",
    } <= types  # the Cell, its backward, the optimizer
    assert dump.select_nodes(line="return ops.tanh(self.fc(x))")
    ran = next(t.graph for t in dump.tensors if t.type == "Sin")
    assert dump.history(0, ran) == (1, 3)
    dynamic = RankDump(tmp_path / "d" / "pynative" / "step1" / "rank")
    assert any(name.startswith("Kernel.Square") for name in dynamic.records)
    assert not any(name.startswith(("Kernel.Sin", "Kernel.Tanh")) for name in dynamic.records)
    assert "optimizer(gradients)" in dynamic.stacks["Kernel.Momentum.0.forward"][0]
    assert sorted(path.name for path in (tmp_path / "d").iterdir() if path.name[0] != ".") == ["pynative", "rank_0"]
    assert not list((tmp_path / "d").rglob("msprobe_staging"))
    for path in (tmp_path / "d").rglob("*"):
        assert not path.stat().st_mode & (stat.S_IRWXO | stat.S_IWGRP), path


def test_list_selects_operators_and_an_older_dump_is_moved(tmp_path: Path):
    first = run(tmp_path, section={"list": ["Sin"], "data_mode": ["input"]})
    dump = GraphDump(tmp_path / "d")
    assert {(tensor.type, tensor.io) for tensor in dump.tensors} == {("Sin", "input")}
    assert dump.iterations == (0, 1, 2, 3)
    assert not any(tensor.file for tensor in dump.tensors)
    assert "is now in" not in first.stderr
    second = run(tmp_path, section={"list": ["Functional.square.0.forward"]})
    assert "are not dumped: list names calls of the dynamic graph only." in second.stderr
    third = run(tmp_path, section={"list": ["Tanh"]})
    assert "rank_0; it is now in" in third.stderr
    assert {tensor.type for tensor in GraphDump(tmp_path / "d").tensors} == {"Tanh", "TanhGrad"}


def test_a_late_start_is_logged_and_the_operators_are_recorded(tmp_path: Path):
    ended = run(tmp_path, "late")
    assert "are not dumped: a graph was compiled before start()" in ended.stderr
    assert not (tmp_path / "d" / "rank_0").exists()
    records = RankDump(tmp_path / "d" / "step0" / "rank").records
    assert any(name.startswith("Kernel.Square") for name in records)


def test_start_alone_is_enough_as_in_the_guide(tmp_path: Path):
    """Seed 000, 7.2.2.1: start() before the model, and nothing more."""
    ended = run(tmp_path, "once")
    assert ended.stdout == run(tmp_path, "bare").stdout
    assert "Traceback" not in ended.stderr
    assert "WARNING" not in ended.stderr
    dump = GraphDump(tmp_path / "d")
    assert dump.iterations == (0, 1, 2, 3)
    for step in range(4):
        sines = [one for one in dump.tensors if (one.type, one.io, one.iteration) == ("Sin", "input", step)]
        assert [one.row["Max Value"] for one in sines if one.row] == [str(float(step)), str(step + 0.5)]
        assert any(one.type == "ApplyMomentum" and one.iteration == step for one in dump.tensors)
    assert sorted(path.name for path in (tmp_path / "d").iterdir() if path.name[0] != ".") == ["rank_0"]


def test_model_train_with_start_alone_collects_the_wanted_step(tmp_path: Path):
    """Seed 000, 7.2.2.2: the same with mindspore.train.Model; `step` selects."""
    ended = run(tmp_path, "once", "train", step=[1])
    assert "WARNING" not in ended.stderr
    dump = GraphDump(tmp_path / "d")
    assert dump.iterations == (1,)
    assert {"Tanh", "ApplyMomentum"} <= {one.type for one in dump.tensors}
    missed = run(tmp_path, "once", "train", step=[9])
    assert "nothing was dumped" in missed.stderr
    assert "step 9 was wanted and never ran" in missed.stderr


RANKS = """
import sys
import mindspore as ms
import numpy as np
from mindspore import ops
from msprobe.mindspore import PrecisionDebugger
ms.set_context(mode=ms.PYNATIVE_MODE)
debugger = PrecisionDebugger(sys.argv[1])
debugger.start()  # before init(): the scheduler comes by here as well, and is no rank
ms.communication.init()
rank = ms.communication.get_rank()
@ms.jit
def doubled(x):
    return ops.sin(x) * 2
for step in range(2):
    debugger.start()
    doubled(ms.Tensor(np.full(2, 10 * rank + step, np.float32)))
    ops.square(ms.Tensor(np.full(2, rank + 1, np.float32)))
    debugger.stop()
    debugger.step()
print("done", rank, flush=True)
"""


@needs_msrun
def test_each_rank_has_its_regions_when_start_comes_before_init(tmp_path: Path):
    run_two(tmp_path, RANKS, configured(tmp_path, "L2"))
    dump = GraphDump(tmp_path / "dump")
    assert dump.ranks == (0, 1)
    for rank in (0, 1):
        sines = [t.row for t in dump.tensors if (t.rank, t.type, t.io) == (rank, "Sin", "input")]
        assert [row["Max Value"] for row in sines if row] == [f"{10 * rank}.0", f"{10 * rank + 1}.0"]
        for step in (0, 1):
            records = RankDump(tmp_path / "dump" / f"step{step}" / f"rank{rank}").records
            assert {"Jit.doubled.0.forward", "Kernel.Square.0.forward"} <= records.keys()
    assert not list(tmp_path.glob("dump.old-*"))


def test_a_list_has_the_kernels_of_regions_and_says_nothing_false(tmp_path: Path):
    ended = run(tmp_path, "model", section={"list": ["Sin", "Square", "Nowhere"]}, step=[1])
    assert {tensor.type for tensor in GraphDump(tmp_path / "d").tensors} == {"Sin"}
    dynamic = RankDump(tmp_path / "d" / "pynative" / "step1" / "rank")
    assert list(dynamic.records) == ["Kernel.Square.0.forward"]
    (line,) = [line for line in ended.stderr.splitlines() if "matched no call" in line]
    assert "'Nowhere'" in line
    assert "'Sin'" not in line


def test_a_loop_without_a_cell_has_its_operators_from_step_0_on(tmp_path: Path):
    ended = run(tmp_path, "functions")
    for step in (0, 1):
        names = list(RankDump(tmp_path / "d" / f"step{step}" / "rank").records)
        assert "Kernel.exp.0.forward" in names
    assert GraphDump(tmp_path / "d").iterations == (0, 1)
    assert "start() came before the model" not in ended.stderr
