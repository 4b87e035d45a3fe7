"""Answers about training loops of different kinds: closures, two optimizers, scalers, lost gradients. Small models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from msprobe.compare import compare
from msprobe.pytorch import PrecisionDebugger

Step = Callable[[nn.Module, Tensor], None]


def recorded(path: Path, model: Callable[[], nn.Module], make: Callable[[nn.Module], Step], **settings: Any) -> Path:
    torch.manual_seed(0)
    net = model()
    step = make(net)
    debugger = PrecisionDebugger(dump_path=str(path), task="statistics", level=settings.get("level", "mix"))
    debugger.start(net)
    step(net, torch.linspace(-1, 1, 48).view(6, 8))
    debugger.stop()
    debugger.step()
    return path


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


def answer(tmp_path: Path, target: Any, golden: Any, model: Any = network, other: Any = None, **settings: Any) -> Any:
    return compare(
        recorded(tmp_path / "target", other or model, target, **settings),
        recorded(tmp_path / "golden", model, golden, **settings),
    )


def closure(lr: float) -> Callable[[nn.Module], Step]:
    """An optimizer that runs the model itself, twice in a step."""

    def make(net: nn.Module) -> Step:
        optimizer = torch.optim.LBFGS(net.parameters(), lr=lr, max_iter=2)

        def step(net: nn.Module, x: Tensor) -> None:
            def evaluate() -> Tensor:
                optimizer.zero_grad()
                loss = net(x).square().mean()
                loss.backward()
                return loss

            optimizer.step(evaluate)

        return step

    return make


def test_weights_that_a_closure_updated_do_not_differ_from_the_start(tmp_path: Path) -> None:
    assert answer(tmp_path, closure(0.5), closure(0.3)).origin.sentence == "LBFGS: lr is 0.5, not 0.3"


def test_a_fault_in_a_closure_is_one_of_the_forward(tmp_path: Path) -> None:
    def wrong() -> nn.Module:
        net = network()
        net[1] = nn.Softsign()
        return net

    origin = answer(tmp_path, closure(0.5), closure(0.5), other=wrong).origin
    assert origin.direction == "forward"
    assert "softsign" in origin.sentence.lower()


def scaled(unscale: bool) -> Callable[[nn.Module], Step]:
    def make(net: nn.Module) -> Step:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)

        def step(net: nn.Module, x: Tensor) -> None:
            scaler.scale(net(x).square().mean()).backward()
            if unscale:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 0.01)
            scaler.step(optimizer)
            scaler.update()

        return step

    return make


def test_gradients_that_are_clipped_before_they_are_unscaled(tmp_path: Path) -> None:
    sentence = answer(tmp_path, scaled(False), scaled(True)).origin.sentence
    assert "in the target the gradients are still multiplied by the loss scale 64" in sentence


def plain(passes: int = 1) -> Callable[[nn.Module], Step]:
    def make(net: nn.Module) -> Step:
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)

        def step(net: nn.Module, x: Tensor) -> None:
            for _ in range(passes):
                net(x).square().mean().backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()

        return step

    return make


def test_a_second_backward_in_the_step_is_said(tmp_path: Path) -> None:
    assert "the step has 2 backward passes, not 1" in answer(tmp_path, plain(2), plain()).origin.sentence


class Shifted(nn.Module):
    """A shift of zeros that changes no number, but has a gradient."""

    def __init__(self, used: bool) -> None:
        super().__init__()
        self.used = used
        self.shift = nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift if self.used else x * 1.0


def with_shift(used: bool) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(8, 8), Shifted(used), nn.Linear(8, 2))


def test_a_parameter_that_nothing_uses_is_named(tmp_path: Path) -> None:
    origin = answer(tmp_path, plain(), plain(), model=with_shift(True), other=with_shift(False)).origin
    assert "parameter shift of Module.1.Shifted has no gradient in the target" in origin.sentence


class Rounded(nn.Module):
    def __init__(self, low: bool) -> None:
        super().__init__()
        self.low = low
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        return x.half().float() if self.low else x


def test_a_cast_at_the_end_of_a_module_is_named(tmp_path: Path) -> None:
    models = [lambda low=low: nn.Sequential(Rounded(low), nn.Linear(8, 2)) for low in (False, True)]
    sentence = answer(tmp_path, plain(), plain(), model=models[0], other=models[1]).origin.sentence
    assert "Tensor.half.0.forward in Module.0.Rounded" in sentence
    assert "it turns float32 into float16" in sentence


def test_a_gradient_that_should_be_cut_off_is_not_called_cut_off(tmp_path: Path) -> None:
    class Detached(nn.Module):
        def __init__(self, cut: bool) -> None:
            super().__init__()
            self.cut = cut
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).tanh() + (x.detach() if self.cut else x)

    models = [lambda cut=cut: nn.Sequential(nn.Linear(8, 8), Detached(cut)) for cut in (True, False)]
    sentence = answer(tmp_path, plain(), plain(), model=models[0], other=models[1]).origin.sentence
    assert sentence.startswith("the gradient is not detached")


def test_a_parameter_of_the_model_itself_is_named(tmp_path: Path) -> None:
    class Sloped(nn.Module):
        def __init__(self, slope: float) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 2)
            self.slope = nn.Parameter(torch.full((2,), slope))

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * self.slope[0]

    origin = answer(tmp_path, plain(), plain(), model=lambda: Sloped(1.0), other=lambda: Sloped(1.5)).origin
    assert "parameter slope differs before anything ran" in origin.sentence


def test_a_parameter_is_named_without_modules(tmp_path: Path) -> None:
    def other() -> nn.Module:
        net = network()
        with torch.no_grad():
            net[2].bias.add_(0.5)
        return net

    origin = answer(tmp_path, plain(), plain(), other=other, level="L1").origin
    assert "parameter 2.bias" in origin.sentence
