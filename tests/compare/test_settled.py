"""What is settled beside a rewrite, and what is not: each clean pair has a fault of the same shape that is reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from flow_runs import batch, run, said, seeded, small
from torch import nn

from msprobe.compare import compare
from msprobe.compare.calls import Call, Match
from msprobe.compare.judge.limits import Noise
from msprobe.compare.origin.training import training_differences
from msprobe.compare.rows import Row
from msprobe.pytorch import PrecisionDebugger

Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]
FREQUENCY = torch.tensor([1.0, 0.5, 2.0, 1.5])
ANSWERS = torch.arange(16) % 4


def functional(path: Path, loss: Callable[[torch.Tensor], torch.Tensor]) -> Path:
    """Weights in a dictionary, and gradients by `torch.autograd.grad`: no module, and no record of the loss."""
    torch.manual_seed(0)
    weights = {"w": torch.randn(4, 16).requires_grad_(), "b": torch.zeros(4).requires_grad_()}
    optimizer = torch.optim.SGD(weights.values(), lr=0.1)
    debugger = PrecisionDebugger(dump_path=str(path), task="statistics", level="L1")
    for step in range(2):
        debugger.start()
        value = loss(F.linear(batch(step).flatten(0, 1), weights["w"], weights["b"]))
        for weight, gradient in zip(weights.values(), torch.autograd.grad(value, list(weights.values()))):
            weight.grad = gradient
        optimizer.step()
        debugger.stop()
        debugger.step()
    return path


def by_hand(smoothing: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def loss(logits: torch.Tensor) -> torch.Tensor:
        chances = logits.log_softmax(1)
        right = -chances[torch.arange(16), ANSWERS] * FREQUENCY[ANSWERS]
        smooth = -(chances * FREQUENCY).sum(1) / 4
        return (0.95 * right.sum() + smoothing * smooth.sum()) / FREQUENCY[ANSWERS].sum()

    return loss


def test_a_step_without_a_module_has_a_loss_and_gradients(tmp_path: Path) -> None:
    golden = functional(
        tmp_path / "golden", lambda y: F.cross_entropy(y, ANSWERS, weight=FREQUENCY, label_smoothing=0.05)
    )
    assert compare(functional(tmp_path / "same", by_hand(0.05)), golden).verdict == "same"
    assert compare(functional(tmp_path / "wrong", by_hand(0.06)), golden).verdict == "differs"


class Frozen(nn.Module):
    """A frozen convolution and its normalisation, in two calls or in one."""

    def __init__(self, eps: float = 0.0) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv1d(8, 8, 3), nn.BatchNorm1d(8), nn.Linear(14, 4)
        self.norm.running_var.uniform_(0.5, 1.5)
        for part in (self.conv, self.norm):
            part.requires_grad_(False).eval()
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.eps:
            return self.head(F.leaky_relu(self.norm(self.conv(x)), 0.1))
        factor = self.norm.weight / torch.sqrt(self.norm.running_var + self.eps)
        shift = (self.conv.bias - self.norm.running_mean) * factor + self.norm.bias
        h = F.conv1d(x, self.conv.weight * factor[:, None, None], shift)
        return self.head(torch.maximum(h, 0.1 * h))


def test_a_normalisation_that_is_folded_into_the_weights(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", seeded(Frozen))
    assert compare(run(tmp_path / "same", seeded(lambda: Frozen(1e-5))), golden).verdict == "same"
    wrong = compare(run(tmp_path / "wrong", seeded(lambda: Frozen(1e-2))), golden)
    assert wrong.verdict == "differs"
    assert "batch_norm" in said(wrong) or "conv1d" in said(wrong)


def focal(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    logits = model(x).flatten(0, 1)
    wanted = (torch.arange(64).view(16, 4) % 5 == 0).float()
    right = torch.where(wanted == 1, torch.sigmoid(logits), 1 - torch.sigmoid(logits))
    each = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    return ((1 - right) ** 2.0 * each * (torch.arange(16) % 3 > 0)[:, None]).sum() / 13


def signed(divisor: float) -> Loss:
    """The same, with the sign carried by logsigmoid, and an index instead of a factor."""

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        logits = model(x).flatten(0, 1)
        wanted = (torch.arange(64).view(16, 4) % 5 == 0).float()
        turned = torch.where(wanted == 1, logits, -logits)
        each = torch.sigmoid(-turned).pow(2.0) * F.logsigmoid(turned)
        return -each[torch.arange(16) % 3 > 0].sum() / divisor

    return loss


def test_a_sign_that_is_carried_elsewhere_is_not_blamed_for_what_follows(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", seeded(small), focal)
    assert compare(run(tmp_path / "same", seeded(small), signed(13)), golden).verdict == "same"
    wrong = compare(run(tmp_path / "wrong", seeded(small), signed(17)), golden)
    assert wrong.origin is not None
    assert "__truediv__" in wrong.origin.name
    assert "17" in said(wrong)


def soft(share: float) -> Loss:
    """Targets that are mixed, instead of losses that are mixed."""

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        hot = F.one_hot(ANSWERS, 4).float()
        wanted = 0.9 * (share * hot + (1 - share) * hot.flip(0)) + 0.1 / 4
        return -(wanted * F.log_softmax(model(x).flatten(0, 1), -1)).sum(-1).mean()

    return loss


def mixed(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    logits = model(x).flatten(0, 1)
    here = F.cross_entropy(logits, ANSWERS, label_smoothing=0.1)
    return 0.7 * here + (1 - 0.7) * F.cross_entropy(logits, ANSWERS.flip(0), label_smoothing=0.1)


def test_factors_of_a_different_place_are_not_compared(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", seeded(small), mixed)
    assert compare(run(tmp_path / "same", seeded(small), soft(0.7)), golden).verdict == "same"
    assert compare(run(tmp_path / "wrong", seeded(small), soft(0.3)), golden).verdict == "differs"


class Head(nn.Module):
    """A linear layer, or its weight and a bias that belongs to the head itself."""

    def __init__(self, own: bool, adds: bool = True) -> None:
        super().__init__()
        self.body, self.own, self.adds = small(), own, adds
        self.decoder = nn.Linear(4, 6, bias=not own)
        if own:
            self.bias = nn.Parameter(torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        if not self.own:
            return self.decoder(y)
        y = F.linear(y, self.decoder.weight)
        return y + self.bias if self.adds else y + self.bias.detach()


def far(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (model(x) - 1.0).square().mean()


def same_start(own: bool, adds: bool = True) -> nn.Module:
    torch.manual_seed(0)
    made = Head(False)
    model = Head(own, adds)
    model.load_state_dict({("bias" if own and k == "decoder.bias" else k): v for k, v in made.state_dict().items()})
    return model


def test_a_bias_that_belongs_to_a_different_module(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", same_start(False), far)
    assert compare(run(tmp_path / "same", same_start(True), far), golden).verdict == "same"
    assert compare(run(tmp_path / "wrong", same_start(True, adds=False), far), golden).verdict == "differs"


def clipped(factor: float) -> Callable[[torch.optim.Optimizer, nn.Module], None]:
    def update(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.grad = parameter.grad * factor if factor != 1.0 else parameter.grad
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()

    return update


def test_clipping_hides_no_factor_of_all_gradients(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", seeded(small), update=clipped(1.0))
    assert compare(run(tmp_path / "same", seeded(small), update=clipped(1.0)), golden).verdict == "same"
    wrong = compare(run(tmp_path / "wrong", seeded(small), update=clipped(2.0)), golden)
    assert wrong.verdict == "differs"
    assert "2 times as large" in said(wrong)


def events(held: int, clears: bool) -> list[dict[str, Any]]:
    cleared = [{"event": "zero_grad", "optimizer": 0, "set_to_none": True}] if clears else []
    return [*cleared, {"event": "backward", "parameters": 32, "with_gradient": held}]


def test_gradients_of_one_of_several_models_that_are_not_cleared() -> None:
    found = training_differences(events(18, False), events(10, True))
    assert [one.kind for one in found] == ["zero_grad"]
    assert "18 parameters still hold one, and 10 in the golden run" in found[0].sentence
    assert training_differences(events(10, True), events(10, True)) == []
    assert training_differences(events(18, True), events(10, True)) == []  # more parameters, cleared in the same way


def lone(golden: bool, dtype: str) -> tuple[Match, list[Row]]:
    item = {"type": "torch.Tensor", "dtype": dtype, "shape": [4], "Max": 1.0, "Min": 0.0, "Mean": 0.5, "Norm": 1.0}
    call = Call("Torch.matmul.0.backward", "api", "Torch.matmul", 0, "backward", None, 0, False, {})
    match = Match(None if golden else call, call if golden else None, "unmatched", 0.0)
    return match, [Row(match, "output.0", "output.0", None if golden else item, item if golden else None)]


@pytest.mark.parametrize(
    ("made", "level"),
    [
        ([lone(True, "torch.bfloat16"), lone(False, "torch.bfloat16")], 2.0**-7),
        ([lone(True, "torch.bfloat16")], 0.0),  # a call that the target lacks
        ([lone(False, "torch.bfloat16"), lone(True, "torch.float32")], 0.0),  # coarser than the golden run
    ],
)
def test_a_part_that_both_runs_write_in_a_coarse_dtype_is_rounded_differently(made: Any, level: float) -> None:
    noise = Noise()
    for match, rows in made:
        noise.expect(match, rows)
    assert noise.level == level


class Masters(torch.optim.Optimizer):
    """Plain descent on float32 copies of weights in bfloat16."""

    def __init__(self, parameters: Any, way: str) -> None:
        super().__init__(parameters, {"lr": 0.02})
        self.way = way

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state["wide"] = p.float().clone()
            if self.way == "lost":
                state["wide"].copy_(p)
            if self.way == "scaled":
                state["wide"].add_(p.grad.float(), alpha=-0.02)
            else:
                state["wide"].sub_(0.02 * p.grad.float())
            p.copy_(state["wide"])


def test_copies_of_weights_that_an_optimizer_keeps_are_results_of_the_step(tmp_path: Path) -> None:
    def trained(way: str) -> Path:
        model = seeded(lambda: nn.Linear(16, 4).to(torch.bfloat16))
        loss = lambda m, x: m(x.bfloat16()).float().square().mean()  # noqa: E731
        return run(tmp_path / way, model, loss, make=lambda p: Masters(p, way))

    golden = trained("plain")
    assert compare(trained("scaled"), golden).verdict == "same"
    wrong = compare(trained("lost"), golden)
    assert wrong.origin is not None
    assert (wrong.origin.name, wrong.origin.step) == ("Tensor.copy_.0.forward", 1)


def test_an_index_that_is_not_recorded_leads_from_what_needs_a_gradient(tmp_path: Path) -> None:
    """What is read by the index of the answers does not come from the scores, nor the other way round."""

    def boxes(divisor: float) -> Loss:
        def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
            chosen, offsets = torch.arange(16) % 3 > 0, x.flatten(0, 1)[:, :4]
            wanted = offsets / divisor if divisor != 1.0 else offsets
            return F.smooth_l1_loss(model(x).flatten(0, 1)[chosen], wanted[chosen])

        return loss

    golden = run(tmp_path / "golden", seeded(small), boxes(0.1))
    assert compare(run(tmp_path / "same", seeded(small), boxes(0.1)), golden).verdict == "same"
    assert said(compare(run(tmp_path / "wrong", seeded(small), boxes(1.0)), golden)) == (
        "Tensor.__truediv__.0.forward is missing in the target"
    )
