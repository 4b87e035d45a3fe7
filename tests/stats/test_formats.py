"""The emulated formats are bit for bit those of torch and ml_dtypes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from msprobe.stats.formats import BFLOAT16, BY_NAME, E2M1, E4M3, E5M2, FLOAT16, TABLE, Element, cast, emulate
from msprobe.stats.stochastic import RANGE, draw

Array = np.ndarray[Any, Any]
MATRIX = np.random.default_rng(0).normal(size=(130, 200)).astype(np.float32)


def numbers() -> Array:
    """Random bits of float32: every exponent, both signs, infinities and NaN; and all ties of float16."""
    bits = np.random.default_rng(1).integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    return np.concatenate([bits, halves, np.array([500, 1e6, np.inf, 2.0**-10, -0.0], np.float32)])


@pytest.mark.parametrize("element", [FLOAT16, BFLOAT16, E4M3, E5M2], ids=lambda one: one.name)
def test_a_cast_is_that_of_torch(element: Element) -> None:
    values = numbers()
    wanted = torch.from_numpy(values).to(getattr(torch, element.name)).to(torch.float32).numpy()
    found = cast(values, element).astype(np.float32)
    known = ~np.isnan(wanted)
    assert np.array_equal(np.isnan(found), ~known)
    assert np.array_equal(found.view(np.uint32)[known], wanted.view(np.uint32)[known])


@pytest.mark.parametrize("element", [FLOAT16, BFLOAT16, E4M3, E5M2, E2M1], ids=lambda one: one.name)
def test_a_cast_within_range_is_that_of_ml_dtypes(element: Element) -> None:
    values = numbers()
    values = values[np.abs(values) <= element.largest]
    wanted = values.astype(getattr(ml_dtypes, element.name, np.float16)).astype(np.float32)
    assert np.array_equal(cast(values, element).astype(np.float32).view(np.uint32), wanted.view(np.uint32))


def test_what_is_too_large_saturates_or_becomes_infinity() -> None:
    assert cast(np.array([500.0, 1e6, np.inf, -np.inf]), E4M3).tolist() == [448.0, 448.0, 448.0, -448.0]
    assert cast(np.array([1e6, -np.inf]), E5M2).tolist() == [np.inf, -np.inf]
    assert cast(np.array([7.0, 5.0, -100.0]), E2M1).tolist() == [6.0, 4.0, -6.0]
    assert cast(np.array([2.0**-10]), E4M3).tolist() == [0.0]


@pytest.mark.parametrize(("mode", "scale"), [("", 1.0), ("-rceil", 2.0), ("-ceil", 2.0), ("-even", 2.0)])
def test_the_scale_of_an_mx_block_follows_its_mode(mode: str, scale: float) -> None:
    block = np.zeros((1, 32))
    block[0, :2] = 7.5, 0.5
    assert emulate(block, BY_NAME[f"mxfp4{mode}"])[0, :2].tolist() == [6.0 if scale == 1.0 else 8.0, 0.5 * (scale < 2)]


@pytest.mark.parametrize("form", TABLE, ids=lambda one: one.name)
@pytest.mark.parametrize("orientation", [MATRIX, MATRIX.T])
def test_every_format_keeps_most_of_normal_numbers_and_all_zeros(form: Any, orientation: Array) -> None:
    kept = emulate(orientation, form)
    error = np.square(kept - orientation).sum() / np.square(orientation).sum()
    assert -10 * np.log10(error) > {E2M1: 15, E5M2: 20, E4M3: 28}.get(form.element, 45)
    assert not emulate(np.zeros((3, 40)), form).any()


def test_an_outlier_hurts_only_its_block() -> None:
    spoiled = np.full((2, 64), 0.01)
    spoiled[0, 0] = 1000.0
    kept = emulate(spoiled, BY_NAME["mxfp4"])
    assert not kept[0, 1:32].any()
    assert kept[0, 32:].all()
    assert kept[1].all()
    assert not emulate(spoiled, BY_NAME["nvfp4-1x16"])[0, 1:16].any()
    assert not emulate(spoiled, BY_NAME["nvfp4"], weight=True)[1, :16].any()


@pytest.mark.parametrize("element", [FLOAT16, BFLOAT16, E4M3, E5M2, E2M1], ids=lambda one: one.name)
def test_stochastic_rounding_keeps_what_the_type_has_and_is_right_in_the_mean(element: Element) -> None:
    values = np.random.default_rng(2).normal(size=40) * min(element.largest / 8, 1000)
    kept = cast(values, element)
    assert np.array_equal(cast(kept, element, seed=7), kept)
    draws = np.stack([cast(values, element, seed) for seed in range(4000)])
    lower, upper = draws.min(0), draws.max(0)
    steps = upper - lower
    assert ((lower <= values) & (values <= upper)).all()
    assert np.array_equal(cast(np.stack([lower, upper]), element), np.stack([lower, upper]))
    assert (np.isin(draws, np.stack([lower, upper]))).all()
    assert (np.abs(draws.mean(0) - values) <= 5 * 0.5 * steps / np.sqrt(len(draws))).all()
    assert steps.max() > 0


def test_stochastic_rounding_repeats_itself_and_each_seed_draws_its_own() -> None:
    form = BY_NAME["nvfp4"]
    one = emulate(MATRIX, form, seed=1)
    assert np.array_equal(one, emulate(MATRIX, form, seed=1))
    assert not np.array_equal(one, emulate(MATRIX, form, seed=2))
    mean = np.mean([emulate(MATRIX, form, seed=seed) for seed in range(60)], axis=0)
    nearest = np.square(emulate(MATRIX, form) - MATRIX).sum()
    assert np.square(mean - MATRIX).sum() < 0.1 * nearest < np.square(one - MATRIX).sum()


def test_the_draws_of_stochastic_rounding_are_even_and_do_not_depend_on_each_other() -> None:
    draws = np.stack([draw(np.arange(4096), seed) for seed in range(64)]) / RANGE
    assert 0 <= draws.min() < 1e-4
    assert 1 - 1e-4 < draws.max() < 1
    assert np.histogram(draws, 16, (0, 1))[0] == pytest.approx([draws.size / 16] * 16, rel=0.03)
    assert abs(np.corrcoef(draws) - np.eye(64)).max() < 0.08
    assert abs(np.corrcoef(draws[:, :-1].ravel(), draws[:, 1:].ravel())[0, 1]) < 0.01
