"""Classes of wrong answers that the unseen cases of benchmarks/quality showed, each on a small model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from test_cases import compared
from torch import Tensor, nn

from msprobe.compare import compare
from msprobe.pytorch import PrecisionDebugger


class Small(nn.Module):
    """Its result is a thousand times smaller than what it is given."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.wrong = wrong
        self.layer = nn.Linear(16, 16, bias=False)
        with torch.no_grad():
            self.layer.weight.mul_(1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * 1.001 if self.wrong else self.layer(x)


class Residual(nn.Module):
    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.inner = Small(wrong)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Net(nn.Module):
    """A linear layer before and after something that `kind` and `wrong` choose."""

    def __init__(self, kind: str, wrong: bool) -> None:
        super().__init__()
        self.kind, self.wrong = kind, wrong
        self.first = nn.Linear(16, 16)
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(getattr(self, self.kind)(self.first(x)))

    def argument(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh") if self.wrong else F.gelu(x)

    def booleans(self, x: Tensor) -> Tensor:
        no, yes = (x.abs() > 1e9).any(), (x.abs() >= 0).any()
        return x * (1 + (no * yes).float())

    def sums(self, x: Tensor) -> Tensor:
        a, b, c = x.tanh(), x.sigmoid(), x.sin()
        return a + (b + c) if self.wrong else a + b + c

    def halves(self, x: Tensor) -> Tensor:
        angles = x[:, :8]
        both = torch.cat([angles, angles], dim=-1) if self.wrong else torch.repeat_interleave(angles, 2, dim=-1)
        return x * both.cos()

    def cast(self, x: Tensor) -> Tensor:
        return torch.tanh(x.bfloat16().float() if self.wrong else x)


def answer(tmp_path: Path, kind: str, **options: Any) -> Any:
    return compared(tmp_path, lambda wrong: nn.Sequential(Net(kind, wrong)), **options)


def test_an_argument_that_only_one_run_gives_is_named(tmp_path: Path) -> None:
    origin = answer(tmp_path, "argument").origin
    assert origin.kind == "argument"
    assert "approximate is 'tanh'; in the golden run it is not given" in origin.sentence


def test_boolean_operands_are_compared_in_their_places(tmp_path: Path) -> None:
    assert answer(tmp_path, "booleans").verdict == "same"


def test_a_sum_of_the_same_terms_in_another_order_is_the_same(tmp_path: Path) -> None:
    assert answer(tmp_path, "sums").verdict == "same"


def test_a_sum_of_other_terms_is_not(tmp_path: Path) -> None:
    class Other(Net):
        def sums(self, x: Tensor) -> Tensor:
            a, b = x.tanh(), x.sigmoid()
            return a + (b + b) if self.wrong else a + b + a

    assert compared(tmp_path, lambda wrong: nn.Sequential(Other("sums", wrong))).verdict == "differs"


def test_the_call_that_orders_elements_in_another_way_is_named(tmp_path: Path) -> None:
    origin = answer(tmp_path, "halves").origin
    assert origin.kind == "replaced"
    assert "repeat_interleave.0.forward in Module" in origin.sentence
    assert "replaced by Torch.cat.0.forward" in origin.sentence


def test_a_cast_of_one_run_is_said_as_such(tmp_path: Path) -> None:
    origin = answer(tmp_path, "cast").origin
    assert "Tensor.bfloat16.0.forward" in origin.sentence
    assert "it turns float32 into bfloat16" in origin.sentence


def test_another_optimizer_is_no_cut_gradient(tmp_path: Path) -> None:
    paths = []
    for kind in (torch.optim.NAdam, torch.optim.AdamW):
        torch.manual_seed(0)
        net = nn.Sequential(Net("sums", False))
        optimizer = kind(net.parameters(), lr=1e-3)
        debugger = PrecisionDebugger(dump_path=str(tmp_path / kind.__name__), task="statistics", level="mix")
        debugger.start(net)
        net(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
        debugger.stop()
        debugger.step()
        paths.append(tmp_path / kind.__name__)
    origin = compare(*paths).origin
    assert origin is not None
    assert origin.sentence == "the optimizer is NAdam, not AdamW"


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return gradient * (ctx.factor * x), None


class Square(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return Own.apply(x, self.factor)


def test_a_call_of_a_functions_own_backward_belongs_to_the_backward_of_its_module(tmp_path: Path) -> None:
    def build(wrong: bool) -> nn.Module:
        return nn.Sequential(nn.Linear(16, 16), Square(2.1 if wrong else 2.0), nn.Linear(16, 4))

    origin = compared(tmp_path, build).origin
    assert origin is not None
    assert (origin.direction, origin.module) == ("backward", "Module.1.Square")
    assert "is 2.1, not 2.0" in origin.sentence


def test_the_same_function_without_its_own_backward_is_the_same(tmp_path: Path) -> None:
    class Plain(Square):
        def forward(self, x: Tensor) -> Tensor:
            return x * x

    def build(wrong: bool) -> nn.Module:
        middle = Plain(2.0) if wrong else Square(2.0)
        return nn.Sequential(nn.Linear(16, 16), Square(2.0), nn.Linear(16, 16), middle, nn.Linear(16, 4))

    result = compared(tmp_path, build, steps=2)
    assert result.verdict == "same", result.origin


def test_a_last_call_that_only_one_run_makes_is_named_however_small_its_result(tmp_path: Path) -> None:
    """Small beside the inputs of the module is not cancelled: the calls inside agree to the last bit."""
    origin = compared(tmp_path, lambda wrong: nn.Sequential(Residual(wrong), nn.Linear(16, 4))).origin
    assert origin is not None
    assert (origin.kind, origin.name) == ("extra call", "Tensor.__mul__.0.forward")
    assert "inner.Small" in (origin.module or "")


def test_a_small_result_of_a_module_is_compared_with_itself_at_l0(tmp_path: Path) -> None:
    result = compared(tmp_path, lambda wrong: nn.Sequential(Residual(wrong), nn.Linear(16, 4)), level="L0")
    assert result.origin is not None
    assert result.origin.name == "Module.0.inner.Small.forward.0"
