"""`msprobe compiled`: exit codes and refusals. What it finds is tested in tests/pytorch/test_check_compiled.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from json_schemas import check_messages, check_schema
from msprobe.cli import main


def test_without_a_script_it_says_what_to_give(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compiled"]) == 2
    assert "give a SCRIPT" in capsys.readouterr().err


def test_a_script_that_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compiled", "no_such_script.py"]) == 2
    assert "cannot read no_such_script.py" in capsys.readouterr().err


def test_mindspore_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-f", "mindspore", "compiled", "train.py"]) == 2
    assert "only for PyTorch scripts" in capsys.readouterr().err


def test_a_script_without_torch_checked_nothing(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text("import sys\nprint(sys.argv[1:])\n")
    command = [sys.executable, "-m", "msprobe", "compiled", str(script), "--lr", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "['--lr', '1']" in done.stdout
    assert "never imported torch" in done.stderr


@pytest.mark.parametrize("code", [1, 3])
def test_a_script_that_fails_keeps_its_exit_code(tmp_path: Path, code: int) -> None:
    script = tmp_path / "fails.py"
    script.write_text(f"raise SystemExit({code})\n")
    command = [sys.executable, "-m", "msprobe", "compiled", str(script)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == code


_WRONG = """
import torch

def doubles(graph, inputs):
    return lambda *values: tuple(value.double() for value in graph(*values))

print("from the script")
torch.compile(torch.nn.Linear(4, 4), backend=doubles)(torch.randn(2, 4))
torch.compile(torch.nn.Linear(4, 4), backend="eager")(torch.randn(2, 4))
"""


def test_json_has_each_region_and_nothing_of_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_WRONG)
    command = [sys.executable, "-m", "msprobe", "compiled", "--json", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout)
    check_schema("compiled", answer)
    check_messages("compiled", answer)
    assert (done.returncode, answer["ok"], answer["checked"]) == (1, False, True)
    wrong, right = answer["regions"]
    assert (wrong["verdict"], right["verdict"]) == ("wrong", "right")
    assert wrong["values"][0]["message"]["id"] == "compiled.other_form"
    assert wrong["values"][0]["compiled_error"] == "Infinity"
    assert "from the script" in done.stderr
