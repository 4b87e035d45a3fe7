"""`"precision": {"formats": [...]}`: what formats would do is recorded while training, which it does not change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional

import pytest
import torch

from msprobe.cli import main
from msprobe.config.schema import FORMATS
from msprobe.pytorch import PrecisionDebugger
from msprobe.stats.formats import BY_NAME


def train(root: Optional[Path], level: str = "mix", task: str = "statistics", **more: Any) -> list[torch.Tensor]:
    """Three steps; the parameters at the end."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.GELU(), torch.nn.Linear(48, 16)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    debugger = None
    if root is not None:
        root.mkdir(exist_ok=True)
        config = {"task": task, "dump_path": str(root), "level": level, "step": [1], **more}
        (root / "config.json").write_text(json.dumps(config))
        debugger = PrecisionDebugger(config_path=str(root / "config.json"))
    for batch in torch.randn(3, 24, 32).bfloat16():
        if debugger is not None:
            debugger.start(model)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if debugger is not None:
            debugger.stop()
            debugger.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def rows(capsys: pytest.CaptureFixture[str], root: Path, form: str) -> dict[tuple[str, str], Any]:
    main(["precision", str(root), "--format", form, "--json"])
    found = json.loads(capsys.readouterr().out)["formats"][0]["rows"]
    return {(row["place"], row["role"]): row for row in found}


def test_the_names_in_the_configuration_are_those_of_the_formats() -> None:
    assert tuple(BY_NAME) == FORMATS


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_live_numbers_are_those_of_saved_tensors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], level: str
) -> None:
    bare = train(None)
    live = train(tmp_path / "live", level, precision={"formats": ["nvfp4", "fp8-e4m3"]})
    train(tmp_path / "saved", level, task="tensor")
    assert all(torch.equal(one, two) for one, two in zip(bare, live))
    assert not list((tmp_path / "live").rglob("*.pt"))
    for form in ("nvfp4", "fp8-e4m3"):
        ours, theirs = rows(capsys, tmp_path / "live", form), rows(capsys, tmp_path / "saved", form)
        assert list(ours) == list(theirs)
        assert len(ours) == 6
        for place, row in theirs.items():
            for key in ("snr", "bulk", "underflow", "outlier", "orientation"):
                got = ours[place][key]
                assert got == (row[key] if isinstance(row[key], str) else pytest.approx(row[key], rel=1e-4)), place


def test_only_factors_of_products_are_measured(tmp_path: Path) -> None:
    train(tmp_path, precision={"formats": ["mxfp8"]})
    data = json.loads((tmp_path / "step1/rank/dump.json").read_text())["data"]
    assert "precision" in data["Functional.linear.0.forward"]["input_args"][0]
    assert "precision" not in data["Functional.linear.0.forward"]["output"][0]
    assert "precision" not in data["Functional.gelu.0.forward"]["input_args"][0]
    assert "precision" in data["Functional.linear.1.backward"]["input"][0]


def test_files_are_saved_for_the_calls_of_tensor_list_only(tmp_path: Path) -> None:
    section = {"tensor_list": ["Functional.linear.1"]}
    train(tmp_path, precision={"formats": ["mxfp8"]}, statistics=section)
    saved = {file.name for file in tmp_path.rglob("*.pt")}
    assert saved
    assert all(name.startswith("Functional.linear.1.") for name in saved)


def test_a_wrong_format_is_named_and_a_useless_key_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from msprobe.config import ConfigError, load

    for value, words in (
        ({"formats": ["nvfp5"]}, 'precision.formats[0]: found "nvfp5"; allowed: "fp16", "bf16"'),
        ({"formats": []}, 'allowed: "high", "low", or {"formats": ["nvfp4", ...]}'),
        ({"format": ["nvfp4"]}, 'allowed: "high", "low", or {"formats": ["nvfp4", ...]}'),
    ):
        file = tmp_path / "config.json"
        file.write_text(json.dumps({"dump_path": "d", "precision": value}))
        with pytest.raises(ConfigError, match="precision") as caught:
            load("pytorch", file)
        assert words in str(caught.value)
    file.write_text(json.dumps({"dump_path": "d", "task": "tensor", "precision": {"formats": ["nvfp4"]}}))
    assert "precision.formats has no effect here" in load("pytorch", file).warnings[0]
    file.write_text(json.dumps({"dump_path": "d", "precision": {"formats": ["nvfp4", "nvfp4"]}}))
    assert load("pytorch", file).formats == ("nvfp4",)
    assert load("pytorch", file).warnings == ()
