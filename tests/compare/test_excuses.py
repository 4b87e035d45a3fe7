"""Each rule of the table of excuses: a clean pair that needs it, and a planted fault that it must not hide.

The fault is in a call whose rows the rule would excuse if it needed no evidence: with the evidence of the rule broken,
the last test sees the fault excused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Optional

import pytest
import torch
import torch.nn.functional as F
from flow_runs import Block, batch, run, seeded, small, square
from rounded_runs import Normalised, Projected, attended, hooked, trained
from torch import nn
from written import call, tensor, write_dump

from msprobe.compare import Comparison, compare, excuses
from msprobe.compare.excuses import StepFacts
from msprobe.compare.flow import packed, rounded, settle
from msprobe.compare.rows import Row, is_tensor
from msprobe.pytorch import PrecisionDebugger

Runs = tuple[Path, Path]


class Case(NamedTuple):
    """`pair(path, wrong)` makes target and golden run; `calls`: the fault shows in a call with this in its name;
    `careless` breaks the evidence of the rule."""

    pair: Callable[[Path, bool], Runs]
    calls: str
    careless: Callable[[pytest.MonkeyPatch], None]


def models(make: Callable[[bool], nn.Module], wrong: Callable[[], nn.Module], **how: Any) -> Callable[..., Runs]:
    """`make(True)` is written in a different way than `make(False)`; `wrong()` too, with a fault."""

    def pair(path: Path, is_wrong: bool) -> Runs:
        target = seeded(wrong if is_wrong else lambda: make(True))
        return run(path / "target", target, **how), run(path / "golden", seeded(lambda: make(False)), **how)

    return pair


class Scaled(Block):
    """The rewritten block with a different scale."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = (self.q(x) * 0.5) @ self.k(x).transpose(-1, -2)
        x = x + scores.softmax(-1) @ self.v(x)
        return x + self.down(F.gelu(self.up(self.norm(x)), approximate=self.approximate))


def looked(path: Path, wrong: bool) -> Runs:
    """Computes something for the log; or it reaches the loss by a way that is not recorded. The update is not
    recorded."""

    def record(name: str, logs: bool) -> Path:
        model = seeded(small)
        debugger = PrecisionDebugger(dump_path=str(path / name), task="statistics", level="mix")
        debugger.start(model)
        y = model(batch(0))
        if logs:
            seen = torch.exp(y)
            if wrong:
                y.data[:] = torch.from_numpy(seen.detach().numpy() * 0.5)
        y.square().mean().backward()
        debugger.stop()
        debugger.step()
        return path / name

    return record("target", True), record("golden", False)


class Attention(nn.Module):
    """Also returns its weights, or None."""

    def __init__(self, returns: bool, scale: float = 0.25) -> None:
        super().__init__()
        self.returns, self.scale, self.inner = returns, scale, nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
        x = self.inner(x)
        weights = (x @ x.transpose(-1, -2) * self.scale).softmax(-1)
        return weights @ x, weights if self.returns else None


class Attending(nn.Module):
    def __init__(self, returns: bool, scale: float = 0.25) -> None:
        super().__init__()
        self.attention, self.last = Attention(returns, scale), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.attention(x)[0])


class Cut(nn.Module):
    """Its input needs a gradient; or what it computes from its first layer is cut off."""

    def __init__(self, flag: bool, cut: bool = False) -> None:
        super().__init__()
        self.flag, self.cut, self.first, self.last = flag, cut, nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_() if self.flag else x.clone()
        x = torch.tanh(self.first(x))
        return self.last(torch.relu(x.detach() if self.cut else x))


class Packed(nn.Module):
    """One projection, or three."""

    def __init__(self, fused: bool, factor: float = 1.0) -> None:
        super().__init__()
        parts = [nn.Linear(16, 16) for _ in range(3)]
        self.fused, self.out = fused, nn.Linear(16, 4)
        if fused:
            self.qkv = nn.Linear(16, 48)
            with torch.no_grad():
                self.qkv.weight.copy_(torch.cat([part.weight for part in parts]))
                self.qkv.bias.copy_(torch.cat([part.bias for part in parts]))
            if factor != 1.0:
                self.qkv.weight.register_hook(lambda gradient: gradient * factor)
        else:
            self.q, self.k, self.v = parts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1) if self.fused else (self.q(x), self.k(x), self.v(x))
        return self.out((q @ k.transpose(-1, -2)).softmax(-1) @ v)


def frozen(path: Path, wrong: bool) -> Runs:
    """The golden run freezes a layer; the target only keeps it away from the optimizer, or trains it."""
    golden, target = seeded(small), seeded(small)
    golden[0].requires_grad_(False)
    wanted = list(target.parameters()) if wrong else list(target[2].parameters())
    return (
        run(path / "target", target, make=lambda _: torch.optim.AdamW(wanted, lr=1e-2)),
        run(path / "golden", golden, make=lambda _: torch.optim.AdamW(golden[2].parameters(), lr=1e-2)),
    )


def parts(path: Path, wrong: bool) -> Runs:
    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        factor = 1.0 if wrong else 0.5
        (square(model, x[:1]) * factor).backward()
        return square(model, x[1:]) * factor

    sgd = {"make": lambda parameters: torch.optim.SGD(parameters, lr=0.1)}
    target = run(path / "target", seeded(small), loss=loss, **sgd)
    return target, run(path / "golden", seeded(small), **sgd)


def totals(path: Path, wrong: bool) -> Runs:
    def record(name: str, start: float, factor: float) -> Path:
        model, total = seeded(small), torch.tensor(start)
        debugger = PrecisionDebugger(dump_path=str(path / name), task="statistics", level="mix")
        debugger.start(model)
        loss = square(model, batch(0))
        loss.backward()
        torch.add(total, loss.detach() * factor if factor != 1.0 else loss.detach())
        debugger.stop()
        debugger.step()
        return path / name

    def by_hand(name: str, start: float, added: float) -> Path:
        data = {
            "Functional.linear.0.forward": call(tensor(1.0), tensor(2.0), output=tensor(4.0)),
            "Torch.add.0.forward": call(number(start), number(0.25), output=number(start + added)),
        }
        return write_dump(path / name, data)

    def number(value: float) -> dict[str, Any]:
        given = {"Max": value, "Min": value, "Mean": value, "Norm": abs(value)}
        return {**tensor(value, [1]), **given, "requires_grad": False}

    if wrong:  # the numbers that are added look the same, what is added is not
        return by_hand("target", 3.0, 0.5), by_hand("golden", 2.0, 0.25)
    return record("target", 3.0, 1.0), record("golden", 2.0, 1.0)


def noisy(path: Path, wrong: bool) -> Runs:
    target = hooked("second.bias", lambda gradient: gradient + 1e-4) if wrong else lambda: Normalised(True)
    return trained(path / "target", target), trained(path / "golden", lambda: Normalised(False))


def divided(path: Path, wrong: bool) -> Runs:
    moved = hooked("attention.in_proj_bias", lambda gradient: gradient.roll(16), Projected)
    target = moved if wrong else lambda: Projected(True)
    return attended(path / "target", target), attended(path / "golden", lambda: Projected(False))


def every_tensor(facts: StepFacts) -> list[Row]:
    return [row for _, rows in facts.groups for row in rows if is_tensor(row.golden) and is_tensor(row.target)]


def believe(name: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    """Breaks what a rule asks about the step."""

    def broken(monkeypatch: pytest.MonkeyPatch) -> None:
        made = property(value if callable(value) else lambda facts: value)
        monkeypatch.setattr(StepFacts, name, made)

    return broken


def accept_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    def proves(row: Row) -> bool:
        return is_tensor(row.golden) and is_tensor(row.target)

    for module in (excuses, settle):
        monkeypatch.setattr(module, "is_evidence", proves)
    monkeypatch.setattr(settle, "_is_small", lambda row: False)
    monkeypatch.setattr(excuses, "_would_show", lambda *given: True)


def updates_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    init = StepFacts.__init__

    def believing(self: StepFacts, *given: Any) -> None:
        init(self, *given)
        self.updates_agree = True

    monkeypatch.setattr(StepFacts, "__init__", believing)


def same_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_together", lambda items: (1.0,) if items else ())


def same_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(excuses, "_added", lambda before, after: 1.0)


def any_gradient_is_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounded, "_are_rounding", lambda *given: True)


def every_divisor_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounded, "_is_the_same", lambda row: True)
    monkeypatch.setattr(rounded, "MANY", 1.0)


def everything_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    updates_agree(monkeypatch)
    believe("gradients", every_tensor)(monkeypatch)


CASES: dict[str, Case] = {
    "update": Case(models(Packed, lambda: Packed(True, 1.5)), "addcdiv_", updates_agree),
    "settled": Case(models(lambda new: Block(new, "none"), lambda: Scaled(True, "none")), "__mul__", accept_everything),
    "unused": Case(looked, "Torch.exp", believe("results", every_tensor)),
    "optional": Case(
        models(Attending, lambda: Attending(True, 0.5), level="L0"),
        "Module.attention.Attention.forward",
        accept_everything,
    ),
    "gradient flag": Case(models(Cut, lambda: Cut(True, True)), "relu", believe("gradients", every_tensor)),
    "packed": Case(models(Packed, lambda: Packed(True, 1.5)), "parameters_grad", same_together),
    "observables": Case(frozen, "linear.0.backward", everything_agrees),
    "rounded gradient": Case(noisy, "_fused_adamw_", any_gradient_is_rounding),
    "quotient": Case(divided, "in_proj_bias", every_divisor_agrees),
    "micro-batches": Case(parts, "Module.0.Linear.forward", believe("results", every_tensor)),
    "running total": Case(totals, "add", same_added),
}


def excused(result: Comparison, rule: str, calls: str = "") -> list[str]:
    """The rows of the first step that the rule excuses: a fault changes everything after it."""
    rows = [row for _, rows in result.units[0].groups for row in rows]
    return [row.name for row in rows if row.excuse is not None and row.excuse.rule == rule and calls in row.name]


def test_every_rule_has_a_clean_pair_and_a_planted_fault() -> None:
    assert list(CASES) == list(excuses.RULES)


@pytest.mark.parametrize("rule", list(CASES))
def test_a_clean_pair_is_the_same_by_the_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    pair = CASES[rule].pair(tmp_path, False)
    result = compare(*pair)
    assert result.verdict == "same"
    assert excused(result, rule)


@pytest.mark.parametrize("rule", list(CASES))
def test_the_rule_hides_no_fault_unless_its_evidence_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    case = CASES[rule]
    pair = case.pair(tmp_path, True)
    result = compare(*pair)
    assert result.verdict == "differs"
    assert not excused(result, rule, case.calls)
    case.careless(monkeypatch)
    assert excused(compare(*pair), rule, case.calls)
