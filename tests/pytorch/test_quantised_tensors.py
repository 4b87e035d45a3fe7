"""Quantised tensors are recorded as the numbers that they stand for: values and scales are read together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from msprobe.compare.judge.scales import layout_of
from msprobe.dump.tensor_files.codec import load
from msprobe.pytorch import PrecisionDebugger

E4M3 = torch.float8_e4m3fn


class Quantised(torch.Tensor):
    """As a tensor of torchao: one scale per row, listed by `__tensor_flatten__`."""

    @staticmethod
    def __new__(cls: Any, qdata: torch.Tensor, scale: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, qdata.shape, dtype=torch.bfloat16)

    def __init__(self, qdata: torch.Tensor, scale: torch.Tensor) -> None:
        self.qdata, self.scale = qdata, scale

    @classmethod
    def of(cls, values: torch.Tensor) -> Any:
        scale = values.abs().amax(1, keepdim=True) / 448
        return cls((values / scale).to(E4M3), scale)

    def __tensor_flatten__(self) -> Any:
        return ["qdata", "scale"], None

    def dequantize(self) -> torch.Tensor:
        return (self.qdata.float() * self.scale).to(torch.bfloat16)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [one.dequantize() if isinstance(one, cls) else one for one in args]
        return func(*plain, **(kwargs or {}))


class Engine(torch.Tensor):
    """As a tensor of TransformerEngine: its parts are attributes."""

    @staticmethod
    def __new__(cls: Any, values: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=torch.bfloat16)

    def __init__(self, values: torch.Tensor) -> None:
        self._scale_inv = values.abs().max() / 448
        self._data = (values / self._scale_inv).to(E4M3).view(torch.uint8)

    def dequantize(self) -> torch.Tensor:
        return (self._data.view(E4M3).float() * self._scale_inv).to(torch.bfloat16)

    __torch_dispatch__ = Quantised.__dict__["__torch_dispatch__"]


def record(tmp_path: Path, quantised: Any, task: str) -> Any:
    debugger = PrecisionDebugger(dump_path=str(tmp_path), task=task, level="L1", step=[0])
    debugger.start()
    result = torch.nn.functional.linear(torch.ones(2, 16).bfloat16(), quantised)
    debugger.stop()
    debugger.step()
    assert torch.equal(result, torch.nn.functional.linear(torch.ones(2, 16).bfloat16(), quantised.dequantize()))
    data = json.loads((tmp_path / "step0/rank/dump.json").read_text())["data"]
    return data["Functional.linear.0.forward"]["input_args"][1]


@pytest.mark.parametrize(("kind", "parts"), [(Quantised.of, ["qdata", "scale"]), (Engine, ["_data", "_scale_inv"])])
def test_statistics_are_of_the_numbers_and_the_parts_are_described(tmp_path: Path, kind: Any, parts: list[str]) -> None:
    torch.manual_seed(0)
    quantised = kind(torch.randn(8, 16) * 1000)
    item = record(tmp_path, quantised, "statistics")
    assert item["Max"] == float(quantised.dequantize().max())
    assert (item["dtype"], item["shape"]) == ("torch.bfloat16", [8, 16])
    assert sorted(item["quantised"]) == sorted(parts)
    scale = item["quantised"][parts[1]]
    assert scale["Max"] == pytest.approx(float(getattr(quantised, parts[1]).max()))
    assert "unreadable" not in item


def test_a_file_has_the_numbers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    quantised = Quantised.of(torch.randn(8, 16))
    item = record(tmp_path, quantised, "tensor")
    saved = load(tmp_path / "step0/rank/dump_tensor_data" / item["data_name"])
    assert torch.equal(torch.from_numpy(saved.astype("float32")), quantised.dequantize().float())


def test_a_tensor_that_cannot_be_dequantised_says_so(tmp_path: Path) -> None:
    class Broken(Quantised):
        def dequantize(self) -> torch.Tensor:
            if getattr(self, "broken", False):
                raise ValueError("no scale")
            return super().dequantize()

    quantised = Broken.of(torch.randn(8, 16))
    debugger = PrecisionDebugger(dump_path=str(tmp_path), task="statistics", level="L1", step=[0])
    debugger.start()
    quantised.broken = True
    with pytest.raises(ValueError, match="no scale"):  # of the script itself
        torch.nn.functional.linear(torch.ones(2, 16).bfloat16(), quantised)
    debugger.stop()
    debugger.step()
    data = json.loads((tmp_path / "step0/rank/dump.json").read_text())["data"]
    assert "no scale" in data["Functional.linear.0.forward"]["input_args"][1]["unreadable"]


class Training(Quantised):
    """As a tensor of torchao.float8: it stores what its numbers are divided by, and has no `dequantize`."""

    @classmethod
    def of(cls, values: torch.Tensor) -> Any:
        scale = 448 / values.abs().max()
        return cls((values * scale).to(E4M3), scale)

    dequantize = torch.Tensor.dequantize

    def to_original_precision(self) -> torch.Tensor:
        return self.qdata.to(torch.bfloat16) / self.scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [one.to_original_precision() if isinstance(one, cls) else one for one in args]
        return func(*plain, **(kwargs or {}))


def test_a_scale_that_divides_is_read_as_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    numbers = torch.randn(8, 16)
    item = recorded(tmp_path, Training.of(numbers))
    assert item["Max"] == float(Training.of(numbers).to_original_precision().max())
    assert item["quantised"]["scale"]["Max"] == pytest.approx(448 / float(numbers.abs().max()))
    layout = layout_of(item)
    assert layout is not None
    assert layout.highest == pytest.approx(float(numbers.abs().max()) / 448)
    assert layout.rounding == 2.0**-8
    times = layout_of(recorded(tmp_path / "times", Quantised.of(numbers)))
    assert times is not None
    assert times.highest == pytest.approx(float(numbers.abs().max()) / 448)


def recorded(tmp_path: Path, tensor: Any) -> Any:
    """The record of a tensor, given to a product."""
    debugger = PrecisionDebugger(dump_path=str(tmp_path), task="statistics", level="L1", step=[0])
    debugger.start()
    torch.nn.functional.linear(torch.ones(2, 16).bfloat16(), tensor)
    debugger.stop()
    debugger.step()
    data = json.loads((tmp_path / "step0/rank/dump.json").read_text())["data"]
    return data["Functional.linear.0.forward"]["input_args"][1]
