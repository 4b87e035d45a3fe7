"""PrecisionDebugger at level L2 in graph mode: the framework's Dump from config.json, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "graphdump"))
from async_samples import dump_file, op_input

from msprobe.collect.run.lifecycle import UsageError
from msprobe.config import load
from msprobe.graphdump import GraphDump
from msprobe.graphdump.dumping.dump_settings import COMMON, parse_settings
from msprobe.mindspore.graph import acl_kernels
from msprobe.mindspore.graph.acl_kernels import acl_dump, is_sunk, refuse_for_acl
from msprobe.mindspore.graph.graph_kernels import data_dump, refuse
from msprobe.tasks import make_task

SCRIPT = Path(__file__).with_name("graph_train.py")


def run(top: Path, *words: str, task: str = "statistics", section: Any = None, **keys: Any) -> Any:
    config = top / "config.json"
    config.write_text(
        json.dumps({"task": task, "level": "L2", "dump_path": str(top / "d"), task: section or {}, **keys})
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOG_v": "3"}
    command = [sys.executable, str(SCRIPT), str(config), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=top)


def test_statistics_of_the_chosen_operators_and_steps(tmp_path: Path):
    bare = run(tmp_path, "bare")
    section = {
        "list": ["Exp", "name-regex(.*MatMul.*)"],
        "data_mode": ["output"],
        "summary_mode": ["max", "mean", "md5"],
    }
    ended = run(tmp_path, section=section, step=[0, "2"])
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == bare.stdout
    dump = GraphDump(tmp_path / "d")
    assert dump.iterations == (0, 2)
    assert {tensor.io for tensor in dump.tensors} == {"output"}
    assert {"Exp", "MatMul"} <= {tensor.type for tensor in dump.tensors} <= {"Exp", "MatMul"}
    exp = next(tensor for tensor in dump.tensors if tensor.type == "Exp" and tensor.iteration == 0)
    assert exp.row is not None
    assert (exp.row["Max Value"], exp.row["Avg Value"]) == ("1.0", "1.0")  # exp(0)
    assert list(exp.row)[10:] == ["Max Value", "Avg Value", "MD5"]
    assert not any(tensor.file for tensor in dump.tensors)


def test_each_way_to_name_an_operator_and_each_side_stands_alone(tmp_path: Path):
    """A type, an expression and the name in the graph: each selects the one Exp, with one value of data_mode."""
    name = ""
    for mode, sides in (("all", {"input", "output"}), ("input", {"input"}), ("output", {"output"})):
        wanted = {"all": "exp", "input": "name-regex(.*/Exp-op.*)", "output": name}[mode]
        top = tmp_path / mode
        top.mkdir()
        ended = run(top, section={"list": [wanted], "data_mode": [mode]}, step=[0])
        assert ended.returncode == 0, ended.stderr
        dump = GraphDump(top / "d")
        tensors = [tensor for tensor in dump.tensors if tensor.iteration is not None]
        assert {tensor.type for tensor in tensors} == {"Exp"}, wanted
        assert {tensor.io for tensor in tensors} == sides
        (name,) = [operator.name for operator in dump.operators if operator.type == "Exp" and operator.in_files]


def test_a_resumed_training_has_its_own_step_numbers(tmp_path: Path):
    ended = run(tmp_path, "model", "resumed", section={"list": ["Exp"]}, step=[7, 8])
    assert ended.returncode == 0, ended.stderr
    dump = GraphDump(tmp_path / "d")
    assert dump.iterations == (7, 8)  # 3 steps an epoch: the third epoch has 6, 7 and 8
    inputs = [tensor for tensor in dump.tensors if tensor.io == "output"]
    assert [tensor.iteration for tensor in inputs] == [7, 8]


def task_of(top: Path, task: str, section: Any, **keys: Any) -> Any:
    config = top / "config.json"
    config.write_text(json.dumps({"task": task, "level": "L2", "dump_path": "/d", task: section, **keys}))
    return make_task(load("mindspore", str(config), graph_mode=True))


def test_only_o2_on_ascend_is_dumped_by_ascend():
    assert is_sunk("Ascend", "O2")
    assert not any(is_sunk(*one) for one in (("Ascend", "O1"), ("Ascend", ""), ("CPU", "O2")))


@pytest.mark.parametrize(
    ("task", "section", "dump"),
    [
        (
            "tensor",
            {"list": ["Default/Conv-op12"], "data_mode": ["input"]},
            {"dump_list": [{"layer": ["Default/Conv-op12"]}], "dump_mode": "input", "dump_data": "tensor"},
        ),
        ("statistics", {}, {"dump_list": [], "dump_mode": "all", "dump_data": "stats"}),
    ],
)
def test_the_configuration_of_ascends_dump_at_o2(tmp_path: Path, task: str, section: Any, dump: dict[str, Any]):
    value = acl_dump(task_of(tmp_path, task, section, step=[0, "5-7"]), rank=3)
    always = {"dump_path": "/d/rank_3", "dump_op_switch": "off", "dump_step": "0|5|6|7"}
    assert value == {"dump": {**dump, **always}}
    assert "dump_step" not in acl_dump(task_of(tmp_path, task, section), rank=3)["dump"]


def test_overflow_at_o2_is_the_debug_dump_alone(tmp_path: Path):
    value = acl_dump(task_of(tmp_path, "overflow_check", {"check_mode": "all"}), rank=0)
    assert value == {"dump": {"dump_path": "/d/rank_0", "dump_debug": "on"}}


@pytest.mark.parametrize(
    ("task", "section", "has_acl", "words"),
    [
        ("tensor", {}, False, "needs pyACL, .* or use jit_level O0 or O1"),
        ("structure", {}, True, "use jit_level O0 or O1"),
        ("tensor", {"list": ["name-regex(.*/Exp-op.*)"]}, True, "no regular expressions"),
    ],
)
def test_what_o2_cannot_do_says_what_to_use(tmp_path: Path, task: str, section: Any, has_acl: bool, words: str):
    with pytest.raises(UsageError, match=words):
        refuse_for_acl(task_of(tmp_path, task, section).settings, has_acl)


def test_structure_is_the_graph_without_values(tmp_path: Path):
    ended = run(tmp_path, task="structure")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == run(tmp_path, "bare").stdout
    assert "graphs and execution orders, without values, are in" in ended.stderr
    assert "nothing was dumped" not in ended.stderr
    dump = GraphDump(tmp_path / "d")
    assert dump.tensors == ()
    assert {"MatMul", "Exp"} <= {operator.type for operator in dump.operators}
    assert any(name.endswith("Exp-op0") for name in dump.order(0, 0) or ())


def test_an_earlier_dump_is_moved_completely(tmp_path: Path):
    for _ in range(2):
        ended = run(tmp_path, task="structure")
        assert ended.returncode == 0, ended.stderr
    assert "moved an earlier dump from" in ended.stderr
    (older,) = tmp_path.glob("d.old-*")
    assert {o.name for o in GraphDump(older).operators} == {o.name for o in GraphDump(tmp_path / "d").operators}


def test_a_late_start_is_logged_and_nothing_is_dumped(tmp_path: Path):
    ended = run(tmp_path, "late")
    assert ended.returncode == 0, ended.stderr
    assert "start() is too late: a graph is already compiled" in ended.stderr
    assert not (tmp_path / "d").exists()


def test_overflow_check_saves_the_operators_that_overflow(tmp_path: Path):
    ended = run(tmp_path, "burst", task="overflow_check", section={"check_mode": "all"})
    assert ended.returncode == 0, ended.stderr
    dump = GraphDump(tmp_path / "d")
    first = min((t for t in dump.tensors if t.iteration is not None), key=lambda t: t.timestamp)
    assert (first.type, first.iteration) == ("Exp", 1)


def test_model_train_with_msprobe_step_and_raw_bytes(tmp_path: Path):
    ended = run(tmp_path, "model", task="tensor", section={"file_format": "bin"})
    assert ended.returncode == 0, ended.stderr
    dump = GraphDump(tmp_path / "d")
    assert dump.iterations == (0, 1, 2)
    assert all(tensor.file.endswith(".bin") for tensor in dump.tensors)
    first = next(t for t in dump.tensors if (t.type, t.io, t.iteration) == ("Exp", "output", 0))
    assert dump.value(first).tolist() == [[1.0] * 4] * 2  # exp(0)


@pytest.mark.parametrize(
    ("task", "section", "words"),
    [
        ("statistics", {"summary_mode": "xor"}, 'use "statistics", "md5" or a list'),
    ],
)
def test_what_graph_mode_does_not_have_says_what_there_is(tmp_path: Path, task: str, section: Any, words: str):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"task": task, "level": "L2", "dump_path": "/d", task: section}))
    with pytest.raises(UsageError, match=words):
        refuse(load("mindspore", str(config), graph_mode=True))


def test_every_key_has_its_place(tmp_path: Path):
    config = tmp_path / "config.json"
    section = {"list": ["Default/Conv-op12"], "data_mode": ["input"], "summary_mode": "md5"}
    keys = {"rank": [1, 3], "step": [0, "5-7"], "statistics": section}
    config.write_text(json.dumps({"task": "statistics", "level": "L2", "dump_path": "/d", **keys}))
    value = data_dump(make_task(load("mindspore", str(config), graph_mode=True)), initial=4)
    assert value[COMMON] == {
        "path": "/d",
        "net_name": "Net",
        "iteration": "0|5|6|7",
        "initial_iteration": 4,
        "support_device": [0],
        "saved_data": "statistic",
        "statistic_category": ["max", "min", "avg", "l2norm", "md5"],
        "input_output": 1,
        "file_format": "npy",
        "dump_mode": 1,
        "kernels": ["Default/Conv-op12"],
    }
    parse_settings(value, "x", {})


@pytest.mark.parametrize(("task", "section"), [("tensor", {}), ("tensor", {"file_format": "bin"}), ("statistics", {})])
def test_at_the_end_of_a_run_at_o2_tensors_are_in_step_directories(
    tmp_path: Path, task: str, section: Any, monkeypatch: pytest.MonkeyPatch
):
    """pyACL is replaced here: the replacement writes what Ascend's documents show, and reports success."""
    made = task_of(tmp_path, task, section, dump_path=str(tmp_path / "dump"))
    place = tmp_path / "dump" / "rank_0" / "20241224113136" / "0" / "net" / "1" / "0"

    def finalize_dump() -> int:
        place.mkdir(parents=True)
        data = np.ones(2, np.float32).tobytes()
        content = dump_file(inputs=[(op_input(1, 2, [2], len(data)), data)], outputs=[], buffers=[])
        (place / "Add.Default_Add-op1.0.0.100").write_bytes(content)
        return 0

    calls = SimpleNamespace(init_dump=lambda: 0, set_dump=lambda file: 0, finalize_dump=finalize_dump)
    monkeypatch.setitem(sys.modules, "acl", SimpleNamespace(mdl=calls))
    monkeypatch.setattr(acl_kernels.atexit, "register", lambda function: None)
    kernels = acl_kernels.AclKernels(made)
    kernels._begin()
    kernels._started = True
    kernels.close()
    kernels.close()
    converted = list((tmp_path / "dump").rglob("step_0/*"))
    assert [path.name for path in converted] == (
        ["Add.Default_Add-op1.0.0.100.input.0.ND.FLOAT.npy"] if (task, section) == ("tensor", {}) else []
    )
    assert place.exists() != bool(converted)
    assert (tmp_path / "dump" / "acl_dump_0.json").exists()


def test_an_optimizer_that_is_a_graph_of_its_own_is_explained(tmp_path: Path):
    ended = run(tmp_path, "apart")
    assert ended.returncode == 0, ended.stderr
    assert "its kernels of step N are in the directory of step N+1" in ended.stderr
    found = {tensor.iteration for tensor in GraphDump(tmp_path / "d").tensors if tensor.type == "SGD"}
    assert found == {1, 2, 3}  # as MindSpore counts


def test_a_rank_that_is_not_wanted_is_logged(tmp_path: Path):
    ended = run(tmp_path, rank=[1])
    assert "this process is rank 0, and the configuration collects rank [1]" in ended.stderr
    assert "its kernels of step" not in ended.stderr
    assert not (tmp_path / "d").exists()
