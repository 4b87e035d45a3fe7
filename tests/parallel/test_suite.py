"""The suite of parallel layouts is as large as it claims, and a representative part of it gives the right answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAULTS, LAYOUTS = 30, 12


def _run(file: Path, *arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "benchmarks.parallel.run", "--json", str(file), *arguments]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert file.exists(), done.stderr
    return [one for found in json.loads(file.read_text()).values() for one in found]


def test_there_are_enough_faults_and_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.parallel.cases import CASES, CLEAN, KINDS

    faults = [case for case in CASES if case.kind != CLEAN]
    clean = [case for case in CASES if case.kind == CLEAN]
    assert len({case.id for case in CASES}) == len(CASES)
    assert len({case.fault for case in faults}) >= FAULTS
    assert len(clean) >= LAYOUTS
    assert {case.layout for case in faults} <= {case.layout for case in clean}
    assert {case.kind for case in CASES} == set(KINDS)


def _check(tmp_path: Path, layout: str, *faults: str) -> None:
    cases = [f"{layout}/{fault}" for fault in faults]
    arguments = [word for case in cases for word in ("--case", case)]
    found = _run(tmp_path / "found.json", "--only", layout, "--mode", "tensor", *arguments)
    said = {one["case"]: one["verdict"] for one in found if one["case"] in cases}
    assert said == {case: "same" if case.endswith("clean") else "right" for case in cases}


def test_a_tensor_parallel_model_agrees_with_one_device_and_a_missing_all_reduce_is_named(tmp_path: Path) -> None:
    _check(tmp_path, "tensor2", "clean", "no_all_reduce")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "faults"),
    [
        ("tensor2", ("norm_of_one_rank", "shard_shifted", "dropout_on_one_rank", "head_not_updated_on_one")),
        ("context2", ("clean", "positions_not_balanced")),
        ("pipeline2_interleaved", ("clean", "microbatches_not_scaled")),
        ("fsdp2", ("clean", "shard_of_one_rank")),
        ("ddp2_shares", ("clean", "weight_of_one_rank", "rate_of_one_rank")),
    ],
)
def test_faults_of_a_layout_are_named(tmp_path: Path, layout: str, faults: tuple[str, ...]) -> None:
    _check(tmp_path, layout, *faults)


@pytest.mark.slow
def test_every_clean_layout_agrees_with_one_device_and_with_other_layouts(tmp_path: Path) -> None:
    _run(tmp_path / "found.json", "--case", "/clean")
    found = json.loads((tmp_path / "found.json").read_text())
    others = {(mode, one["case"]): one["verdict"] for mode in found for one in found[mode] if one["verdict"] != "same"}
    # FSDP1 takes the norms of flat parameters: statistics do not show those of single parameters, and compare says so.
    assert others == {("statistics", "fsdp1/clean"): "not compared"}
