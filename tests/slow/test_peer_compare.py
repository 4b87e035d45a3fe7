"""mindstudio-probe compares dumps of msprobe, because users keep their other tools.

Runs mindstudio-probe 26.2.0 in its own interpreter on a dump of msprobe, against itself, and reads the csv.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("train_for_compare.py")
SECTIONS = {"input_args": "input", "input_kwargs": "input"}


@pytest.fixture(scope="module")
def peer() -> Path:
    named = os.environ.get("MSPROBE_PEER_PYTHON")
    python = Path(named) if named else ROOT / ".venv-peer" / "bin" / "python"
    command = python.with_name("msprobe")
    if not command.exists():
        pytest.skip(
            f"no peer at {command}: run `make test-slow`, which installs it into .venv-peer, or set"
            " MSPROBE_PEER_PYTHON to the python of an environment with mindstudio-probe 26.2.0"
        )
    return command


def collect(directory: Path, task: str, level: str, summary_mode: str) -> Path:
    dump = directory / "dump"
    config = directory / "config.json"
    section = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": summary_mode}
    settings = {"task": task, "dump_path": str(dump), "rank": [], "step": [1], "level": level, task: section}
    config.write_text(json.dumps(settings))
    subprocess.run([sys.executable, str(SCRIPT), str(config)], check=True, cwd=directory)
    return dump / "step1"


def compare(peer: Path, step: Path, out: Path) -> list[dict[str, str]]:
    """The rows of the peer's report on a step directory compared with itself."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [str(peer), "compare", "-tp", str(step), "-gp", str(step), "-o", str(out)],
        capture_output=True,
        text=True,
        cwd=out.parent,
        env=environment,
    )
    reports = list(out.glob("compare_result_*.csv"))
    assert len(reports) == 1, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    with reports[0].open(newline="") as file:
        return list(csv.DictReader(file))


def tensors(dump: Path) -> dict[str, dict[str, Any]]:
    """Every tensor of a dump.json under the name that a comparison gives its row."""
    found = {}
    for name, record in json.loads(dump.read_text())["data"].items():
        for section, value in record.items():
            if name.endswith("parameters_grad"):
                assert len(value) == 1
                value = value[0]
            found.update(named(value, f"{name}.{SECTIONS.get(section, section)}"))
    return found


def named(value: Any, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from named(item, f"{name}.{index}")
    elif isinstance(value, dict) and value.get("type") == "torch.Tensor":
        yield name, value
    elif isinstance(value, dict) and "type" not in value:
        for key, item in value.items():
            yield from named(item, f"{name}.{key}")


@pytest.mark.parametrize(
    ("task", "level", "summary_mode"),
    [
        ("statistics", "L0", "statistics"),
        ("statistics", "L1", "statistics"),
        ("statistics", "mix", "statistics"),
        ("statistics", "L1", "md5"),
        ("tensor", "mix", "statistics"),
    ],
)
def test_the_peer_pairs_every_tensor_of_our_dump_with_itself(
    tmp_path: Path, peer: Path, task: str, level: str, summary_mode: str
) -> None:
    step = collect(tmp_path, task, level, summary_mode)
    expected = tensors(step / "rank" / "dump.json")
    assert any(".forward" in name for name in expected)
    assert any(".backward" in name for name in expected)

    rows = compare(peer, step, tmp_path / "report")

    by_name = {row["NPU Name"]: row for row in rows}
    assert len(by_name) == len(rows)
    assert sorted(set(expected) - set(by_name)) == []
    assert [row["NPU Name"] for row in rows if row["NPU Name"] != row["Bench Name"]] == []
    assert [(row["NPU Name"], row["Err_message"]) for row in rows if row["Result"] != "pass"] == []
    for name, tensor in expected.items():
        row = by_name[name]
        assert (row["NPU Dtype"], row["Bench Dtype"]) == (tensor["dtype"],) * 2
        assert json.loads(row["NPU Tensor Shape"]) == tensor["shape"]
        if summary_mode == "md5":
            assert row["NPU MD5"] == row["BENCH MD5"] == tensor["md5"]
        elif task == "tensor":
            assert tensor["data_name"] in row["Data_name"]
