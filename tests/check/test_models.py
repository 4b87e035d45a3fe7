"""Unchanged models pass; twenty planted faults are found where they were planted."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from nets import NETS, configured, train

from msprobe.check.core.examine import Examiner
from msprobe.check.core.plan import make_plan
from msprobe.cli import main
from msprobe.dump.reader import open_dump
from msprobe.pytorch import PrecisionDebugger

HERE = Path(__file__).parent
PLANTED_RUN = """
import sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
from msprobe.pytorch import PrecisionDebugger
import wrong_kernels
debugger = PrecisionDebugger(sys.argv[2])
debugger.start(); wrong_kernels.steps(); debugger.stop(); debugger.step()
print(sorted(wrong_kernels.FORWARD), sorted(wrong_kernels.BACKWARD), sep="\\n")
"""


@pytest.fixture(scope="module")
def examiner() -> Examiner:
    return Examiner()


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize("kind", NETS)
def test_an_untouched_model_passes_in_every_precision(tmp_path: Path, examiner: Examiner, kind: str, task: str) -> None:
    found: Counter[str] = Counter()
    messages = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        rank = open_dump(train(tmp_path / str(dtype), kind, dtype, task)).ranks[0]
        plan = make_plan(rank.records)
        assert not plan.skipped
        for one in plan.tasks:
            outcome = examiner.examine(one.call, one.title, one.forward, one.backward, rank)
            found.update((outcome.forward, outcome.backward))
            messages.append((one.call, outcome.message))
    judged = found["pass"] + found["warning"] + found["error"]
    assert judged >= 30
    assert not found["error"], messages
    assert found["warning"] <= 0.01 * judged, messages


def _read(directory: Path) -> dict[str, tuple[str, str, str]]:
    import csv

    (file,) = directory.glob("accuracy_checking_result_*.csv")
    return {row[0]: (row[1], row[2], row[3]) for row in csv.reader(file.open())}


def _planted_dump(path: Path, task: str) -> tuple[set[str], set[str]]:
    command = [sys.executable, "-c", PLANTED_RUN, str(HERE), configured(path, task)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    forward, backward = done.stdout.splitlines()[-2:]
    names = [set(line.strip("[]").replace("'", "").split(", ")) for line in (forward, backward)]
    return names[0], names[1]


def test_twenty_kernels_that_were_wrong_in_the_training_run_are_found_from_its_dump(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forward, backward = _planted_dump(tmp_path, "tensor")
    assert len(forward) + len(backward) >= 20
    assert main(["run_ut", "-api_info", str(tmp_path / "dump"), "-o", str(tmp_path / "out"), "--jobs", "2"]) == 1
    found = _read(tmp_path / "out")
    assert {call for call, row in found.items() if row[0] == "error"} - {"Functional.gelu.1", "Functional.silu.1"} == (
        forward
    )
    assert {call for call, row in found.items() if row[1] == "error"} == backward
    assert not [call for call, row in found.items() if "warning" in row[:2]]
    assert "the re-run here is right" in capsys.readouterr().out


def test_twenty_kernels_that_are_wrong_on_the_device_are_found_from_statistics_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dump was made with right kernels elsewhere: here the workers have the wrong ones."""
    forward, backward = _planted_dump(tmp_path, "statistics")
    monkeypatch.setattr(sys, "path", [str(HERE), *sys.path])
    out = tmp_path / "out"
    arguments = [
        "run_ut",
        "-api_info",
        str(tmp_path / "dump"),
        "-o",
        str(out),
        "--jobs",
        "2",
        "--import",
        "wrong_kernels",
    ]
    assert main(arguments) == 1
    found = _read(out)
    wrong = {call for call, row in found.items() if row[0] == "error"}
    assert forward <= wrong
    # What the planted kernels themselves were made of passes.
    assert {call.rpartition(".")[0] for call in wrong} == {call.rpartition(".")[0] for call in forward}
    assert backward <= {call for call, row in found.items() if row[1] == "error"}


def test_one_tensor_given_as_several_arguments_has_one_gradient(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(configured(tmp_path, "tensor"))
    debugger.start()
    values = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
    torch.nn.functional.scaled_dot_product_attention(values, values, values).sum().backward()
    debugger.stop()
    debugger.step()
    out = tmp_path / "out"
    assert main(["run_ut", "-api_info", str(tmp_path / "dump"), "-o", str(out), "--jobs", "1"]) == 0
    assert _read(out)["Functional.scaled_dot_product_attention.0"][:2] == ("pass", "pass")
