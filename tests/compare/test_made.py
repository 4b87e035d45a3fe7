"""Values that no recorded call produces: the answer says where both runs take them from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flow_runs import run, seeded
from torch import nn

from msprobe.compare import Comparison, compare

Way = Callable[["Taker", torch.Tensor], torch.Tensor]


class Taker(nn.Module):
    """A model whose product takes a value in one of several ways."""

    def __init__(self, way: Way, scale: float = 1.0) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(16, 16), nn.Linear(16, 4)
        self.way = way
        self.register_buffer("table", torch.arange(64.0).reshape(8, 8).cos())
        self.scales = torch.full((8, 1), scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.body(x))
        return self.head(y * self.way(self, y))


def pair(tmp_path: Path, target: Way, golden: Way) -> Comparison:
    dumps = []
    for name, way in (("target", target), ("golden", golden)):
        torch.manual_seed(0)
        dumps.append(run(tmp_path / name, Taker(way)))
    return compare(*dumps)


def told(found: Comparison) -> str:
    assert found.origin is not None
    return found.origin.sentence.partition("received a different other (input.1)")[2]


def part(found: Comparison) -> tuple[str, str]:
    """The source text of both runs that the evidence shows."""
    assert found.origin is not None
    lines = [line for line in found.origin.evidence if line.id == "made.at_side"]
    assert len(lines) == 2
    return lines[0], lines[1]


PLANTED: dict[str, tuple[Way, Way, str]] = {
    "index": (
        lambda m, y: y[:, 1:2],
        lambda m, y: y[:, :1],
        ": it is Torch.tanh.0.forward[:, 1:2], not Torch.tanh.0.forward[:, :1]",
    ),
    "creation": (
        lambda m, y: torch.arange(1, 17) + 0,
        lambda m, y: torch.arange(0, 16) + 0,
        "",
    ),
    "table": (
        lambda m, y: m.table[:, 1].unsqueeze(-1),
        lambda m, y: m.table[:, 0].unsqueeze(-1),
        ": it is table[:, 1].unsqueeze(-1), not table[:, 0].unsqueeze(-1)",
    ),
    "held or made": (
        lambda m, y: torch.ones(8, 1),
        lambda m, y: m.table[:, 0].unsqueeze(-1),
        ": it is torch.ones(8, 1), not table[:, 0].unsqueeze(-1)",
    ),
    "half": (
        lambda m, y: y.chunk(2, -1)[1].repeat_interleave(2, -1),
        lambda m, y: y.chunk(2, -1)[0].repeat_interleave(2, -1),
        "",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_first_call_that_differs_is_said_with_its_line(tmp_path: Path, name: str) -> None:
    target, golden, said = PLANTED[name]
    found = pair(tmp_path, target, golden)
    assert found.origin is not None
    assert found.origin.next == "compare these lines of the two runs"
    if said:
        assert told(found) == said
    else:
        assert ": it is " in found.origin.sentence
    assert part(found)[0] != part(found)[1]
    assert str(found.origin.source).endswith(" in <lambda>")
    assert found.origin.source != found.origin.golden_source


def test_a_reshape_or_a_permutation_in_a_different_form_is_not_said(tmp_path: Path) -> None:
    def target(model: Taker, y: torch.Tensor) -> torch.Tensor:
        return y.reshape(2, 8, 4, 4).flatten(2)[:, 1:2].unsqueeze(0).squeeze(0)

    def golden(model: Taker, y: torch.Tensor) -> torch.Tensor:
        return y.view(2, 8, 16)[:, :1]

    found = pair(tmp_path, target, golden)
    assert "[:, 1:2]" in told(found)
    lines = part(found)
    assert "flatten(2)[:, 1:2]" in lines[0]
    assert "[:, :1]" in lines[1]


def test_of_a_long_way_only_the_call_that_differs_is_said(tmp_path: Path) -> None:
    def way(first: int) -> Way:
        def taken(model: Taker, y: torch.Tensor) -> torch.Tensor:
            part = y.view(2, 8, 4, 4).transpose(2, 3)[:, first : first + 1]
            return part.reshape(1, 2, 1, 4, 4).squeeze(0).transpose(2, 3).reshape(2, 1, 16)

        return taken

    found = pair(tmp_path, way(1), way(0))
    assert told(found) == ": it is …[:, 1:2]…, not …[:, 0:1]…"


def test_a_view_that_changes_the_order_is_the_line(tmp_path: Path) -> None:
    def target(model: Taker, y: torch.Tensor) -> torch.Tensor:
        return y.view(2, 4, 2, 16).transpose(1, 2).reshape(2, 8, 16)

    found = pair(tmp_path, target, lambda m, y: y.view(2, 8, 16))
    assert found.origin is not None
    assert "the same numbers in a different order" in found.origin.sentence
    assert ".transpose(1, 2)" in found.origin.sentence


def test_a_tensor_of_the_model_with_different_values_is_named_with_the_line_that_makes_it(tmp_path: Path) -> None:
    way: Way = lambda m, y: m.scales[:, :1]  # noqa: E731
    dumps = [run(tmp_path / str(one), seeded(lambda one=one: Taker(way, one))) for one in (1.0, 2.0)]
    found = compare(*dumps)
    assert found.origin is not None
    assert found.origin.kind == "buffer"
    assert told(found) == ": it is taken from attribute scales of the model, which differs"
    assert str(found.origin.made).endswith(": self.scales = torch.full((8, 1), scale)")


def test_different_random_numbers_are_said_with_their_call(tmp_path: Path) -> None:
    def shifted(model: Taker, y: torch.Tensor) -> torch.Tensor:
        torch.rand(3)
        return torch.randn(8, 16)

    found = pair(tmp_path, shifted, lambda m, y: torch.randn(8, 16))
    assert found.origin is not None
    assert found.origin.kind == "random"
    assert told(found) == ": torch.randn(8, 16) draws different random numbers"


def test_data_is_said_to_be_data(tmp_path: Path) -> None:
    outside = {True: torch.ones(8, 1), False: torch.full((8, 1), 2.0)}
    dumps = [
        run(tmp_path / str(one), seeded(lambda one=one: Taker(lambda m, y: outside[one]))) for one in (True, False)
    ]
    found = compare(*dumps)
    assert told(found) == ", which no call of the step made: it is data, or a tensor from before the step"


def test_the_same_call_with_values_that_nobody_sees_is_said(tmp_path: Path) -> None:
    rows = {True: [1.0] * 16, False: [2.0] * 16}
    dumps = [
        run(tmp_path / str(one), seeded(lambda one=one: Taker(lambda m, y: y[:, torch.tensor([int(rows[one][0])])])))
        for one in (True, False)
    ]
    found = compare(*dumps)
    assert found.origin is not None
    assert "[:, tensor]" in found.origin.sentence or "received a different" in found.origin.sentence


def test_a_tensor_that_was_filled_in_place_is_the_result_of_the_call_that_filled_it(tmp_path: Path) -> None:
    def filled(part: slice) -> Way:
        def way(model: Taker, y: torch.Tensor) -> torch.Tensor:
            made = torch.zeros(8, 8)
            made[1:] = model.table[1:]
            return made[:, part]

        return way

    found = pair(tmp_path, filled(slice(0, 1)), filled(slice(1, 2)))
    assert told(found) == ": it is Tensor.__setitem__.0.forward[:, 0:1], not Tensor.__setitem__.0.forward[:, 1:2]"


def test_runs_that_agree_say_nothing(tmp_path: Path) -> None:
    for place, (target, _, _) in enumerate(PLANTED.values()):
        assert pair(tmp_path / str(place), target, target).verdict == "same"
