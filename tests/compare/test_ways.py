"""The calls by which each run computes a value that differs are part of the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from flow_runs import run, said, seeded, small, step_only
from torch import nn

from msprobe.compare import Comparison, compare


class Attention(nn.Module):
    """Attention by torch, or by hand with a mask."""

    def __init__(self, by_hand: bool, diagonal: int = 0) -> None:
        super().__init__()
        self.by_hand, self.diagonal, self.inner, self.last = by_hand, diagonal, nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x)
        if not self.by_hand:
            return self.last(F.scaled_dot_product_attention(x, x, x, is_causal=True))
        mask = torch.ones(8, 8, dtype=torch.bool).tril(self.diagonal)
        scores = (x @ x.transpose(-1, -2) * 0.25).masked_fill(~mask, float("-inf"))
        return self.last(scores.softmax(-1) @ x)


def compared(tmp_path: Path, target: Any, golden: Any) -> Comparison:
    return compare(run(tmp_path / "target", seeded(target)), run(tmp_path / "golden", seeded(golden)))


def test_several_calls_in_place_of_one_are_listed_with_their_arguments(tmp_path: Path) -> None:
    assert compared(tmp_path / "same", lambda: Attention(True), lambda: Attention(False)).verdict == "same"
    result = compared(tmp_path / "wrong", lambda: Attention(True, 1), lambda: Attention(False))
    assert result.origin is not None
    (ours,) = (line for line in result.origin.evidence if line.startswith("the target computes it by"))
    assert "Tensor.tril.0.forward (1=1)" in ours
    assert "Tensor.masked_fill.0.forward (value=-inf)" in ours
    golden = "the golden run computes it by Functional.scaled_dot_product_attention.0.forward (is_causal=True)"
    assert golden in result.origin.evidence


class Masked(nn.Module):
    def __init__(self, low: float) -> None:
        super().__init__()
        self.low, self.inner, self.last = low, nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x)
        scores = x @ x.transpose(-1, -2) + torch.full((8, 8), self.low).triu(1)
        return self.last(scores.softmax(-1) @ x)


def test_a_mask_with_a_smaller_number_differs_where_it_is_made(tmp_path: Path) -> None:
    """The size of a tensor with one huge number is not known: a difference is not small beside it."""
    result = compared(tmp_path, lambda: Masked(-4.0), lambda: Masked(-1e9))
    assert result.origin is not None
    assert result.origin.name == "Tensor.triu.0.forward"


class Turned(nn.Module):
    """A rotation in pieces or as a whole; heads are repeated in either order."""

    def __init__(self, pieces: bool, tiled: bool) -> None:
        super().__init__()
        self.pieces, self.tiled, self.first, self.last = pieces, tiled, nn.Linear(16, 16), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        a, b = x.chunk(2, -1)
        angle = torch.arange(8.0) / 7
        cos, sin = angle.cos(), angle.sin()
        if self.pieces:
            x = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
        else:
            x = x * torch.cat((cos, cos)) + torch.cat((-b, a), -1) * torch.cat((sin, sin))
        x = x.repeat(1, 1, 2) if self.tiled else x.repeat_interleave(2, -1)
        return self.last(x)


def test_a_call_is_not_matched_with_one_that_is_given_less(tmp_path: Path) -> None:
    result = compared(tmp_path, lambda: Turned(True, True), lambda: Turned(False, False))
    assert said(result) == "Tensor.repeat_interleave.0.forward is replaced by Tensor.repeat.0.forward in the target"


def clip_each(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad.mul_(torch.clamp(0.01 / parameter.grad.norm(), max=1.0))
    optimizer.step()


def clip_all(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()


def test_what_is_done_to_gradients_instead_of_clipping_is_listed(tmp_path: Path) -> None:
    sgd = {"make": lambda parameters: torch.optim.SGD(parameters, lr=0.1)}
    golden = run(tmp_path / "golden", seeded(small), update=clip_all, **sgd)
    result = compare(run(tmp_path / "target", seeded(small), update=clip_each, **sgd), golden)
    assert result.origin is not None
    between = "between the backward and the optimizer, only the target calls "
    (calls,) = (line.removeprefix(between) for line in result.origin.evidence if line.startswith(between))
    assert "Tensor.mul_" in calls
    none = compare(run(tmp_path / "none", seeded(small), update=step_only, **sgd), golden)
    assert none.origin is not None
    assert any("the gradients that the optimizer uses are" in line for line in none.origin.evidence)


class Heads(nn.Module):
    """Attention of torch, or its own calls with the parameters of the same module."""

    def __init__(self, by_hand: bool, inverted: bool = False) -> None:
        super().__init__()
        self.by_hand, self.inverted = by_hand, inverted
        self.inner, self.last = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.zeros(x.shape[:2], dtype=torch.bool)
        hidden[:, -2:] = True
        if not self.by_hand:
            return self.last(self.inner(x, x, x, key_padding_mask=hidden, need_weights=False)[0])
        made = F.linear(x, self.inner.in_proj_weight, self.inner.in_proj_bias).chunk(3, -1)
        q, k, v = (one.unflatten(-1, (2, 8)).transpose(1, 2) for one in made)
        mask = (~hidden if self.inverted else hidden)[:, None, None, :]
        scores = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(mask, float("-inf"))
        return self.last(self.inner.out_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2)))


def test_gradients_of_a_module_that_only_one_run_calls_are_matched_by_name(tmp_path: Path) -> None:
    assert compared(tmp_path / "same", lambda: Heads(True), lambda: Heads(False)).verdict == "same"
    result = compared(tmp_path / "wrong", lambda: Heads(True, True), lambda: Heads(False))
    assert result.verdict == "differs"
