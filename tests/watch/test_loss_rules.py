"""The rules about the loss, on curves of losses."""

from __future__ import annotations

import math

import numpy as np
import pytest

from msprobe.watch.alarms.loss_rules import LossRules


def look(losses):
    rules = LossRules(2.0, 1.5)
    return [found[:2] for step, loss in enumerate(losses) for found in rules.look(step, float(loss), True)]


def falling(seed, steps=400, noise=0.05, rate=0.01):
    random = np.random.default_rng(seed)
    return 3 * np.exp(-rate * np.arange(steps)) * np.exp(noise * random.standard_normal(steps)) + 0.05


@pytest.mark.parametrize("seed", range(20))
def test_a_falling_loss_is_healthy(seed):
    assert look(falling(seed)) == []
    assert look(falling(seed, noise=0.3)) == []


@pytest.mark.parametrize("at", [100, 150])
def test_a_falling_loss_that_jumps_back_and_stays_is_found_at_the_jump(at):
    losses = falling(0)
    losses[at:] = losses[at - 95] * np.exp(-0.01 * np.arange(len(losses) - at))
    assert look(losses)[0] == ("loss_spike", at)


def test_a_falling_loss_with_single_high_values_is_healthy():
    losses = falling(1)
    losses[100::30] *= 2.2
    assert look(losses) == []


def test_a_loss_that_rises_ever_faster_is_found_where_it_begins():
    losses = falling(2, rate=0.03)
    losses[200:] = losses[199] * 1.1 ** np.arange(200)
    rule, began = look(losses)[0]
    assert rule == "loss_drift"
    assert 200 <= began <= 212


def test_losses_near_zero_may_move_by_large_factors():
    random = np.random.default_rng(3)
    learnt = np.exp(-np.minimum(np.arange(600) / 20, 8) + 0.8 * random.standard_normal(600))
    assert look(learnt) == []
    assert look([math.nan]) == [("nan", 0)]


@pytest.mark.parametrize("seed", range(10))
def test_batches_of_two_may_have_a_loss_of_exactly_zero(seed):
    random = np.random.default_rng(seed)
    losses = np.exp(random.standard_normal(600)) * np.minimum(1, 60 / (1 + np.arange(600)))
    losses[100::17] = 0.0
    assert look(losses) == []
    losses[500] = 1e9
    assert look(losses) == [("loss_spike", 500)]
