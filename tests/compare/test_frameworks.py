"""MindSpore against PyTorch, without a mapping: the same network, clean and with planted faults."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from msprobe.compare import compare

SCRIPT = Path(__file__).with_name("pair_run.py")
_kept = tempfile.TemporaryDirectory(prefix="msprobe-pair-")


@functools.cache
def dump(framework: str, fault: str = "none") -> Path:
    out = Path(_kept.name) / f"{framework}-{fault.replace(' ', '-')}"
    command = [sys.executable, str(SCRIPT), framework, str(out), fault]
    environment = {**os.environ, "GLOG_v": "3", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    return out


def test_the_same_network_in_both_frameworks_is_the_same() -> None:
    result = compare(dump("mindspore"), dump("pytorch"))
    left = [(r.name, r.reason) for _, r in result.rows() if r.verdict != "pass" and not r.reason.startswith("covered")]
    assert not left
    assert result.verdict == "same"
    assert result.counts["pass"] > 50
    assert "the frameworks differ: mindspore and pytorch" in result.notes


def test_calls_are_matched_through_fusion_and_other_names() -> None:
    result = compare(dump("mindspore"), dump("pytorch"))
    pairs = {m.target.name: (m.golden.name, m.how) for m, _ in result.units[0].groups if m.target and m.golden}
    assert pairs["Primitive.bias_add.BiasAdd.0.forward"] == ("Functional.linear.0.forward", "fused")
    assert pairs["Cell.fc1.Dense.forward.0"][0] == "Module.fc1.Linear.forward.0"
    assert pairs["Mint.tanh.0.forward"][0] == "Torch.tanh.0.forward"
    slots = {
        r.slot: r.golden_slot for _, r in result.rows() if r.name.startswith("Cell.norm.LayerNorm.forward.0.param")
    }
    assert slots == {"parameters.gamma": "parameters.weight", "parameters.beta": "parameters.bias"}


@pytest.mark.parametrize(
    ("fault", "name", "module"),
    [
        ("wrong eps", "LayerNorm", "Cell.norm.LayerNorm"),
        ("changed activation", "Mint.sigmoid", None),
        ("missing scale", "Tensor.__mul__", None),
        ("missing residual", "__add__", None),
        ("changed weight", "weight", "Cell.fc2.Dense"),
    ],
)
def test_a_fault_in_the_mindspore_network_is_named(fault: str, name: str, module: str) -> None:
    origin = compare(dump("mindspore", fault), dump("pytorch")).origin
    assert origin is not None
    assert name in origin.name
    assert origin.module == module
