"""`msprobe run_ut` from the command line: usage, errors, the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from msprobe.check.core.precheck import Checked, Report
from msprobe.cli import main
from msprobe.pytorch import PrecisionDebugger
from msprobe.report.check_page import write_page

RELU = {
    f"Functional.relu.{number}.forward": {
        "input_args": [{"type": "mindspore.Tensor", "dtype": "Float32", "shape": [2], "Max": 1.0, "Min": -1.0}],
        "input_kwargs": {},
        "output": [],
    }
    for number in range(2)  # two workers, both of which cannot start
}


def dump(path: Path, **head: Any) -> Path:
    rank = path / "step0" / "rank"
    rank.mkdir(parents=True)
    content = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None, "data": {}, **head}
    (rank / "dump.json").write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("head", "arguments", "sentence"),
    [
        ({}, [], "Give a dump"),
        ({}, ["-api_info", "nowhere"], "does not exist"),
        ({"level": "L0"}, ["-api_info", "dump"], "level L1 or mix"),
        ({"framework": "jax"}, ["-api_info", "dump"], "is a jax dump"),
        ({}, ["-api_info", "dump", "-csv_path", "some.csv"], "cannot be resumed"),
        ({}, ["--online"], "is_online"),
        ({}, ["-api_info", "dump", "-o", "dump/step0/rank/dump.json/out"], "cannot be written"),
        ({"data": RELU}, ["-api_info", "dump", "--import", "nosuch"], "No module named 'nosuch'"),
        (
            {"data": RELU, "framework": "mindspore"},
            ["-api_info", "dump", "-d", "cuda"],
            "must be one of ['CPU', 'GPU', 'Ascend']",
        ),
    ],
)
def test_what_cannot_be_checked_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any, head: Any, arguments: list[str], sentence: str
) -> None:
    dump(tmp_path / "dump", **head)
    monkeypatch.chdir(tmp_path)
    assert main(["run_ut", *arguments]) == 2
    logged = capfd.readouterr().err
    assert sentence in logged
    assert "Traceback" not in logged


def test_a_dump_without_calls_does_not_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run_ut", "-api_info", str(dump(tmp_path / "dump")), "-o", str(tmp_path / "out")]) == 2
    assert "0 calls" in capsys.readouterr().out


def test_findings_and_notes_have_their_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    debugger = PrecisionDebugger(dump_path="dump", task="tensor", level="L1", step=[0])
    debugger.start()
    torch.nn.functional.gelu(torch.randn(64))
    debugger.stop()
    debugger.step()
    (saved,) = Path("dump/step0/rank/dump_tensor_data").glob("Functional.gelu.0.forward.output.0.*")
    value = torch.load(saved, weights_only=True)
    saved.unlink()
    torch.save(value * 1.5, saved)
    Path("config.json").write_text(json.dumps({"task": "run_ut", "run_ut": {"black_list": ["matmul"]}}))
    capsys.readouterr()
    command = ["run_ut", "-api_info", "dump", "-config", "config.json", "-o", "out", "--jobs", "1", "--json"]
    assert main(command) == 1
    answer = json.loads(capsys.readouterr().out)
    (finding,) = answer["findings"]
    message = finding["messages"]["message"]
    recorded, here = message["arguments"]["parts"]
    assert (message["id"], recorded["id"], here["id"]) == ("also", "check.recorded_slot", "check.right_here")
    assert recorded["arguments"]["text"]["id"] == "check.off"
    assert answer["messages"]["notes"] == [{"id": "check.unused", "arguments": {"item": "'matmul'"}}]


def test_the_page_shows_names_as_text_and_loads_nothing(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>"
    report = Report([Checked("step0/rank", "Torch.mm.0", "error", "SKIP", evil)])
    write_page(report, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert evil not in text
    assert "Torch.mm.0" in text
    assert "http://" not in text
    assert "https://" not in text
    assert (tmp_path / "page.html").stat().st_mode & 0o777 == 0o640
