"""overflow_check at level L2 in graph mode: the operators that overflow, each with its role, in a real graph."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from msprobe.analyze.graph_overflow import analyse_graph
from msprobe.cli import main
from msprobe.graphdump import GraphDump

SCRIPT = Path(__file__).with_name("overflow_graph_train.py")


def run(top: Path, *words: str, task: str = "overflow_check", section: Any = None) -> Any:
    config = top / "config.json"
    config.write_text(json.dumps({"task": task, "level": "L2", "dump_path": str(top / "d"), task: section or {}}))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOG_v": "3"}
    command = [sys.executable, str(SCRIPT), str(config), *words]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=top)
    assert ended.returncode == 0, ended.stderr
    return ended


def made(directory: Path) -> dict[Any, set[str]]:
    """Step -> the types of the operators that made an overflow in it."""
    found: dict[Any, set[str]] = {}
    for event in analyse_graph(GraphDump(directory)).overflows:
        if event.producer:
            found.setdefault(event.step, set()).add(event.name.rpartition("/")[2].partition("-")[0])
    return found


@pytest.mark.parametrize("task", ["overflow_check", "statistics"])
def test_each_step_has_the_operator_that_made_it(tmp_path: Path, task: str, capsys):
    ended = run(tmp_path, task=task)
    if task == "overflow_check":
        assert ended.stdout == run(tmp_path, "bare").stdout
        assert "4 of them had finite inputs, the first is Default_Exp-op" in ended.stderr
        assert "in iteration 1" in ended.stderr
    assert made(tmp_path / "d") == {1: {"Exp"}, 2: {"Log", "Div"}, 3: {"SqrtGrad"}}  # the gradient of log divides
    assert main(["overflow", str(tmp_path / "d"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["message"]["id"] == "overflow.producer"
    first = found["producer"]
    assert (first["direction"], first["step"], first["rank"]) == ("forward", 1, 0)
    assert "ops.exp(y * 100.0)" in first["source"]
    assert main(["overflow", str(tmp_path / "d")]) == 1
    assert "First producer" in capsys.readouterr().out
    assert main(["overflow", "replay", str(tmp_path / "d")]) == 2
    assert "cannot replay an operator of a graph" in capsys.readouterr().err


def test_a_mask_that_stays_an_input_is_not_an_overflow(tmp_path: Path, capsys):
    run(tmp_path, "clean")
    assert main(["overflow", str(tmp_path / "d"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["producer"], found["overflows"], found["message"]["id"]) == (None, 0, "overflow.none")
