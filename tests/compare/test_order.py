"""The order of elements in statistics mode: what is in a different order is named, and harmless orders are "same"."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from flow_runs import run, said, seeded, small
from torch import nn

from msprobe.compare import compare


class Attention(nn.Module):
    """Two heads of eight, with one weight for queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48, bias=False)
        self.out = nn.Linear(16, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = (q @ k.transpose(-1, -2) / 8**0.5).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


def permuted_rows(model: nn.Module) -> None:
    weight = model[0].weight  # type: ignore[index]
    weight.copy_(weight[torch.randperm(32, generator=torch.Generator().manual_seed(1))])


def rows_and_bias(model: nn.Module) -> None:
    permuted_rows(model)
    bias = model[0].bias  # type: ignore[index]
    bias.copy_(bias[torch.randperm(32, generator=torch.Generator().manual_seed(1))])


def transposed(model: Attention) -> None:
    model.out.weight.copy_(model.out.weight.t().clone())


def keys_first(model: Attention) -> None:
    q, k, v = model.qkv.weight.clone().chunk(3)
    model.qkv.weight.copy_(torch.cat([k, q, v]))


def heads_of_the_queries(model: Attention) -> None:
    weight = model.qkv.weight.clone()
    model.qkv.weight[:16] = torch.cat([weight[8:16], weight[:8]])


FAULTS = [
    (small, permuted_rows, "Module.0.Linear"),
    (small, rows_and_bias, "Module.0.Linear"),
    (Attention, transposed, "Module.out.Linear"),
    (Attention, keys_first, "Module.qkv.Linear"),
    (Attention, heads_of_the_queries, "Module.qkv.Linear"),
]


@pytest.mark.parametrize(("make", "change", "module"), FAULTS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_weight_in_a_different_order_is_named(
    tmp_path: Path, make: Callable[[], nn.Module], change: Callable[[nn.Module], None], module: str
) -> None:
    golden = run(tmp_path / "golden", seeded(make))
    model = seeded(make)
    with torch.no_grad():
        change(model)
    result = compare(run(tmp_path / "target", model), golden)
    assert said(result) == f"weight of {module} has the same numbers in a different order before anything ran"
    assert result.origin is not None
    assert not any(line.startswith("0 of ") for line in result.origin.evidence)


class Split(nn.Module):
    """Two heads; a wrong reshape mixes positions and heads."""

    def __init__(self, is_wrong: bool) -> None:
        super().__init__()
        self.q = nn.Linear(16, 16)
        self.k = nn.Linear(16, 16)
        self.is_wrong = is_wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        queries, keys = self.q(x), self.k(x)
        q, k = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in (queries, keys))
        if self.is_wrong:
            q = queries.reshape(q.shape)
        return q @ k.transpose(-1, -2)


def test_a_wrong_reshape_between_two_calls_is_named_where_its_result_is_taken(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", seeded(lambda: Split(False)))
    result = compare(run(tmp_path / "target", seeded(lambda: Split(True))), golden)
    assert said(result) == (
        "Tensor.__matmul__.0.forward received the same numbers in a different order as its self (input.0): it is "
        "Functional.linear.0.forward.reshape([2, 2, 8, 8]), not "
        "Functional.linear.0.forward.unflatten(-1, (2, 8)).transpose(1, 2)"
    )


LABELS = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0], [3, 3, 1, 0, 2, 1, 1, 2]])


def classes(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), LABELS.flatten())


def shuffled(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x.flip(0)).flatten(0, 1), LABELS.flatten())


def shuffled_with_labels(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x.flip(0)).flatten(0, 1), LABELS.flip(0).flatten())


def test_rows_of_a_batch_without_their_labels_are_named(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", seeded(small), classes)
    assert compare(run(tmp_path / "same", seeded(small), shuffled_with_labels), golden).verdict == "same"
    wrong = compare(run(tmp_path / "wrong", seeded(small), shuffled), golden)
    assert wrong.origin is not None
    assert wrong.origin.name == "Tensor.flip.0.forward", said(wrong)


@pytest.mark.parametrize("moved", [(False, True), (True, True)])
def test_a_batch_that_is_in_a_different_order_before_the_step(tmp_path: Path, moved: tuple[bool, bool]) -> None:
    order = torch.tensor([1, 0])

    def loss(moves: bool, moves_labels: bool) -> Callable[[nn.Module, torch.Tensor], torch.Tensor]:
        labels = LABELS[order].clone() if moves_labels else LABELS

        def of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
            with torch.utils._python_dispatch._disable_current_modes():
                given = torch.from_numpy(x.numpy()[::-1].copy()) if moves else x
            return F.cross_entropy(model(given).flatten(0, 1), labels.flatten())

        return of

    golden = run(tmp_path / "golden", seeded(small), loss(False, False))
    result = compare(run(tmp_path / "target", seeded(small), loss(True, moved[0] and moved[1])), golden)
    if moved == (True, True):
        assert result.verdict == "same"
    else:
        assert said(result) == (
            "Functional.linear.0.forward in Module.0.Linear received the same numbers in a different order as its "
            "input (input.0): it is a tensor that no call of the step made, not torch.randn(2, 8, 16)"
        )


class Product(nn.Module):
    def __init__(self, is_turned: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 16))
        self.is_turned = is_turned

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_turned:
            return (self.weight @ x.transpose(-1, -2)).transpose(-1, -2)
        return x @ self.weight.t()


class Experts(nn.Module):
    """The sum of what two experts give; a permutation of their order changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bsi,eio->bseo", x, self.weight).sum(2)


def test_harmless_orders_are_the_same(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", seeded(lambda: Product(False)))
    assert compare(run(tmp_path / "turned", seeded(lambda: Product(True))), golden).verdict == "same"
    golden = run(tmp_path / "experts", seeded(Experts))
    model = seeded(Experts)
    with torch.no_grad():
        model.weight.copy_(model.weight.flip(0))
    assert compare(run(tmp_path / "moved", model), golden).verdict == "same"


def test_inputs_with_the_same_order_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    golden = run(tmp_path / "golden", seeded(small))
    exact = F.gelu
    model = seeded(small)
    model[1].forward = lambda x: exact(x, approximate="tanh")  # type: ignore[index]
    result = compare(run(tmp_path / "target", model), golden)
    assert result.origin is not None
    assert not any("statistics do not see" in one for one in result.origin.evidence)
