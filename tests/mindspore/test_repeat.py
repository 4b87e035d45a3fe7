"""Repeating a call alone on MindSpore leaves no trace, and counts its results."""

from __future__ import annotations

import random

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from msprobe.mindspore.directed.generators import all_states, operator_counters
from msprobe.mindspore.directed.repeat import RandomState, repeat_backward, repeat_forward


def test_every_source_of_random_numbers_is_restored() -> None:
    ms.set_seed(3)
    ops.dropout(Tensor(np.ones(4, "f4")), 0.5)
    before, counters = all_states(), dict(operator_counters())
    state = RandomState()
    ops.dropout(Tensor(np.ones(4, "f4")), 0.5)
    np.random.rand(), random.random()
    assert all_states() != before
    state.put_back()
    assert all_states() == before
    assert dict(operator_counters()) == counters


def test_a_call_is_counted_and_its_inputs_stay() -> None:
    given = Tensor(np.ones((2, 3), "f4"))
    values = ((given,), {})

    def racy(x: Tensor) -> Tensor:
        return Tensor(x.asnumpy() * np.float32(np.random.default_rng().random()))

    before = all_states()
    assert repeat_forward(ops.tanh, values, RandomState(), 4) == {"times": 4, "results": 1}
    assert repeat_forward(racy, values, RandomState(), 4)["results"] == 4
    assert all_states() == before
    assert (given.asnumpy() == 1).all()


class _RacyBackward(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        return x * 2

    def bprop(self, x: Tensor, out: Tensor, gradient: Tensor) -> tuple[Tensor]:
        return (gradient * float(np.random.default_rng().random()),)


def test_a_backward_is_repeated_too() -> None:
    values = ((Tensor(np.ones((2, 3), "f4")),), {})
    assert repeat_backward(ops.tanh, values, RandomState(), 4)["results"] == 1
    assert repeat_backward(_RacyBackward(), values, RandomState(), 4)["results"] == 4
