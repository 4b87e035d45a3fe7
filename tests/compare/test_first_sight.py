"""Classes of pairs that a fresh set of models brought up: what a script does beside the training, and other shapes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from msprobe.compare import Comparison, compare
from msprobe.pytorch import PrecisionDebugger

Loop = Callable[..., None]


class Net(nn.Module):
    """Has a parameter of its own, of which it takes a part."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.norm, self.fc2 = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 3)
        self.place = nn.Parameter(torch.linspace(-1, 1, 80).view(10, 8))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc2(torch.tanh(self.norm(self.fc1(x + self.place[:1]))))
        return y


def groups(net: nn.Module) -> list[dict[str, Any]]:
    large = [one for one in net.parameters() if one.ndim > 1]
    small = [one for one in net.parameters() if one.ndim < 2]
    return [{"params": large}, {"params": small, "weight_decay": 0.0}]


def train(net: nn.Module, start: Callable[[], None], stop: Callable[[], None], **other: Any) -> None:
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    optimizer = torch.optim.AdamW(other.get("groups", groups)(net), lr=1e-2)
    clip = other.get("clip", "before")
    for step in range(2):
        x = torch.linspace(-1, 1 + step, 48).view(6, 8)
        start()
        parts = other.get("parts", 1)
        for part in x.chunk(parts):
            loss = net(part).square().mean() / parts
            other.get("between", nothing)(net, x)
            (loss * net.factor if hasattr(net, "factor") else loss).backward()
        if clip == "before":
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.01)
        optimizer.step()
        if clip == "after":
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.01)
        other.get("end", nothing)(net, x)
        if other.get("clear", True):
            optimizer.zero_grad(set_to_none=other.get("set_to_none", True))
        stop()


def recorded(path: Path, change: Callable[[nn.Module], nn.Module] = lambda net: net, **other: Any) -> Path:
    torch.manual_seed(0)
    net = change(Net())
    debugger = PrecisionDebugger(dump_path=str(path), level=other.pop("level", "mix"), task="statistics")

    def stop() -> None:
        debugger.stop()
        debugger.step()

    train(net, lambda: debugger.start(net), stop, **other)
    return path


def answer(tmp_path: Path, golden: Any = None, **other: Any) -> Comparison:
    return compare(recorded(tmp_path / "target", **other), recorded(tmp_path / "golden", **(golden or {})))


def evaluate(net: nn.Module, x: Tensor) -> None:
    net.eval()
    with torch.no_grad():
        net(x * 2)
    net.train()


def log_norms(net: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        norms = [one.norm() for one in net.parameters()]
        torch.stack(norms).norm().item()
        [one.abs().mean().item() for one in net.parameters()]


def wrong_average(net: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        net.fc1.weight.data = net.fc1.weight * 0.5 + net.fc1.weight * 0.51


def average(net: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        net.fc1.weight.data = net.fc1.weight * 0.5 + net.fc1.weight * 0.5


@pytest.mark.parametrize(
    "other",
    [
        {"between": log_norms},
        {"end": log_norms},
        {"between": evaluate},
        {"set_to_none": False},
        {"groups": lambda net: groups(net)[::-1]},
        {"groups": lambda net: [*groups(net), {"params": [nn.Parameter(torch.ones(3))]}]},
        {"change": lambda net: nn.Sequential(net)},
    ],
    ids=["logged before", "logged after", "evaluated", "zeros", "other order", "unused", "wrapped"],
)
def test_what_a_script_does_beside_the_training_is_no_difference(tmp_path: Path, other: Any) -> None:
    found = answer(tmp_path, **other)
    assert (found.verdict, found.origin) == ("same", None), found.notes


def test_an_unused_layer_is_a_note(tmp_path: Path) -> None:
    def with_spare(net: nn.Module) -> nn.Module:
        net.spare = nn.Linear(2, 2)
        return net

    found = answer(tmp_path, change=with_spare)
    assert found.verdict == "same"
    assert any("with spare.weight; the same number of them have a gradient" in note for note in found.notes)


def test_a_weight_that_one_run_replaces_by_itself_is_the_same(tmp_path: Path) -> None:
    assert answer(tmp_path, end=average).verdict == "same"
    assert answer(tmp_path / "wrong", end=wrong_average).verdict == "differs"


def test_forgotten_clearing_is_still_found(tmp_path: Path) -> None:
    found = answer(tmp_path, clear=False, golden={"set_to_none": False})
    assert found.origin is not None
    assert found.origin.step == 1
    assert found.origin.sentence.startswith("the target does not clear the gradients before the backward")


def test_clipping_after_the_step_is_said(tmp_path: Path) -> None:
    found = answer(tmp_path, clip="after")
    assert found.origin is not None
    assert found.origin.sentence == "clip_grad_norm_ is called after AdamW.step, not before it"


def test_settings_that_move_with_the_groups_are_said_by_parameter(tmp_path: Path) -> None:
    def moved(net: nn.Module) -> list[dict[str, Any]]:
        first, second = groups(net)
        return [{"params": first["params"] + second["params"][:1]}, {**second, "params": second["params"][1:]}]

    found = answer(tmp_path, groups=moved)
    assert found.origin is not None
    assert found.origin.sentence == (
        "AdamW: the parameters are in different groups; weight_decay is 0.01, not 0 for fc1.bias"
    )


def test_a_parameter_of_which_a_part_is_taken_is_named(tmp_path: Path) -> None:
    def changed(net: nn.Module) -> nn.Module:
        net.place.data[0, 2] += 0.05
        return net

    found = answer(tmp_path, change=changed)
    assert found.origin is not None
    assert found.origin.sentence == (
        "parameter place differs before anything ran; Tensor.__add__.0.forward is the first call that shows it"
    )


class Router(nn.Module):
    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.inner(x)
        return y, y.topk(self.k, dim=-1).values


class Taker(nn.Module):
    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        return x * chosen.sum(-1, keepdim=True)


class Routed(nn.Module):
    def __init__(self, k: int = 2, longer: bool = False) -> None:
        super().__init__()
        self.router, self.taker, self.head, self.longer = Router(k), Taker(), nn.Linear(8, 3), longer
        self.key = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y, chosen = self.router(x)
        z = self.taker(y, chosen)
        other = self.key(torch.cat([z, x[:2]]) if self.longer else z)
        w: Tensor = torch.softmax(self.key(z) @ other.t(), -1) @ other
        return self.head(w)


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_module_that_gives_another_shape_is_named(tmp_path: Path, level: str) -> None:
    found = answer(
        tmp_path, change=lambda _: Routed(k=1), level=level, golden={"change": lambda _: Routed(), "level": level}
    )
    assert found.origin is not None
    if level == "L0":
        assert (
            found.origin.sentence
            == "Module.router.Router.forward.0 gives output.1 in a different shape: [6, 1], not [6, 2]"
        )
    else:
        assert found.origin.sentence.startswith(
            "Tensor.topk.0.forward in Module.router.Router was called with a different"
        )


def test_another_shape_is_followed_to_the_call_that_brings_it_in(tmp_path: Path) -> None:
    found = answer(tmp_path, change=lambda _: Routed(longer=True), golden={"change": lambda _: Routed()})
    assert found.origin is not None
    assert found.origin.sentence.startswith("Torch.cat.0.forward exists only in the target")


class Steps(nn.Module):
    """Gives its last state too, which nobody uses."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.fc, self.shared = nn.Linear(8, 8), shared

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.fc(x)
        y = torch.tanh(h)
        return y, h if self.shared else h.clone()


class Stepped(nn.Module):
    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.steps, self.head = Steps(shared), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.steps(x)[0])
        return y


def test_a_gradient_of_a_result_that_nobody_uses_is_no_difference(tmp_path: Path) -> None:
    found = answer(tmp_path, change=lambda _: Stepped(True), golden={"change": lambda _: Stepped(False)})
    assert found.verdict == "same"


def test_another_loss_is_said_where_it_is_no_module(tmp_path: Path) -> None:
    def scaled(net: nn.Module, x: Tensor) -> None:
        net.factor = 2.0

    found = answer(tmp_path, level="L0", between=scaled, golden={"level": "L0"})
    assert found.origin is not None
    assert found.origin.sentence == (
        "Module.fc2.Linear.backward.0 received a different input.0: what is computed after Module.fc2.Linear.forward.0 "
        "differs (the loss, its labels)"
    )


def test_a_parameter_of_the_model_is_named_without_its_call(tmp_path: Path) -> None:
    def changed(net: nn.Module) -> nn.Module:
        net.place.data[0, 2] += 0.05
        return net

    found = answer(tmp_path, change=changed, level="L0", golden={"level": "L0"})
    assert found.origin is not None
    assert found.origin.sentence == (
        "parameter place differs before anything ran; Module.fc1.Linear.forward.0 is the first call that shows it"
    )


def test_a_decaying_parameter_is_named_at_level_l1(tmp_path: Path) -> None:
    def changed(net: nn.Module) -> nn.Module:
        net.fc2.weight.data[1, 2] += 0.5
        return net

    found = answer(tmp_path, change=changed, level="L1", golden={"level": "L1"})
    assert found.origin is not None
    assert found.origin.sentence.startswith("parameter fc2.weight, weight (input.1) of Functional.linear.1.forward")


def test_level_l0_sees_gradients_that_were_not_cleared(tmp_path: Path) -> None:
    found = answer(tmp_path, clear=False, level="L0", golden={"level": "L0"})
    assert found.origin is not None
    assert found.origin.sentence.startswith("the target does not clear the gradients before the backward")


def test_level_l0_sees_that_parts_of_a_batch_add_up(tmp_path: Path) -> None:
    found = answer(tmp_path, parts=2, level="L0", golden={"level": "L0"})
    assert found.verdict == "same", found.origin


class Scaled(nn.Module):
    def __init__(self, first: bool) -> None:
        super().__init__()
        self.query, self.key, self.head, self.first = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3), first

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.query(x), self.key(x)
        scores = (q * 0.3) @ k.t() if self.first else (q @ k.t()) * 0.3
        y: Tensor = self.head(torch.softmax(scores, -1) @ k)
        return y


def test_a_factor_in_another_place_is_no_difference_at_level_l1(tmp_path: Path) -> None:
    golden = {"change": lambda _: Scaled(False), "level": "L1"}
    assert answer(tmp_path, change=lambda _: Scaled(True), level="L1", golden=golden).verdict == "same"


class Watched(Net):
    """Logs a detached copy with the call that it makes anyway."""

    def __init__(self, cut: bool = False, log: bool = True) -> None:
        super().__init__()
        self.cut, self.log = cut, log

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc1(x)
        if self.log:
            torch.tanh(y.detach())
        y = y.detach() if self.cut else y
        z: Tensor = self.fc2(torch.tanh(y))
        return z


def test_a_logged_copy_is_not_taken_for_a_cut_gradient(tmp_path: Path) -> None:
    golden = {"change": lambda _: Watched(log=False), "level": "L1"}
    assert answer(tmp_path, change=lambda _: Watched(), level="L1", golden=golden).verdict == "same"


def test_a_cut_gradient_is_found_beside_a_logged_copy(tmp_path: Path) -> None:
    golden = {"change": lambda _: Watched(log=False), "level": "L1"}
    found = answer(tmp_path, change=lambda _: Watched(cut=True), level="L1", golden=golden)
    assert found.origin is not None
    assert found.origin.sentence.startswith("the gradient is cut off at Torch.tanh")


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.out(self.inner(x) * mask)
        return y


class WithMask(nn.Module):
    def __init__(self, start: int) -> None:
        super().__init__()
        self.block, self.head, self.start = Masked(), nn.Linear(8, 3), start

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.block(x, torch.arange(self.start, self.start + 8.0)))
        return y


def test_an_input_of_the_module_around_is_named_at_level_l0(tmp_path: Path) -> None:
    golden = {"change": lambda _: WithMask(0), "level": "L0"}
    found = answer(tmp_path, change=lambda _: WithMask(1), level="L0", golden=golden)
    assert found.origin is not None
    assert found.origin.sentence.startswith("Module.block.Masked.forward.0 received a different input.1")


class Attention(nn.Module):
    """The bias of its keys has a gradient of nothing but rounding, which Adam scales up."""

    def __init__(self, eager: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.head, self.eager = nn.Linear(8, 3), eager

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sin(x[:, None] * torch.linspace(1, 3, 7)[:, None])
        q, k, v = self.query(x), self.key(x), self.value(x)
        if self.eager:
            y = torch.softmax(q @ k.transpose(-1, -2) * 8**-0.5, -1) @ v
        else:
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        z: Tensor = self.head(y)
        return z


def test_noise_in_a_weight_is_allowed_for_at_level_l1(tmp_path: Path) -> None:
    golden = {"change": lambda _: Attention(True), "level": "L1"}
    found = answer(tmp_path, change=lambda _: Attention(False), level="L1", golden=golden)
    assert found.verdict == "same", found.origin
