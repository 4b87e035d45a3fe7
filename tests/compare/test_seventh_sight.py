"""The classes of the seventh set (benchmarks/unseen7): each harmless rewrite has a fault beside it that is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from flow_runs import Tied, batch, run, said, seeded, small, square, step_only
from torch import nn
from torch.utils.checkpoint import checkpoint

from msprobe.compare import Comparison, compare
from msprobe.pytorch import PrecisionDebugger

Optimizer = torch.optim.Optimizer


def adamw(**settings: Any) -> Callable[[Iterable[nn.Parameter]], Optimizer]:
    return lambda parameters: torch.optim.AdamW(parameters, **{"lr": 1e-2, **settings})


def both(tmp_path: Path, target: nn.Module, golden: nn.Module, ours: Any = None, theirs: Any = None) -> Comparison:
    return compare(run(tmp_path / "t", target, **(ours or {})), run(tmp_path / "g", golden, **(theirs or {})))


def test_a_setting_that_changes_updates_by_little_is_named(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", seeded(small), make=adamw())
    other = compare(run(tmp_path / "other", seeded(small), make=adamw(fused=True, betas=(0.9, 0.95))), golden)
    assert said(other) == "AdamW: betas is [0.9, 0.95], not [0.9, 0.999]"
    assert compare(run(tmp_path / "same", seeded(small), make=adamw(fused=True)), golden).verdict == "same"


class Normed(nn.Module):
    """A batch norm by torch, or by hand with a running variance that may be biased."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.first, self.norm = how, nn.Linear(16, 8, bias=False), nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x.flatten(0, 1))
        if self.how == "torch":
            return self.last(torch.tanh(self.norm(h)))
        mean, variance = h.mean(0), h.var(0, unbiased=False)
        with torch.no_grad():
            factor = 1.0 if self.how == "biased" else len(h) / (len(h) - 1)
            self.norm.num_batches_tracked.add_(1)
            self.norm.running_mean.lerp_(mean, 0.1)
            self.norm.running_var.lerp_(variance * factor, 0.1)
        h = (h - mean) * torch.rsqrt(variance + 1e-5) * self.norm.weight + self.norm.bias
        return self.last(torch.tanh(h))


def test_a_buffer_that_a_script_writes_is_a_result_of_the_step(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", seeded(lambda: Normed("torch")))
    same = compare(run(tmp_path / "same", seeded(lambda: Normed("hand"))), golden)
    assert same.verdict == "same"
    wrong = compare(run(tmp_path / "wrong", seeded(lambda: Normed("biased"))), golden)
    assert said(wrong).startswith("buffer norm.running_var differs after the step, though it was the same before")
    assert wrong.origin is not None
    assert "in the target, Tensor.lerp_.1.forward writes it last" in wrong.origin.evidence


def test_a_tied_parameter_has_one_gradient_under_two_names(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", seeded(lambda: Tied("module")))
    assert compare(run(tmp_path / "same", seeded(lambda: Tied("functional"))), golden).verdict == "same"
    assert compare(run(tmp_path / "cut", seeded(lambda: Tied("detached"))), golden).verdict == "differs"
    assert compare(run(tmp_path / "copy", seeded(lambda: Tied("copied"))), golden).verdict == "differs"


@pytest.mark.parametrize("trained", [False, True])
def test_a_parameter_that_no_run_updates_needs_no_gradient(tmp_path: Path, trained: bool) -> None:
    """The golden run freezes it; the target only keeps it away from the optimizer, or trains it."""
    frozen = seeded(small)
    frozen[0].requires_grad_(False)
    model = seeded(small)
    wanted = list(model.parameters()) if trained else list(model[2].parameters())
    result = both(
        tmp_path,
        model,
        frozen,
        {"make": lambda _: adamw()(wanted)},
        {"make": lambda _: adamw()(frozen[2].parameters())},
    )
    assert result.verdict == ("differs" if trained else "same")


class Recomputed(nn.Module):
    def __init__(self, reentrant: bool, rate: float = 0.0, keeps: bool = True) -> None:
        super().__init__()
        self.how = {"use_reentrant": reentrant, "preserve_rng_state": keeps}
        self.first, self.block = nn.Linear(16, 16), nn.Sequential(nn.Linear(16, 16), nn.Dropout(rate), nn.Linear(16, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.block, self.first(x), **self.how)


def test_a_recomputation_that_stops_early_is_no_difference(tmp_path: Path) -> None:
    assert both(tmp_path, seeded(lambda: Recomputed(True)), seeded(lambda: Recomputed(False))).verdict == "same"


class Forgetful(nn.Module):
    """A block that leaves out a call when it runs again: in a recomputation."""

    def __init__(self, forgets: bool) -> None:
        super().__init__()
        self.forgets, self.runs, self.first, self.last = forgets, 0, nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        x = self.first(x)
        return self.last(x if self.forgets and self.runs % 2 == 0 else torch.tanh(x))


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool, forgets: bool) -> None:
        super().__init__()
        self.reentrant, self.first, self.block = reentrant, nn.Linear(16, 16), Forgetful(forgets)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.block, self.first(x), use_reentrant=self.reentrant)


@pytest.mark.parametrize("forgets", [False, True])
def test_a_recomputation_that_leaves_out_a_call_is_no_early_end(tmp_path: Path, forgets: bool) -> None:
    target, golden = seeded(lambda: Checkpointed(True, forgets)), seeded(lambda: Checkpointed(False, False))
    assert both(tmp_path, target, golden).verdict == ("differs" if forgets else "same")


def test_a_recomputation_that_draws_again_is_called_one(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", seeded(lambda: Recomputed(False, 0.3, True)))
    result = compare(run(tmp_path / "target", seeded(lambda: Recomputed(False, 0.3, False))), golden)
    assert "(a recomputation) drew different random numbers" in said(result)


class Turned(nn.Module):
    """A rotation of halves, in two ways; `scale` is a fault behind it."""

    def __init__(self, pieces: bool, scale: float = 1.0) -> None:
        super().__init__()
        self.pieces, self.scale, self.first, self.last = pieces, scale, nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        angle = torch.arange(8.0) / 7
        a, b = x.chunk(2, -1)
        if self.pieces:
            y = torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)
        else:
            cos, sin = torch.cat((angle, angle)).cos(), torch.cat((angle, angle)).sin()
            y = x * cos + torch.cat((-b, a), -1) * sin
        return self.last(y) * self.scale


@pytest.mark.parametrize("scale", [1.0, 1.1])
def test_a_rewrite_is_matched_by_its_result(tmp_path: Path, scale: float) -> None:
    result = both(tmp_path, seeded(lambda: Turned(True, scale)), seeded(lambda: Turned(False)))
    if scale == 1.0:
        assert result.verdict == "same"
    else:
        assert "other is 1.1, not 1.0" in said(result)


class Twice(nn.Module):
    """Calls a module once for two batches, or twice; an update comes between this and its last call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(16, 16), nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1))


def alternate(path: Path, joined: bool, factor: float = 1.0) -> Path:
    torch.set_num_threads(1)
    model = seeded(Twice)
    inner, first = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model.inner, model.first))
    debugger = PrecisionDebugger(dump_path=str(path), task="statistics", level="mix")
    for step in range(2):
        x = batch(step)
        debugger.start(model)
        made = model.first(x)
        if joined:
            one, two = model.inner(torch.cat((x, made.detach()))).chunk(2)
        else:
            one, two = model.inner(x), model.inner(made.detach())
        (one.square().mean() + two.square().mean()).backward()
        inner.step()
        inner.zero_grad()
        (model.inner(made).square().mean() * factor).backward()
        first.step()
        first.zero_grad()
        inner.zero_grad()
        debugger.stop()
        debugger.step()
    return path


def test_calls_of_a_module_are_matched_by_what_they_compute(tmp_path: Path) -> None:
    golden = alternate(tmp_path / "golden", joined=False)
    assert compare(alternate(tmp_path / "same", joined=True), golden).verdict == "same"
    assert compare(alternate(tmp_path / "wrong", joined=True, factor=2.0), golden).verdict == "differs"


class Pooled(nn.Module):
    """A maximum of pairs; among equal elements, `amax` divides the gradient, and the ReLU before it drops it."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.first, self.last = how, nn.Linear(16, 16), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.first(x))
        if self.how == "pool":
            return self.last(F.max_pool1d(y, 2))
        pairs = y.unflatten(-1, (8, 2))
        return self.last(pairs.amax(-1) if self.how == "amax" else pairs.mean(-1))


def test_a_gradient_that_the_next_backward_drops_is_harmless(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", seeded(lambda: Pooled("pool")))
    assert compare(run(tmp_path / "same", seeded(lambda: Pooled("amax"))), golden).verdict == "same"
    assert compare(run(tmp_path / "wrong", seeded(lambda: Pooled("mean"))), golden).verdict == "differs"


def clipped(most: float) -> Callable[[Optimizer, nn.Module], None]:
    def update(optimizer: Optimizer, model: nn.Module) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), most)
        optimizer.step()

    return update


def test_clipping_that_clips_nothing_is_a_note(tmp_path: Path) -> None:
    make = {"make": lambda parameters: torch.optim.SGD(parameters, lr=0.1)}
    golden = run(tmp_path / "golden", seeded(small), **make)
    idle = compare(run(tmp_path / "idle", seeded(small), update=clipped(1e6), **make), golden)
    assert idle.verdict == "same"
    assert any("no gradient is large enough for it" in note for note in idle.notes)
    late = compare(run(tmp_path / "clips", seeded(small), update=clipped(1e-3), **make), golden)
    assert said(late) == "clip_grad_norm_ is called once; the golden run does not call it"
    other = {"make": lambda parameters: torch.optim.SGD(parameters, lr=0.2), "update": clipped(1e6)}
    rate = compare(run(tmp_path / "rate", seeded(small), **other), golden)
    assert said(rate) == "SGD: lr is 0.2, not 0.1"


def test_a_number_in_place_of_a_tensor_is_a_different_argument(tmp_path: Path) -> None:
    def mean(number: bool) -> Any:
        def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
            y = model(x)
            return y.square().sum() / (60 if number else (y != 100.0).sum())

        return {"loss": loss}

    result = both(tmp_path, seeded(small), seeded(small), mean(True), mean(False))
    assert "other is 60; the golden run passes a tensor (64)" in said(result)


class Looked(nn.Module):
    def __init__(self, padding: Any) -> None:
        super().__init__()
        self.embed, self.last = nn.Embedding(4, 16, padding_idx=padding), nn.Linear(16, 4)
        with torch.no_grad():
            self.embed.weight.copy_(torch.arange(64.0).view(4, 16) / 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.embed((x[..., 0] > 0).long()))


def test_an_argument_that_shows_in_the_backward_is_named(tmp_path: Path) -> None:
    result = both(tmp_path, seeded(lambda: Looked(1)), seeded(lambda: Looked(None)))
    assert "was called with a different argument: padding_idx is 1" in said(result)


def test_accumulated_gradients_say_by_what_factor_they_differ(tmp_path: Path) -> None:
    def parts(divided: bool) -> Any:
        def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
            factor = 0.5 if divided else 1.0
            (square(model, x[:1]) * factor).backward()
            return square(model, x[1:]) * factor

        return {"loss": loss, "update": step_only}

    sgd = {"make": lambda parameters: torch.optim.SGD(parameters, lr=0.1)}
    golden = run(tmp_path / "golden", seeded(small), **sgd)
    assert compare(run(tmp_path / "same", seeded(small), **parts(True), **sgd), golden).verdict == "same"
    wrong = compare(run(tmp_path / "wrong", seeded(small), **parts(False), **sgd), golden)
    assert said(wrong).startswith("the accumulated gradients are 2 times as large: the step has 2 backward passes")


@pytest.mark.parametrize("side", ["target", "golden run"])
def test_a_parameter_that_one_model_lacks_comes_before_the_weights_drawn_after_it(tmp_path: Path, side: str) -> None:
    def model(bias: bool) -> nn.Module:
        return nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 8, bias=bias), nn.Linear(8, 8), nn.Linear(8, 4))

    lacks, has = seeded(lambda: model(False)), seeded(lambda: model(True))
    found = both(tmp_path, *((lacks, has) if side == "target" else (has, lacks)))
    assert said(found) == f"Module.1.Linear has no parameter bias in the {side}"


def test_one_other_weight_is_not_blamed_on_a_parameter_that_one_model_lacks(tmp_path: Path) -> None:
    def model(bias: bool) -> nn.Module:
        return nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 8, bias=bias), nn.Linear(8, 8), nn.Linear(8, 4))

    target, golden = seeded(lambda: model(False)), seeded(lambda: model(True))
    target.load_state_dict(golden.state_dict(), strict=False)
    with torch.no_grad():
        target[3].weight.mul_(1.1)
    assert "weight of Module.3.Linear differs before anything ran" in said(both(tmp_path, target, golden))


def test_the_constant_of_an_extra_call_is_shown(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", seeded(small))
    found = compare(run(tmp_path / "scaled", seeded(small), loss=lambda model, x: square(model, x) * 1.001), golden)
    assert found.origin is not None
    assert "the target passes other=1.001 to Tensor.__mul__.0.forward" in found.origin.evidence


def test_a_weight_counts_once_however_often_its_module_is_called(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared, self.last = nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.shared(torch.tanh(self.shared(x))))

    target = seeded(Twice)
    with torch.no_grad():
        target.shared.weight.mul_(1.1)
    found = both(tmp_path, target, seeded(Twice))
    assert found.origin is not None
    assert "1 of 4 weights differ" in found.origin.evidence
