"""docs/graph.md shows what the tool does: its program runs, its line number is the example's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import real_dumps

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
