"""Which calls overflow, whether they produced it, and what counts towards overflow_nums."""

from __future__ import annotations

import pytest

from msprobe.stats.finiteness import FINITE, INFINITE, NAN
from msprobe.tasks.overflow_check.policy import PRODUCER, PROPAGATOR, Finding, OverflowPolicy
from msprobe.tasks.overflow_check.run import OverflowRun


@pytest.fixture
def policy():
    return OverflowPolicy(OverflowRun(-1))


def found(name, state=NAN, role=PRODUCER, parent=None, backward=False):
    return Finding(name, parent, None, state, role, backward)


@pytest.mark.parametrize(
    ("state", "given", "inside", "role"),
    [
        (FINITE, NAN, False, None),
        (NAN, FINITE, False, PRODUCER),
        (INFINITE, FINITE, False, PRODUCER),
        (NAN, NAN, False, PROPAGATOR),
        (INFINITE, INFINITE, False, None),  # a mask of the user
        (NAN, INFINITE, False, PRODUCER),  # made of a mask of the user
        (NAN, FINITE, True, PROPAGATOR),  # a call inside it did it
    ],
)
def test_the_role_of_a_call(policy, state, given, inside, role):
    assert policy.role(state, given, inside) == role


def test_an_infinity_is_an_overflow_once_a_call_has_produced_one(policy):
    assert policy.role(INFINITE, INFINITE, False) is None
    policy.add(found("Torch.exp.0.forward", INFINITE))
    assert policy.role(INFINITE, INFINITE, False) == PROPAGATOR
    assert policy.role(NAN, INFINITE, False) == PROPAGATOR


def test_a_nan_of_the_forward_is_not_produced_in_its_backward(policy):
    policy.add(found("Torch.log.0.forward", parent="Module.net.Net.forward.0"))
    assert policy.backward_role("Torch.log.0.backward", NAN, FINITE) == PROPAGATOR
    assert policy.backward_role("Torch.exp.0.backward", NAN, FINITE) == PRODUCER


def test_a_parameter_gets_its_nan_from_the_gradients_before_it(policy):
    assert policy.parameter_role() == PRODUCER
    policy.met_bad_gradient = True
    assert policy.parameter_role() == PROPAGATOR


def test_further_parameters_of_a_module_are_one_overflow(policy):
    name = "Module.fc.Linear.parameters_grad"
    assert policy.add(found(name, backward=True))
    assert not policy.add(found(name, backward=True))
    assert (policy.run.counted, policy.run.producers) == (1, 1)


def test_a_scaled_loss_and_what_follows_from_it_do_not_count(policy):
    with policy.scaling_loss():
        assert not policy.add(found("Torch.mul.0.forward", INFINITE))
    assert not policy.run.made_infinity
    assert not policy.add(found("Torch.mul.0.backward", INFINITE, backward=True))
    assert not policy.add(found("Torch.div.0.forward", INFINITE, PROPAGATOR))  # unscaling
    assert policy.add(found("Torch.log.0.forward"))  # not made of the loss
    assert (policy.run.scaled, policy.run.counted) == (3, 1)


def test_without_a_scaler_gradients_count(policy):
    assert policy.add(found("Torch.mul.0.backward", INFINITE, backward=True))
    assert (policy.run.scaled, policy.run.counted) == (0, 1)
