"""Classes of pairs that a sixth set of models brought up: a fault beside each clean pair."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from msprobe.compare import Comparison, compare
from msprobe.pytorch import PrecisionDebugger

Change = Callable[[Any], None]


def nothing(*_: Any) -> None:
    """Changes nothing."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(F.silu(self.gate(x)) * self.up(x))
        return y


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.body = nn.Linear(8, 8), nn.Sequential(Block(), Block(), Block())
        self.norm, self.conv, self.head = nn.LayerNorm(8), nn.Conv1d(6, 6, 3, padding=1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.conv(self.norm(self.body(self.first(self.prepare(x))))))
        return y

    def prepare(self, x: Tensor) -> Tensor:
        return x


def recorded(path: Path, change: Change = nothing, **other: Any) -> Path:
    """Two steps with an optimizer; the hooks `before`, `gradients` and `end` are called in each of them."""
    torch.manual_seed(0)
    net = Net()
    change(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    average = [one.detach().clone() for one in net.parameters()]
    debugger = PrecisionDebugger(dump_path=str(path), level="mix", task="statistics")
    for step in range(2):
        x = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(step))
        debugger.start(net)
        other.get("before", nothing)(net)
        net(x).square().mean().backward()
        other.get("gradients", clip)(net)
        optimizer.step()
        optimizer.zero_grad()
        other.get("end", nothing)(net, average)
        debugger.stop()
        debugger.step()
    return path


def answer(tmp_path: Path, change: Change = nothing, golden: Any = None, **other: Any) -> Comparison:
    return compare(recorded(tmp_path / "target", change, **other), recorded(tmp_path / "golden", **(golden or {})))


def said(result: Comparison) -> str:
    assert result.origin is not None
    return result.origin.sentence


def clip(net: nn.Module, most: float = 0.01) -> None:
    torch.nn.utils.clip_grad_norm_(net.parameters(), most, foreach=False)


def clip_by_hand(net: nn.Module, most: float = 0.01) -> None:
    gradients = [one.grad for one in net.parameters() if one.grad is not None]
    total = torch.sqrt(torch.stack([one.square().sum() for one in gradients]).sum())
    factor = (most / (total + 1e-6)).clamp(max=1.0)
    for one in gradients:
        one.mul_(factor)


def test_clipping_by_hand_is_a_note(tmp_path: Path) -> None:
    result = answer(tmp_path, gradients=clip_by_hand)
    assert result.verdict == "same"
    assert "clip_grad_norm_ is not called; the golden run calls it once" in result.notes


@pytest.mark.parametrize("other", [nothing, lambda net: clip_by_hand(net, 0.005)])
def test_no_clipping_or_another_is_found(tmp_path: Path, other: Change) -> None:
    assert "clip_grad_norm_ is not called" in said(answer(tmp_path, gradients=other))


def evaluate(net: nn.Module, *_: Any) -> None:
    net.eval()
    with torch.no_grad():
        (net(torch.linspace(-2, 2, 96).view(2, 6, 8)) - 1.0).square().mean().item()
    net.train()


@pytest.mark.parametrize("where", ["before", "end"])
def test_an_evaluation_in_the_step_is_harmless(tmp_path: Path, where: str) -> None:
    assert answer(tmp_path, **{where: evaluate}).verdict == "same"


def wrong_eps(net: Any) -> None:
    net.norm.eps = 1e-2


@pytest.mark.parametrize("where", ["before", "end"])
def test_a_fault_beside_an_evaluation_is_found(tmp_path: Path, where: str) -> None:
    result = answer(tmp_path, wrong_eps, **{where: evaluate})
    assert "eps is 0.01, not 1e-05" in said(result)


def follow(net: nn.Module, average: list[Tensor]) -> None:
    with torch.no_grad():
        for mean, one in zip(average, net.parameters()):
            mean.mul_(0.9).add_(one, alpha=0.1)


def shrink(net: Any, _: Any) -> None:
    with torch.no_grad():
        net.norm.weight.mul_(0.9)


def test_an_average_of_the_weights_is_harmless(tmp_path: Path) -> None:
    assert answer(tmp_path, end=follow).verdict == "same"


def test_a_changed_weight_is_not_taken_for_an_average(tmp_path: Path) -> None:
    result = answer(tmp_path, end=shrink)
    assert "the update of norm.weight differs for the same gradient" in said(result)
    assert compare(tmp_path / "target", tmp_path / "golden", steps=[0]).verdict == "differs"


class Fused(nn.Module):
    def __init__(self, block: Any, swapped: bool) -> None:
        super().__init__()
        self.gate_up, self.down, self.swapped = nn.Linear(8, 32), block.down, swapped
        with torch.no_grad():
            self.gate_up.weight.copy_(torch.cat([block.gate.weight, block.up.weight]))
            self.gate_up.bias.copy_(torch.cat([block.gate.bias, block.up.bias]))

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)[:: -1 if self.swapped else 1]
        y: Tensor = x + self.down(F.silu(gate) * up)
        return y


def fuse(wrong: int) -> Change:
    def change(net: Any) -> None:
        for place in range(3):
            net.body[place] = Fused(net.body[place], place == wrong)

    return change


def test_a_fused_projection_is_no_missing_call(tmp_path: Path) -> None:
    result = answer(tmp_path, fuse(1))
    assert result.origin is not None
    assert result.origin.name == "Functional.silu.1.forward"
    assert "received a different input.0" in said(result)


def test_fused_projections_are_harmless(tmp_path: Path) -> None:
    assert answer(tmp_path, fuse(-1)).verdict == "same"


def prepared(how: Callable[[Tensor], Tensor]) -> Change:
    def change(net: Any) -> None:
        net.prepare = how

    return change


@pytest.mark.parametrize(
    ("how", "other", "text"),
    [
        (lambda x: x.flip(1), lambda x: x, "Tensor.flip.0.forward exists only in the target"),
        (
            lambda x: F.pad(x, (0, 0, 2, 0))[:, :6],
            lambda x: F.pad(x, (0, 0, 0, 2))[:, :6],
            "Functional.pad.0.forward was called with a different argument: pad[2] is 2, not 0",
        ),
    ],
)
def test_a_call_that_only_reorders_is_named(
    tmp_path: Path, how: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor], text: str
) -> None:
    result = answer(tmp_path, prepared(how), golden={"change": prepared(other)})
    assert said(result) == text


def test_an_argument_by_name_is_the_one_by_place(tmp_path: Path) -> None:
    """The padding is made by a call of its own, with other numbers; stride 1 is given by name."""

    def padded(net: Any) -> None:
        def forward(x: Tensor) -> Tensor:
            wide = F.pad(x, (1, 1), mode="replicate")
            return F.conv1d(wide, net.conv.weight, net.conv.bias, stride=1)

        net.conv.forward = forward

    assert said(answer(tmp_path, padded)) == (
        "Functional.pad.0.forward in Module.conv.Conv1d exists only in the target"
    )


class Decoder(nn.Module):
    """Attention over all tokens before, with or without a cache of keys and values."""

    def __init__(self, cached: bool, factor: float) -> None:
        super().__init__()
        self.emb, self.qkv, self.out = nn.Embedding(40, 16), nn.Linear(16, 48), nn.Linear(16, 40)
        self.cached, self.factor = cached, factor
        self.old: list[Tensor] = []

    def forward(self, ids: Tensor) -> Tensor:
        q, k, v = self.qkv(self.emb(ids)).chunk(3, -1)
        if self.cached and self.old:
            k, v = torch.cat([self.old[0], k], 1), torch.cat([self.old[1], v * self.factor], 1)
        self.old = [k, v]
        seen = torch.ones(q.shape[1], k.shape[1]).tril(k.shape[1] - q.shape[1])
        scores = (q @ k.transpose(1, 2) / 4.0).masked_fill(seen == 0, -1e9)
        y: Tensor = self.out(torch.softmax(scores, -1) @ v)
        return y


def generated(path: Path, cached: bool, factor: float = 1.0) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(Decoder(cached, factor))
    debugger = PrecisionDebugger(dump_path=str(path), level="mix", task="statistics")
    ids = torch.arange(10).view(2, 5)
    debugger.start(model)
    with torch.no_grad():
        for place in range(4):
            scores = torch.log_softmax(model(ids[:, -1:] if cached and place else ids)[:, -1], -1)
            ids = torch.cat([ids, scores.argmax(-1, keepdim=True)], 1)
    debugger.stop()
    debugger.step()
    return path


def test_a_cache_of_keys_is_harmless(tmp_path: Path) -> None:
    golden = generated(tmp_path / "golden", cached=False)
    assert compare(generated(tmp_path / "target", cached=True), golden).verdict == "same"


def test_a_wrong_cache_is_found(tmp_path: Path) -> None:
    golden = generated(tmp_path / "golden", cached=False)
    assert compare(generated(tmp_path / "target", cached=True, factor=1.05), golden).verdict == "differs"


class Recurrent(nn.Module):
    def __init__(self, by_hand: bool, factor: float) -> None:
        super().__init__()
        self.cell, self.by_hand, self.factor = nn.RNN(8, 8, batch_first=True), by_hand, factor

    def forward(self, x: Tensor) -> Any:
        if not self.by_hand:
            result, last = self.cell(x)
            return result, (last, last)
        state, states, cell = torch.zeros(x.shape[0], 8), [], self.cell
        for one in x.unbind(1):
            given = F.linear(one, cell.weight_ih_l0, cell.bias_ih_l0) * self.factor
            state = torch.tanh(given + F.linear(state, cell.weight_hh_l0, cell.bias_hh_l0))
            states.append(state)
        return torch.stack(states, 1), None


class Experts(nn.Module):
    """Each token has its expert; their weights are nearly the same. `batched` takes a copy of them for each token."""

    def __init__(self, batched: bool, factor: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8) + 0.01 * torch.randn(3, 8, 8))
        self.batched, self.factor = batched, factor

    def forward(self, x: Tensor) -> Any:
        x, chosen = x.flatten(0, 1), torch.arange(10) % 3
        if self.batched:
            return torch.bmm(x[:, None], self.weight[chosen] * self.factor)[:, 0], None
        parts = [torch.matmul(x[chosen == one], self.weight[one]) for one in range(3)]
        places = torch.cat([(chosen == one).nonzero()[:, 0] for one in range(3)])
        return torch.zeros(10, 8).index_copy(0, places, torch.cat(parts)), None


@pytest.mark.parametrize("kind", [Recurrent, Experts])
@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "same"), (1.02, "differs")])
def test_another_way_to_compute_is_harmless(tmp_path: Path, kind: Any, factor: float, verdict: str) -> None:
    """A state that only one run gives and nothing takes; inputs that only look as if they were broadcast."""

    def run(path: Path, other: bool) -> Path:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 8), kind(other, factor))
        debugger = PrecisionDebugger(dump_path=str(path), level="mix", task="statistics")
        debugger.start(net)
        net(torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1)))[0].square().mean().backward()
        debugger.stop()
        debugger.step()
        return path

    assert compare(run(tmp_path / "target", True), run(tmp_path / "golden", False)).verdict == verdict


def test_a_compiled_optimizer_is_not_said_to_be_missing(tmp_path: Path) -> None:
    def run(path: Path, compiled: bool) -> Path:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        update = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        debugger = PrecisionDebugger(dump_path=str(path), level="mix", task="statistics")
        debugger.start(net)
        net(torch.ones(3, 8)).square().mean().backward()
        update()
        debugger.stop()
        debugger.step()
        return path

    result = compare(run(tmp_path / "target", True), run(tmp_path / "golden", False))
    assert result.verdict == "same"  # every parameter was compared after its update
    assert not any("SGD.step" in note for note in result.notes)


SCRIPT = """
import sys, torch
torch.manual_seed(0)
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=float(sys.argv[1]))
def closure():
    optimizer.zero_grad()
    loss = net(torch.ones(3, 4)).square().mean()
    loss.backward()
    return loss
for _ in range(2):
    optimizer.step(closure)
"""


def test_settings_of_an_optimizer_with_a_closure_are_said(tmp_path: Path) -> None:
    """`msprobe run` begins to collect inside the closure, when the model is called."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    for name, decay in (("target", "0.2"), ("golden", "0.01")):
        config = tmp_path / f"{name}.json"
        settings = {"task": "statistics", "level": "mix", "dump_path": str(tmp_path / name), "step": [0, 1]}
        config.write_text(json.dumps(settings))
        command = [sys.executable, "-m", "msprobe", "run", "--config", str(config), str(script), decay]
        subprocess.run(command, check=True, cwd=tmp_path, capture_output=True)
    assert said(compare(tmp_path / "target", tmp_path / "golden")) == "AdamW: weight_decay is 0.2, not 0.01"
