"""A fault before, in or after a part of the code that both runs write in a different way, which alone is harmless."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from flow_runs import run, said, seeded
from torch import nn
from written import call, saved, write_dump

from msprobe.compare import Comparison, compare

Made = Callable[[], nn.Module]


def compared(tmp_path: Path, golden: Made, target: Made, task: str = "statistics") -> Comparison:
    places = [run(tmp_path / name, seeded(made), task=task) for name, made in (("golden", golden), ("target", target))]
    return compare(places[1], places[0])


class Turned(nn.Module):
    """Turns pairs of elements by their place, and keeps two results. The first place has the extremes, and is not
    turned: what is turned has the extremes and the norm of what is not."""

    def __init__(self, by_halves: bool, place: int) -> None:
        super().__init__()
        self.out, self.by_halves, self.place = nn.Linear(16, 4), by_halves, place
        self.scale = torch.ones(8, 16)
        self.scale[0, :8] = 9.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.scale
        angles = torch.arange(8.0)[:, None] * torch.tensor([1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.01])
        cos, sin = angles.cos(), angles.sin()
        a, b = x[..., :8], x[..., 8:]
        if self.by_halves:
            turned = torch.cat([-b, a], dim=-1)
            y = x * cos.repeat(1, 2) + turned * sin.repeat(1, 2)
        else:
            y = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
        kept = y.new_zeros(2, *y.shape)
        kept[0] = y
        kept[self.place] = y * 0.5
        return self.out(kept[0] + kept[1] * 2)


def test_the_same_elements_are_found_behind_calls_that_only_resemble(tmp_path: Path) -> None:
    """Not so if `_api_elements` (compare/align/tree.py) finds nothing."""
    assert compared(tmp_path / "same", lambda: Turned(False, 1), lambda: Turned(True, 1)).verdict == "same"
    wrong = compared(tmp_path / "wrong", lambda: Turned(False, 1), lambda: Turned(True, 0))
    assert said(wrong) == "Tensor.__setitem__.1.forward was called with a different argument: argument 1 is 0, not 1"


class Chosen(nn.Module):
    """Mixes the parts of two chosen experts; the weights are a softmax over all experts, or over the chosen."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.router, self.parts, self.how = nn.Linear(16, 6), nn.Linear(16, 6 * 4), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.router(x)
        if self.how == "all":
            weights, picked = torch.topk(logits.softmax(-1), 2)
            weights = weights / weights.sum(-1, keepdim=True)
        else:
            weights, picked = torch.topk(logits, 2)
            weights = weights.softmax(-1) if self.how == "chosen" else weights.sigmoid()
        parts = self.parts(x).unflatten(-1, (6, 4))
        taken = parts.gather(-2, picked[..., None].expand(*picked.shape, 4))
        return (taken * weights[..., None]).sum(-2)


def test_all_calls_of_a_rewritten_part_are_named(tmp_path: Path) -> None:
    assert compared(tmp_path / "same", lambda: Chosen("all"), lambda: Chosen("chosen")).verdict == "same"
    wrong = compared(tmp_path / "wrong", lambda: Chosen("all"), lambda: Chosen("sigmoid"))
    assert said(wrong) == (
        "Tensor.softmax.0.forward is missing in the target; after it, "
        "Tensor.__mul__.0.forward received a different other (input.1), which the target computes by "
        "Torch.topk.0.forward to Tensor.sigmoid.0.forward and the golden run by "
        "Tensor.softmax.0.forward to Tensor.__truediv__.0.forward"
    )


class Grouped(nn.Module):
    """A softmax within groups of edges, with the maximum of the group or of all."""

    def __init__(self, by_group: bool, total: bool) -> None:
        super().__init__()
        self.score, self.value, self.by_group, self.total = nn.Linear(16, 1), nn.Linear(16, 4), by_group, total

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat, group = x.flatten(0, 1), torch.arange(16) % 3
        weights = self.weights(self.score(flat)[:, 0], group)
        return weights[:, None] * self.value(flat)

    def weights(self, scores: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
        if self.by_group:
            top = scores.new_full((3,), -1e9).scatter_reduce(0, group, scores, "amax")
            weights = torch.exp(scores - top[group].detach())
        else:
            weights = torch.exp(scores - scores.detach().max())
        if self.total:
            return weights / (weights.sum(0, keepdim=True) + 1e-16)
        return weights / (torch.zeros(3).index_add(0, group, weights)[group] + 1e-16)


def test_a_part_goes_on_behind_an_index_that_is_not_recorded(tmp_path: Path) -> None:
    """Not so if `before` (compare/flow/graph.py) returns nothing but the value with the same memory."""

    def of(by_group: bool, total: bool) -> Made:
        return lambda: nn.Sequential(Grouped(by_group, total))

    assert compared(tmp_path / "same", of(True, False), of(False, False)).verdict == "same"
    wrong = compared(tmp_path / "wrong", of(True, False), of(False, True))
    assert "by Tensor.max.0.forward to Tensor.sum.0.forward" in said(wrong)
    assert "by Tensor.scatter_reduce.0.forward to Tensor.index_add.0.forward" in said(wrong)
    assert wrong.origin is not None
    assert (wrong.origin.source or "").endswith(" in weights")
    assert (wrong.origin.golden_source or "").endswith(" in weights")


class Scan(nn.Module):
    """A scan over time that is written in two ways; it may lack the step, or exchange what goes in and out."""

    def __init__(self, fused: bool, step: bool = True, exchanged: bool = False) -> None:
        super().__init__()
        self.select, self.fused, self.step, self.exchanged = nn.Linear(16, 1 + 2 * 6), fused, step, exchanged

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        step, b, c = self.select(x).split([1, 6, 6], dim=-1)
        if self.exchanged:
            b, c = c, b
        step = F.softplus(step)
        decay = torch.exp(-step[..., None].expand(2, 8, 16, 6))
        drive = (step * x if self.step else x)[..., None] * b[:, :, None]
        state, made = torch.zeros(2, 16, 6), []
        for t in range(8):
            if self.fused:
                state = torch.addcmul(drive[:, t], decay[:, t], state)
                made.append(state)
            else:
                state = decay[:, t] * state + drive[:, t]
                made.append((state * c[:, t, None]).sum(-1))
        if self.fused:
            return torch.einsum("btis,bts->bti", torch.stack(made, dim=1), c) + x
        return torch.stack(made, dim=1) + x


def test_a_call_that_is_missing_before_a_rewritten_part_is_named(tmp_path: Path) -> None:
    assert compared(tmp_path / "same", lambda: Scan(False), lambda: Scan(True)).verdict == "same"
    wrong = compared(tmp_path / "wrong", lambda: Scan(False), lambda: Scan(False, step=False))
    assert said(wrong) == "Tensor.__mul__.0.forward is missing in the target"
    beside = compared(tmp_path / "beside", lambda: Scan(False), lambda: Scan(True, step=False))
    assert said(beside).startswith("Tensor.__mul__.0.forward is missing in the target; after it, ")


def test_a_different_part_that_enters_a_rewritten_part_is_named(tmp_path: Path) -> None:
    """Not so if `_is_other_part` (compare/origin/find.py) is always false."""
    wrong = compared(tmp_path / "wrong", lambda: Scan(False), lambda: Scan(True, exchanged=True))
    assert said(wrong).startswith("Tensor.__mul__.1.forward received a different other (input.1)")
    assert wrong.origin is not None
    assert any("but not the same part" in line for line in wrong.origin.evidence)


class Attention(nn.Module):
    """Attention of the library, or by hand with its weights."""

    def __init__(self, by_hand: bool, width: int = 4) -> None:
        super().__init__()
        self.part, self.by_hand, self.width = nn.MultiheadAttention(16, 4, batch_first=True), by_hand, width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.by_hand:
            return x + self.part(x, x, x, need_weights=False)[0]
        q, k, v = F.linear(x, self.part.in_proj_weight, self.part.in_proj_bias).chunk(3, dim=-1)
        q, k, v = (one.unflatten(-1, (4, 4)).transpose(1, 2) for one in (q, k, v))
        scores = q @ k.transpose(-1, -2) * self.width**-0.5
        return x + self.part.out_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def test_a_part_that_a_library_computes_in_one_call(tmp_path: Path) -> None:
    assert compared(tmp_path / "same", lambda: Attention(False), lambda: Attention(True)).verdict == "same"
    wrong = compared(tmp_path / "wrong", lambda: Attention(False), lambda: Attention(True, 16))
    assert said(wrong).startswith(
        "Tensor.__add__.0.forward received a different other (input.1), which the target computes by "
        "Functional.linear.0.forward to Functional.linear.1.forward and the golden run by "
        "Functional.multi_head_attention_forward.0.forward"
    )


class Cross(nn.Module):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.up, self.fused = nn.Linear(16, 16), fused

    def forward(self, first: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(x, first, self.up(x)) if self.fused else first * self.up(x) + x


class Crossed(nn.Module):
    def __init__(self, fused: bool, first: bool = True) -> None:
        super().__init__()
        self.layers, self.first = nn.ModuleList([Cross(fused), Cross(fused)]), first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x
        for layer in self.layers:
            x = layer(first if self.first else x, x)
        return x


def test_a_module_that_is_given_something_different_is_not_blamed_for_its_code(tmp_path: Path) -> None:
    """Not so if `_given_outside` (compare/origin/find.py) returns nothing."""
    assert compared(tmp_path / "same", lambda: Crossed(False), lambda: Crossed(True)).verdict == "same"
    wrong = compared(tmp_path / "wrong", lambda: Crossed(False), lambda: Crossed(True, first=False))
    assert said(wrong).startswith("Module.layers.1.Cross.forward.0 received a different input.0")


class Projected(nn.Module):
    """Queries, keys and values of one projection, and the attention in one call or in several."""

    def __init__(self, fused: bool, heads_first: bool = False) -> None:
        super().__init__()
        self.qkv, self.out, self.fused, self.heads_first = nn.Linear(16, 48), nn.Linear(16, 16), fused, heads_first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.heads_first:
            q, k, v = self.qkv(x).reshape(2, 8, 4, 3, 4).permute(3, 0, 2, 1, 4).unbind(0)
        else:
            q, k, v = self.qkv(x).reshape(2, 8, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v) if self.fused else (q @ k.mT * 0.5).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


def test_what_enters_a_rewritten_part_is_compared(tmp_path: Path) -> None:
    """Not so if `_parts_alone` (compare/origin/ways.py) returns nothing."""
    assert compared(tmp_path / "same", lambda: Projected(False), lambda: Projected(True)).verdict == "same"
    wrong = compared(tmp_path / "wrong", lambda: Projected(False), lambda: Projected(True, heads_first=True))
    assert "the runs take different parts of the result of Functional.linear.0.forward for it" in said(wrong)


def policy(turned: bool, by_sum: bool) -> Callable[[nn.Module, torch.Tensor], torch.Tensor]:
    """The ratio is 1 and the advantages have the mean 0: the loss shows nothing of them, its gradients do."""

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        rewards = torch.randn(8, 2, generator=torch.Generator().manual_seed(4))
        rewards = rewards.flip(1).cumsum(1).flip(1) if turned else rewards.cumsum(1)
        advantages = (rewards - rewards.mean(0)) / rewards.std(0)
        score = model(x).square().mean(-1).mT
        gain = torch.exp(score - score.detach()) * advantages
        return 0.1 * (score.sum() / score.numel() if by_sum else score.mean()) - gain.mean()

    return loss


def test_a_difference_that_only_the_backward_shows_is_followed_into_the_forward(tmp_path: Path) -> None:
    def of(name: str, turned: bool, by_sum: bool) -> Path:
        return run(tmp_path / name, seeded(lambda: nn.Linear(16, 4)), policy(turned, by_sum), task="tensor")

    golden = of("golden", True, False)
    assert compare(of("same", True, True), golden).verdict == "same"
    assert said(compare(of("wrong", False, True), golden)).startswith("Tensor.flip.0.forward is missing in the target")


def item(path: Path, name: str, array: np.ndarray) -> dict[str, Any]:
    known = {"Max": array.max(), "Min": array.min(), "Mean": array.mean(), "Norm": np.linalg.norm(array)}
    return {**saved(path / "step0" / "rank", name, array), **{key: float(value) for key, value in known.items()}}


def recorded(path: Path, indices: bool, smoothing: float) -> Path:
    """A pooling that returns its indices in one run only, where they are used, and a loss with a plain argument."""
    numbers = np.random.default_rng(0)
    given = numbers.standard_normal((8, 16)).astype(np.float32)
    places = numbers.integers(0, 8, (8, 16))
    pooled, loss = np.tanh(given), np.array([1.0 + smoothing], np.float32)
    argument = {"type": "float", "value": smoothing}
    pool = call(item(path, "a", given), output=item(path, "b", pooled))
    pool["output"].append(item(path, "c", places) if indices else None)
    data = {
        "Functional.max_pool2d.0.forward": pool,
        "Torch.take.0.forward": call(
            item(path, "d", given), item(path, "e", places), output=item(path, "f", given.take(places))
        ),
        "Functional.cross_entropy.0.forward": call(item(path, "g", pooled), argument, output=item(path, "h", loss)),
    }
    if not indices:
        data.pop("Torch.take.0.forward")
    return write_dump(path, data, task="tensor")


def test_what_one_run_alone_returns_explains_no_error_if_what_follows_agrees(tmp_path: Path) -> None:
    """Not so if `_with_effect` (compare/origin/find.py) leaves out nothing."""
    golden = recorded(tmp_path / "golden", True, 0.1)
    wrong = compare(recorded(tmp_path / "wrong", False, 0.0), golden)
    assert wrong.origin is not None
    assert wrong.origin.name == "Functional.cross_entropy.0.forward", said(wrong)


def faint(path: Path, squashed: bool) -> Path:
    """A factor, a product, a softmax that is almost uniform, and a sum in which its difference is no longer seen."""
    numbers = np.random.default_rng(0)
    factor, given, rest = (numbers.standard_normal((8, 16)).astype(np.float32) for _ in range(3))
    used = np.tanh(factor) if squashed else factor
    product = given * used
    small = np.float32(1) + np.float32(1e-5) * product
    total = rest * np.float32(3e1) + small
    data = {
        "Torch.tanh.0.forward": call(item(path, "a", factor), output=item(path, "b", used)),
        "Torch.mul.0.forward": call(item(path, "c", given), item(path, "d", used), output=item(path, "e", product)),
        "Torch.softmax.0.forward": call(item(path, "f", product), output=item(path, "g", small)),
        "Torch.add.0.forward": call(item(path, "h", rest), item(path, "i", small), output=item(path, "j", total)),
    }
    if not squashed:
        data.pop("Torch.tanh.0.forward")
    return write_dump(path, data, task="tensor")


def test_a_missing_call_is_named_if_its_effect_fades_behind_a_difference(tmp_path: Path) -> None:
    """Not so if `_take_back` (compare/excuses.py) leaves calls of one run alone."""
    wrong = compare(faint(tmp_path / "wrong", False), faint(tmp_path / "golden", True))
    assert said(wrong) == "Torch.tanh.0.forward is missing in the target"
