"""Repeating a call alone leaves no trace: random numbers, inputs and buffers are as they were."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch.directed.repeat import keep_results, random_states, repeat


def _next_numbers() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def _draw(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.5) + random.random() + float(np.random.rand())


def test_random_numbers_continue_as_if_nothing_had_been_repeated() -> None:
    for backward in (False, True):
        torch.manual_seed(1), np.random.seed(1), random.seed(1)
        states = random_states()
        expected = [_draw(torch.ones(8)), _next_numbers()]
        torch.manual_seed(1), np.random.seed(1), random.seed(1)
        drawn = _draw(torch.ones(8))
        found = repeat(_draw, ((torch.ones(8, requires_grad=True),), {}), states, 5, backward)
        assert found == {"times": 5, "results": 1, "threads": torch.get_num_threads()}
        assert torch.equal(drawn, expected[0])
        assert _next_numbers() == expected[1]


def test_an_in_place_call_gets_fresh_inputs_each_time() -> None:
    given = torch.zeros(4)
    found = repeat(lambda x: x.add_(1), ((given,), {}), random_states(), 5, False)
    assert found["results"] == 1
    assert torch.equal(given, torch.zeros(4))


def test_results_in_float64_change_neither_parameters_nor_buffers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.get_rng_state()
    assert keep_results(
        module, ((torch.randn(8, 4, generator=torch.Generator()),), {}), random_states(), str(tmp_path)
    ) == ["float32"]
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    own, wide = (np.load(tmp_path / f"{title}0.npy") for title in ("own", "wide"))
    assert 0 < np.abs(own - wide).max() < 1e-5
