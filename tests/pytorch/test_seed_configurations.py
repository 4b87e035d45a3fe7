"""The PyTorch configurations of seed 003 do their work in a run; only dump_path is replaced."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from collecting import Dump
from torch import nn

from msprobe.cli import main
from msprobe.collect.run.lifecycle import UsageError
from msprobe.pytorch import PrecisionDebugger
from msprobe.tasks.overflow_check.finding_writer import OverflowStop

DATA = Path(__file__).parents[1] / "config" / "data"
ACL = """{
 "dump":
 {
         "dump_list":[],
         "dump_path":"./dump/output",
         "dump_mode":"all",
         "dump_op_switch":"on"
 }
}"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def configure(place: Path, name: str) -> str:
    text = (DATA / f"seed003_{name}.json").read_text(encoding="utf-8")
    (place / "config.json").write_text(text.replace("/home/data_dump", str(place / "data_dump")), encoding="utf-8")
    return "./config.json"


def train(debugger: PrecisionDebugger, steps: int = 2) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 2))
    for _ in range(steps):
        debugger.start(model)
        x = torch.ones(2, 3, requires_grad=True)
        for _ in range(11):  # Tensor.__mul__.10 is the last
            x = x * 1.5
        (model(torch.randn(2, 1, 5, 5)).sum() + x.sum()).backward()
        debugger.stop()
        debugger.step()
    return model


def test_free_benchmark(place):
    debugger = PrecisionDebugger(config_path=configure(place, "01_pytorch_free_benchmark"))
    debugger.start()
    large = torch.full((1, 1, 2, 2), 300.0)
    torch.nn.functional.conv2d(large.half(), large.half())  # 4 * 300 * 300 is infinity in float16
    torch.relu(large.half())
    debugger.stop()
    debugger.step()
    (row,) = csv.DictReader((place / "data_dump" / "free_benchmark.csv").open())
    assert (row["api_name"], row["pert_mode"], row["stage"]) == ("Functional.conv2d.0", "improve_precision", "forward")


def test_statistics(place):
    train(PrecisionDebugger(config_path=configure(place, "02_pytorch_statistics")))
    for step in (0, 1):
        dump = Dump(place / "data_dump", step)
        assert {"Functional.conv2d.0.forward", "Functional.linear.0.backward"} <= set(dump.names)
        assert {"Max", "Min", "Mean", "Norm"} <= dump["Functional.conv2d.0.forward"]["output"][0].keys()
        assert not list(dump.directory.rglob("*.pt"))


def test_tensor(place):
    train(PrecisionDebugger(config_path=configure(place, "03_pytorch_tensor")))
    for step in (0, 1):
        directory = Dump(place / "data_dump", step).directory / "dump_tensor_data"
        assert torch.load(directory / "Functional.conv2d.0.forward.output.0.pt", weights_only=True).shape == (
            2,
            2,
            3,
            3,
        )
        assert (directory / "Functional.linear.0.backward.output.0.pt").is_file()


def test_overflow_check(place):
    debugger = PrecisionDebugger(config_path=configure(place, "04_pytorch_overflow_check"))
    train(debugger, 1)
    debugger.start()
    with pytest.raises(OverflowStop, match=r"Torch\.exp\.0\.forward produced infinity, step 1"):
        torch.exp(torch.tensor([1e4]))
    assert Dump(place / "data_dump", 1)["Torch.exp.0.forward"]["overflow"] == "producer"


def test_run_ut(place, capsys):
    """The debugger names the command that reads this configuration, and the command does."""
    config = configure(place, "05_pytorch_run_ut")
    with pytest.raises(UsageError, match="use the command msprobe run_ut"):
        PrecisionDebugger(config_path=config)
    train(PrecisionDebugger(task="tensor", level="L1", dump_path="collected"), 1)
    capsys.readouterr()
    assert main(["run_ut", "-api_info", "collected", "-config", config, "-o", "out", "--jobs", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (results,) = (place / "out").glob("accuracy_checking_result_*.csv")
    assert "Functional.conv2d.0" in results.read_text()
    assert str(results.relative_to(place)) in found["files"]
    assert (found["error"], found["findings"]) == (0, [])
    assert found["calls"] == found["pass"] + found["warning"] + found["not_checked"] > 0


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_kernels_of_one_call(place, way, caplog):
    """`scope` with one API, a gradient file for the backward, and the acl_config.json of the document."""
    (place / "dump" / "output").mkdir(parents=True)
    (place / "acl_config.json").write_text(ACL)
    torch.save(torch.full((2, 3), 7.0), place / "Tensor.__mul__.10.backward.input.0.pt")
    number = {"forward": 13, "backward": 14}[way]
    train(PrecisionDebugger(config_path=configure(place, f"{number}_pytorch_l2_{way}")))
    dump = Dump(place / "data_dump")
    assert set(dump.construct.values()) - {None} == {f"Tensor.__mul__.10.{way}"}
    (name,) = (name for name in dump.names if name.startswith("Aten.mul"))
    output = torch.load(dump.directory / "dump_tensor_data" / f"{name}.output.0.pt", weights_only=True)
    expected = torch.full((2, 3), 7.0 * 1.5 if way == "backward" else 1.5**11)
    torch.testing.assert_close(output, expected)
    assert not (place / "data_dump" / "step1").exists()
    assert "acl_config needs torch_npu, which is not installed" in caplog.text


def test_the_acl_config_of_the_document_needs_its_directory(place):
    (place / "acl_config.json").write_text(ACL)
    config = json.loads((DATA / "seed003_13_pytorch_l2_forward.json").read_text())
    (place / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="this directory does not exist; create it first"):
        PrecisionDebugger(config_path="./config.json")
