"""`msprobe precision` names the layers that a format would damage: in written dumps, and in real ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

sys.path.insert(0, str(Path(__file__).parent.parent / "compare"))
from written import call, saved, tensor, write_dump

from msprobe.cli import main
from msprobe.pytorch import PrecisionDebugger

RANDOM = np.random.default_rng(0)


def layer(directory: Path, name: str, spoiled: str = "") -> dict[str, Any]:
    """The records of one Linear. In `spoiled` (its role), most elements are far below the scale of their block."""
    arrays = {
        "weights": RANDOM.normal(size=(64, 96)) * 0.02,
        "inputs": RANDOM.normal(size=(32, 96)),
        "gradients": RANDOM.normal(size=(32, 64)) * 1e-4,
    }
    if spoiled:
        arrays[spoiled] *= np.exp(4 * RANDOM.normal(size=arrays[spoiled].shape))
    items = {role: saved(directory, f"{name}.{role}", array.astype(np.float32)) for role, array in arrays.items()}
    forward = call(items["inputs"], output=tensor(1.0, [32, 64]))
    forward["parameters"] = {"weight": items["weights"], "bias": tensor(0.0, [64])}
    backward = {"input": [items["gradients"]], "output": [tensor(1.0, [32, 96])]}
    return {f"Module.{name}.Linear.forward.0": forward, f"Module.{name}.Linear.backward.0": backward}


def written(root: Path, spoiled: str = "") -> Path:
    directory = root / "step0/rank"
    data = {}
    for number in range(4):
        data.update(layer(directory, f"blocks.{number}.fc", spoiled if number == 2 else ""))
    data["Module.norm.LayerNorm.forward.0"] = call(tensor(1.0), output=tensor(1.0))
    return write_dump(root, data, task="tensor")


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, Any]:
    code = main(["precision", *map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("role", ["weights", "inputs", "gradients"])
@pytest.mark.parametrize("form", ["nvfp4", "mxfp4"])
def test_a_damaged_layer_is_named_with_its_role(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], role: str, form: str
) -> None:
    code, found = answer(capsys, written(tmp_path, role), "--format", form)
    verdict = found["formats"][0]
    assert code == 1
    assert verdict["keep"] == ["blocks.2.fc"]
    worst = verdict["rows"][0]
    assert (worst["place"], worst["role"]) == ("blocks.2.fc", role)
    assert all(min(row["snr"], row["bulk"]) >= verdict["budget_db"] for row in verdict["rows"][1:])


@pytest.mark.parametrize("form", ["nvfp4", "mxfp4", "mxfp8", "fp8-e4m3", "fp8-e5m2-1x128", "bf16"])
def test_a_healthy_model_keeps_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    code, found = answer(capsys, written(tmp_path), "--format", form)
    assert code == 0
    assert found["formats"][0]["keep"] == []
    assert len(found["formats"][0]["rows"]) == 12


def test_small_gradients_are_lost_in_a_plain_cast(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "step0/rank"
    data = layer(directory, "fc")
    tiny = saved(directory, "tiny", (RANDOM.normal(size=(32, 64)) * 1e-9).astype(np.float32))
    data["Module.fc.Linear.backward.0"]["input"] = [tiny]
    write_dump(tmp_path, data, task="tensor")
    assert main(["precision", str(tmp_path), "--format", "fp16"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("fp16: keep the only product in bf16: none meets the budget of ")
    assert "  fc: gradients 0.0 dB: 100% become zero\n" in said
    assert answer(capsys, tmp_path, "--format", "mxfp8")[0] == 0


def test_infinite_elements_are_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "step0/rank"
    data = layer(directory, "fc")
    broken = saved(directory, "broken", np.full((64, 96), np.inf, np.float32))
    data["Module.fc.Linear.forward.0"]["parameters"]["weight"] = broken
    write_dump(tmp_path, data, task="tensor")
    main(["precision", str(tmp_path), "--format", "mxfp8"])
    assert "fc weights: NaN or infinite elements were left out; `msprobe overflow` says" in capsys.readouterr().out


def test_the_budget_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = written(tmp_path)
    assert answer(capsys, dump, "--format", "nvfp4", "--budget", "15 dB")[0] == 0
    code, found = answer(capsys, dump, "--format", "nvfp4", "--budget", "30dB")
    assert code == 1
    assert len(found["formats"][0]["keep"]) == 4
    kept = found["formats"][0]["keep_modules"]
    assert sorted(kept) == [f"blocks.{number}.fc" for number in range(4)]


def test_a_budget_that_no_product_meets_leaves_no_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["precision", str(written(tmp_path)), "--format", "nvfp4", "--budget", "30dB"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("nvfp4: keep all 4 products in bf16: none meets the budget of 30.0 dB (")
    assert "the others" not in said


def test_several_formats_each_have_a_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = answer(capsys, written(tmp_path), "--format", "mxfp8,nvfp4, mxfp8")
    assert [one["format"] for one in found["formats"]] == ["mxfp8", "nvfp4"]
    assert found["formats"][0]["noise"] < found["formats"][1]["noise"]


def test_the_snippets_are_python_and_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = str(written(tmp_path, "inputs"))
    for form in ("nvfp4", "mxfp4", "mxfp8", "fp8-e4m3", "fp8-e4m3-row"):
        main(["precision", dump, "--format", form, "--snippet", "torchao", "--budget", "20dB"])
        code = capsys.readouterr().out
        compile(code, form, "exec")
        main(["precision", dump, "--format", form, "--snippet", "te"])
        config = yaml.safe_load(capsys.readouterr().out)
        assert config is None or config["keep_in_bf16"]["transformer_engine"]["DisableFP8Layer"]["enabled"]
    main(["precision", dump, "--format", "nvfp4", "--snippet", "te"])
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["keep_in_bf16"]["layers"]["layer_name_regex_pattern"] == r"(.*[.])?(blocks\.2\.fc)"


def test_all_prints_every_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = str(written(tmp_path, "inputs"))
    main(["precision", dump, "--format", "nvfp4"])
    short = capsys.readouterr().out
    main(["precision", dump, "--format", "nvfp4", "--all"])
    whole = capsys.readouterr().out
    assert "1 of 12; --all prints all" in short
    assert whole.count("gradients") == 4
    assert "become zero" in short


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--format", "fp9"], "'fp9' is not a format; known: fp16, bf16, fp8-e4m3"),
        (["--format", "nvpf4"], "'nvpf4' is not a format; did you mean \"nvfp4\"? known: fp16"),
        (["--format", ","], "no format was given; known: fp16"),
        (["--format", "nvfp4", "--budget", "much"], "--budget takes a number of decibels such as 20dB, not 'much'"),
        (["--format", "nvfp4", "--budget", "nan"], "--budget takes a number of decibels such as 20dB, not 'nan'"),
    ],
)
def test_wrong_words_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], reason: str
) -> None:
    assert main(["precision", str(written(tmp_path)), *words]) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") == 1


def test_a_dump_without_tensors_says_how_to_collect_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = call(tensor(1.0, [4, 4]), tensor(1.0, [4, 4]), output=tensor(1.0, [4, 4]))
    write_dump(tmp_path / "plain", {"Functional.linear.0.forward": record})
    assert main(["precision", str(tmp_path / "plain"), "--format", "nvfp4"]) == 2
    assert 'or with task statistics and "precision": {"formats": ["nvfp4"]} in config' in capsys.readouterr().err
    write_dump(tmp_path / "none", {"Functional.relu.0.forward": call(tensor(1.0), output=tensor(1.0))})
    assert main(["precision", str(tmp_path / "none"), "--format", "nvfp4"]) == 2
    assert "has no matrix product" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = written(tmp_path)
    (tmp_path / "step0/rank/dump_tensor_data/blocks.1.fc.inputs.npy").write_bytes(b"nothing")
    _, found = answer(capsys, dump, "--format", "mxfp8")
    assert len(found["formats"][0]["rows"]) == 11
    assert "1 tensor cannot be read, first: " in found["notes"][0]
    assert found["messages"]["notes"][0]["id"] == "precision.unread"


class Model(torch.nn.Module):
    """An embedding, a Linear, a convolution, a product of two activations, and attention with a fused weight."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(20, 32)
        self.up = torch.nn.Linear(32, 64)
        self.conv = torch.nn.Conv1d(64, 32, 3, padding=1)
        self.attention = torch.nn.MultiheadAttention(32, 2, batch_first=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        wide = self.up(self.words(tokens))
        narrow = self.conv(wide.transpose(1, 2)).transpose(1, 2)
        mixed = torch.matmul(torch.matmul(narrow, narrow.transpose(1, 2)), narrow)
        return self.attention(mixed, mixed, mixed)[0]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_real_dump_has_its_products_and_no_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], level: str
) -> None:
    torch.manual_seed(0)
    model = Model()
    debugger = PrecisionDebugger(dump_path=str(tmp_path), task="tensor", level=level, step=[0])
    debugger.start(model)
    model(torch.randint(0, 20, (2, 8))).square().mean().backward()
    debugger.stop()
    debugger.step()
    rows = answer(capsys, tmp_path, "--format", "mxfp8")[1]["formats"][0]["rows"]
    places = {row["place"]: {one["role"] for one in rows if one["place"] == row["place"]} for row in rows}
    everything = {"weights", "inputs", "gradients"}
    if level == "L0":
        assert places == {"up": everything, "conv": everything, "attention": everything}
        return
    linear, conv = ("up", "conv") if level == "mix" else ("Functional.linear.0", "Functional.conv1d.0")
    product = "Torch.matmul.0" if level == "L1" else "Model: Torch.matmul.0"
    assert places[linear] == places[conv] == everything
    found = [place for place in places if place.endswith("Torch.matmul.0")]
    assert places[found[0]] == {"inputs", "gradients"}, product
    assert not any("embedding" in place or "words" in place for place in places)
