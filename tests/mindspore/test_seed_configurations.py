"""The MindSpore configurations of seed 003 do their work in a run; only dump_path is replaced."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, ops
from mscollecting import Dump
from msmodels import tensor

from msprobe.graphdump import GraphDump
from msprobe.mindspore import PrecisionDebugger
from msprobe.tasks.overflow_check.finding_writer import OverflowStop

DATA = Path(__file__).parents[1] / "config" / "data"


def configure(place: Path, name: str) -> str:
    text = (DATA / f"seed003_{name}.json").read_text(encoding="utf-8")
    (place / "config.json").write_text(text.replace("/home/data_dump", str(place / "data_dump")), encoding="utf-8")
    return str(place / "config.json")


@pytest.mark.parametrize("name", ["06_mindspore_graph_statistics", "07_mindspore_graph_tensor"])
def test_graph_mode(tmp_path, name):
    dump = trained(tmp_path, name)
    assert dump.iterations == (0, 1, 2)
    is_tensor = name.endswith("tensor")
    exponentials = [one for one in dump.tensors if (one.type, one.io) == ("Exp", "output")]
    assert [(bool(one.file), one.row is None) for one in exponentials] == [(is_tensor, is_tensor)] * 3
    assert dump.statistics(exponentials[0]).max == 1  # exp(0)
    assert {"Exp", "MatMul", "BiasAdd"} <= {one.type for one in dump.tensors}


def test_overflow_check_in_graph_mode(tmp_path):
    dump = trained(tmp_path, "08_mindspore_graph_overflow_check", "burst")
    found = [one for one in dump.tensors if one.iteration is not None]
    first = min(found, key=lambda one: one.timestamp)
    assert (first.type, first.iteration) == ("Exp", 1)
    assert {one.iteration for one in found} == {1, 2}  # from step 1 on the weights are not finite


def trained(place: Path, name: str, *words: str) -> GraphDump:
    script = Path(__file__).with_name("graph_train.py")
    command = [sys.executable, str(script), configure(place, name), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOG_v": "3"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=place)
    assert ended.returncode == 0, ended.stderr
    return GraphDump(place / "data_dump")


def work(debugger: PrecisionDebugger) -> None:
    for _ in range(2):
        debugger.start()
        ms.grad(lambda x: ops.exp(ops.relu(x)).sum())(tensor(2, 3))
        debugger.stop()
        debugger.step()


def test_free_benchmark(tmp_path):
    """ops.add alone is checked: 40000 + 40000 is infinity in float16, and 80000 in float32."""
    debugger = PrecisionDebugger(config_path=configure(tmp_path, "09_mindspore_dynamic_free_benchmark"))
    large = Tensor(np.full(4, 40000), ms.float16)
    for _ in range(2):  # raised precision is tried when the first step has ended
        debugger.start()
        ops.mul(large, large)
        ops.add(large, large)
        debugger.stop()
        debugger.step()
    debugger._lifecycle.close()
    rows = list(csv.DictReader((tmp_path / "data_dump" / "free_benchmark.csv").open()))
    assert {(row["api_name"], row["pert_mode"]) for row in rows} == {("Functional.add.0", "improve_precision")}


@pytest.mark.parametrize("name", ["10_mindspore_dynamic_statistics", "11_mindspore_dynamic_tensor"])
def test_dynamic_mode(tmp_path, name):
    work(PrecisionDebugger(config_path=configure(tmp_path, name)))
    for step in (0, 1):
        dump = Dump(tmp_path / "data_dump", step)
        assert dump.names == [
            f"Functional.{api}.0.forward" if api != "sum" else "Tensor.sum.0.forward" for api in ("relu", "exp", "sum")
        ] + ["Tensor.sum.0.backward", "Functional.exp.0.backward", "Functional.relu.0.backward"]
        saved = {path.name for path in (dump.directory / "dump_tensor_data").glob("*.npy")}
        assert ("Functional.exp.0.backward.output.0.npy" in saved) is name.endswith("tensor")
        assert bool(saved) is name.endswith("tensor")


def test_overflow_check(tmp_path):
    debugger = PrecisionDebugger(config_path=configure(tmp_path, "12_mindspore_dynamic_overflow_check"))
    work(debugger)
    debugger.start()
    with pytest.raises(OverflowStop, match=r"Functional\.exp\.0\.forward produced infinity, step 2"):
        ops.exp(Tensor([1e4]))
    assert Dump(tmp_path / "data_dump", 2)["Functional.exp.0.forward"]["overflow"] == "producer"
