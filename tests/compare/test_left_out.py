"""What only one run does, where little shows it: calls whose result is sliced, zeros, other orders, no gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from test_clean_pairs import answer, train
from torch import Tensor, nn
from written import call, tensor, write_dump

from msprobe.compare import compare
from msprobe.pytorch import PrecisionDebugger


class Sliced(nn.Module):
    """A norm, of whose result only slices are used; other layers run in between."""

    def __init__(self, left_out: bool) -> None:
        super().__init__()
        self.left_out = left_out
        self.a, self.b, self.norm_a, self.norm_b = nn.Linear(4, 8), nn.Linear(4, 8), nn.LayerNorm(8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a(x), self.b(x)
        a = a if self.left_out else self.norm_a(a)
        b = self.norm_b(b)
        return torch.sin(a[..., :4]) * b[..., 4:]


def test_a_call_that_is_left_out_is_named_though_only_slices_of_its_result_are_used(tmp_path: Path) -> None:
    origin = answer(tmp_path, lambda other: nn.Sequential(nn.Linear(4, 4), Sliced(other)), train).origin
    assert origin is not None
    assert origin.kind == "missing call"
    assert "norm_a" in (origin.module or "")


class Zeros(nn.Module):
    def __init__(self, left_out: bool) -> None:
        super().__init__()
        self.left_out = left_out
        self.layer, self.shift = nn.Linear(4, 4), nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if self.left_out else self.layer(x) + self.shift


def test_a_call_that_adds_zeros_is_missing_in_the_forward(tmp_path: Path) -> None:
    origin = answer(tmp_path, lambda other: nn.Sequential(Zeros(other), nn.Linear(4, 4)), train).origin
    assert origin is not None
    assert (origin.kind, origin.direction) == ("missing call", "forward")
    assert "__add__" in origin.name
    assert any("shift" in said and "no gradient in the target" in said for said in origin.evidence)


class Padded(nn.Module):
    def __init__(self, future: bool) -> None:
        super().__init__()
        self.pad, self.conv = ((0, 2) if future else (2, 0)), nn.Conv1d(8, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x.flatten(2), self.pad))


def test_an_argument_that_moves_elements_is_named(tmp_path: Path) -> None:
    result = answer(tmp_path, Padded, train)
    assert result.origin is not None
    assert result.origin.kind == "argument"
    assert result.origin.name == "Functional.pad.0.forward"
    assert not [note for note in result.notes if "changes no result" in note]


class Added(nn.Module):
    """Results of experts are added up, in one order or the other."""

    def __init__(self, backwards: bool) -> None:
        super().__init__()
        self.order = (1, 0) if backwards else (0, 1)
        self.weight = nn.Parameter(torch.randn(2, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for i in self.order:
            rows = torch.arange(len(x))[:5] if i else torch.arange(len(x))[5:]
            total.index_add_(0, rows, x[rows] @ self.weight[i])
        return total


class Mixed(nn.Module):
    def __init__(self, backwards: bool) -> None:
        super().__init__()
        self.layer, self.experts = nn.Linear(4, 4), Added(backwards)

    def forward(self, x: Tensor) -> Tensor:
        return self.experts(self.layer(x.reshape(-1, 4)))


def test_sums_of_experts_in_the_other_order_are_the_same(tmp_path: Path) -> None:
    assert answer(tmp_path, Mixed, train).verdict == "same"


def infer(path: Path, weight: Callable[[], Tensor]) -> Path:
    debugger = PrecisionDebugger(dump_path=str(path), level="mix", task="statistics")
    torch.manual_seed(0)
    model, values = nn.ReLU(), weight()
    debugger.start(model)
    with torch.no_grad():
        model(F.linear(torch.ones(2, 4), values))
    debugger.stop()
    debugger.step()
    return path


def test_without_gradients_it_does_not_matter_what_could_have_one(tmp_path: Path) -> None:
    target = infer(tmp_path / "t", lambda: torch.randn(4, 4))
    golden = infer(tmp_path / "g", lambda: nn.Parameter(torch.randn(4, 4)))
    assert compare(target, golden).verdict == "same"


@pytest.mark.parametrize(("off", "verdict"), [(2e-5, "same"), (5e-3, "differs")])
def test_quotients_by_small_numbers_are_less_accurate(tmp_path: Path, off: float, verdict: str) -> None:
    for side, noise, factor in (("t", 1.0 + 2e-7, 1.0 + off), ("g", 1.0, 1.0)):
        data = {
            "Functional.linear.0.forward": call(tensor(1.0), tensor(1.0, [16, 16]), output=tensor(noise)),
            "Tensor.__truediv__.0.forward": call(
                tensor(noise), tensor(noise, Max=3.0 * noise, Min=0.01, Mean=1.0), output=tensor(9.0 * factor)
            ),
        }
        write_dump(tmp_path / side, data)
    assert compare(tmp_path / "t", tmp_path / "g").verdict == verdict


@pytest.mark.parametrize(("largest", "norm", "verdict"), [(1.007, 1.0002, "same"), (1.007, 1.006, "differs")])
def test_a_bias_that_has_just_begun_to_move_is_noise_in_its_small_elements(
    tmp_path: Path, largest: float, norm: float, verdict: str
) -> None:
    for side, noise, high, length in (("t", 1.0 + 2e-7, largest, norm), ("g", 1.0, 1.0, 1.0)):
        for step, bias in ((0, tensor(1.0, [8])), (1, tensor(1.0, [8], Max=3.0 * high, Norm=20.0 * length))):
            data = {
                "Functional.gelu.0.forward": call(tensor(1.0), output=tensor(noise)),
                "Module.fc.Linear.forward.0": {
                    **call(tensor(noise), output=tensor(noise)),
                    "parameters": {"bias": bias},
                },
            }
            write_dump(tmp_path / side, data, step=step)
    assert compare(tmp_path / "t", tmp_path / "g").verdict == verdict
