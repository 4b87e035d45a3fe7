"""Fake quantisation: the numbers of the formats, in the forward and in both products of the backward."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from msprobe.pytorch.emulation.fake_quantise import fake_quantise
from msprobe.pytorch.emulation.linear import emulating
from msprobe.stats.formats import BY_NAME, TABLE, Format, emulate


@pytest.mark.parametrize("form", TABLE, ids=lambda one: one.name)
def test_torch_and_numpy_emulate_the_same_numbers(form: Format) -> None:
    random = np.random.default_rng(0)
    for matrix in (
        random.normal(size=(33, 70)),
        random.normal(size=(20, 40)) * np.exp(4 * random.normal(size=(20, 40))),
        np.zeros((3, 5)),
        random.normal(size=(17, 17)) * 1e-12,
    ):
        narrow = matrix.astype(np.float32)
        for weight in (False, True):
            for side in (narrow, np.ascontiguousarray(narrow.T)):
                wanted = emulate(side, form, weight).astype(np.float32)
                found = fake_quantise(torch.from_numpy(side), form, weight).numpy()
                assert np.array_equal(found, wanted)
                wanted = emulate(side, form, weight, seed=3).astype(np.float32)
                found = fake_quantise(torch.from_numpy(side), form, weight, seed=3).numpy()
                assert np.array_equal(found, wanted)


def test_every_product_quantises_along_the_axis_over_which_it_adds() -> None:
    form = BY_NAME["nvfp4"]
    torch.manual_seed(0)
    layer = torch.nn.Linear(48, 32)
    x = torch.randn(4, 10, 48, requires_grad=True)
    with emulating(form):
        y = layer(x)
        gradient = torch.randn_like(y)
        y.backward(gradient)
    flat, back, weight = (one.detach().reshape(-1, one.shape[-1]).numpy() for one in (x, gradient, layer.weight))

    def kept(matrix: np.ndarray, is_weight: bool = False) -> torch.Tensor:
        return torch.from_numpy(emulate(matrix, form, is_weight).astype(np.float32))

    forward = kept(flat) @ kept(weight, True).T + layer.bias
    of_x = kept(back) @ kept(weight.T, True).T
    of_weight = kept(back.T) @ kept(flat.T).T
    assert torch.equal(y.detach().reshape(-1, 32), forward.detach())
    assert torch.equal(x.grad.reshape(-1, 48), of_x)
    assert torch.equal(layer.weight.grad, of_weight)
    assert layer.bias.grad == pytest.approx(gradient.reshape(-1, 32).sum(0))


def test_only_gradients_are_rounded_stochastically_and_a_run_repeats_itself() -> None:
    form = BY_NAME["mxfp4"]
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(48, 32), torch.randn(16, 48)
    state = torch.get_rng_state()

    def run(stochastic: bool) -> list[torch.Tensor]:
        """The output, and the gradient of the weight of two backward passes."""
        found = []
        with emulating(form, stochastic=stochastic):
            for _ in range(2):
                layer.zero_grad()
                y = layer(x)
                y.square().sum().backward()
                found += [y.detach(), layer.weight.grad.clone()]
        return found

    nearest, one, again = run(False), run(True), run(True)
    assert all(map(torch.equal, one, again))
    assert torch.equal(one[0], nearest[0])
    assert not torch.equal(one[1], nearest[1])
    assert not torch.equal(one[1], one[3])
    assert torch.equal(torch.get_rng_state(), state)


def test_only_the_chosen_modules_are_emulated_and_only_inside_the_block() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Sequential(torch.nn.Linear(32, 32)))
    x = torch.randn(8, 32)
    plain = model(x)
    with emulating(BY_NAME["mxfp4"], keep=["1.*"]) as emulation:
        half = model(x)
    with emulating(BY_NAME["mxfp4"], keep=["*"]):
        assert torch.equal(model(x), plain)
    assert not torch.equal(half, plain)
    assert torch.equal(model(x), plain)
    assert (emulation.emulated, emulation.kept) == ({"0"}, {"1.0"})


def test_the_dtype_is_that_of_the_module_or_of_autocast() -> None:
    layer = torch.nn.Linear(32, 16)
    with emulating(BY_NAME["mxfp8"]):
        assert layer.bfloat16()(torch.randn(4, 32).bfloat16()).dtype == torch.bfloat16
        with torch.autocast("cpu", torch.bfloat16):
            assert layer.float()(torch.randn(4, 32)).dtype == torch.bfloat16
