"""docs/graph.md and docs/graph_dump.md show the real behaviour: their commands run and print the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import real_dumps

ROOT = Path(__file__).parents[2]
PAGE = (Path(__file__).parents[2] / "docs" / "graph.md").read_text(encoding="utf-8")


def test_the_program_runs():
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    program = program.replace('"./dump"', repr(str(real_dumps.alexnet()))).replace("train.py:175", "self.conv3(x)")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    lines = ended.stdout.splitlines()
    assert lines[0].startswith(
        "Default/network-WithLossCell/_backbone-AlexNet/conv3-Conv2d/Conv2D-op0 output.0 (4, 48, 3, 3)"
    )
    assert lines[-1] == "()"


def test_the_line_is_the_examples():
    (number,) = re.findall(r"examples/alexnet/train_alexnet\.py:(\d+)  x = self\.conv3\(x\)", PAGE)
    assert real_dumps.ALEXNET.read_text().splitlines()[int(number) - 1].strip() == "x = self.conv3(x)"


def test_every_option_of_the_page_exists():
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", PAGE)) - {"--dump"}
    known = ""
    for arguments in (["convert"], *(["graph", verb] for verb in ("find", "op", "order", "check"))):
        command = [sys.executable, "-m", "msprobe", *arguments, "--help"]
        known += subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert {option for option in options if option not in known} == set()


def test_the_settings_of_mindspore_are_explained():
    """Those that the notices of seeds 000, 002 and 004 name: one row each, with more than the name."""
    page = (ROOT / "docs" / "graph_dump.md").read_text(encoding="utf-8")
    _, _, part = page.partition("\n## Settings of MindSpore that matter here\n")
    rows = {line.split(" | ")[0]: line.split(" | ")[1] for line in part.partition("\n## ")[0].splitlines()[2:] if line}
    named = (
        *("MS_DEV_SAVE_GRAPHS", "reserve_class_name_in_scope", "request_stop", "MINDSPORE_DUMP_IGNORE_USELESS_OUTPUT"),
        *("MS_DUMP_SLICE_SIZE", "MS_DUMP_WAIT_TIME"),
    )
    for name in named:
        (text,) = (text for setting, text in rows.items() if name in setting)
        assert len(text.split()) > 8, name


def test_the_sample_of_the_documents_runs_as_the_page_says(tmp_path: Path):
    page = (ROOT / "docs" / "graph_dump.md").read_text(encoding="utf-8")
    (block,) = (part.splitlines() for part in page.split("```")[1::2] if "alexnet" in part)
    commands = [line[2:] for line in block if line.startswith("$ ")]
    shown = [line for line in block if not line.startswith(("$ ", "["))]
    assert len(commands) == 6
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    script = "\n".join(["set -e", f'msprobe() {{ "{sys.executable}" -m msprobe "$@"; }}', *commands])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOG_v": "3"}
    ended = subprocess.run(
        ["/bin/sh", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    for line in shown:
        assert line in ended.stdout
    assert "tensors: 801, rows of statistic.csv: 801, tensor files: 801; in " in ended.stderr
    assert re.search(r"train_alexnet\.py:93  x = self\.conv3\(x\)", ended.stdout)
    assert "kernel_size: (3, 3)" in ended.stdout
    assert "input.0 over iterations 0 to 2" in ended.stdout
    bare = subprocess.run(
        [sys.executable, str(real_dumps.ALEXNET), "--steps", "3"], env=environment, capture_output=True, text=True
    )
    assert [line for line in ended.stdout.splitlines() if line.startswith("step ")] == bare.stdout.splitlines()
