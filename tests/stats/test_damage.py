"""The damage of a format is what its emulation does, and planted weaknesses have their number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.stats import BACKEND
from msprobe.stats.damage import (
    COLUMNS,
    ROWS,
    measure_damage,
    orientations,
    usual_damage,
    weight_matrix,
    worst_of,
)
from msprobe.stats.formats import BY_NAME, E8M0, POWER, TABLE, Format, emulate

Array = np.ndarray[Any, Any]
NORMAL = np.random.default_rng(0).normal(size=(96, 128)).astype(np.float32)


@pytest.mark.parametrize("form", TABLE, ids=lambda one: one.name)
@pytest.mark.parametrize("weight", [False, True])
def test_the_error_is_that_of_the_emulated_format(form: Format, weight: bool) -> None:
    for found in measure_damage(NORMAL, form, weight):
        matrix = NORMAL.T if found.orientation == COLUMNS else NORMAL
        wide = matrix.astype(np.float64)
        error = float(np.square(emulate(matrix, form, weight) - wide).sum())
        assert found.snr == pytest.approx(10 * math.log10(float(np.square(wide).sum()) / error))
        assert found.worst <= found.snr + 1e-9
        assert found.bulk == pytest.approx(found.snr)


def test_blocks_that_are_not_square_are_measured_in_both_orientations() -> None:
    assert orientations(BY_NAME["mxfp8"], weight=False) == (ROWS, COLUMNS)
    assert orientations(BY_NAME["nvfp4"], weight=True) == (ROWS,)
    assert orientations(BY_NAME["nvfp4"], weight=False) == (ROWS, COLUMNS)
    assert orientations(BY_NAME["fp8-e4m3"], weight=False) == (ROWS,)
    assert orientations(BY_NAME["bf16"], weight=False) == (ROWS,)


def test_an_outlier_column_hurts_along_rows_and_not_along_columns() -> None:
    spoiled = NORMAL.copy()
    spoiled[:, 5] *= 1000
    along_rows, along_columns = measure_damage(spoiled, BY_NAME["nvfp4-1x16"])
    assert along_rows.worst < 23
    assert along_rows.outlier > 500
    assert along_columns.outlier < 20
    assert along_rows.underflow > 0.05 + along_columns.underflow
    assert along_rows.kurtosis > 50
    assert along_rows.snr > along_columns.snr  # nearly all energy is in the outliers, which are kept
    assert along_rows.bulk < along_columns.bulk - 5
    assert worst_of([along_rows, along_columns]) is along_rows


def test_what_becomes_zero_is_a_share_of_what_was_not() -> None:
    tensor = np.array([[1.0, 2.0**-12, 0.0, 0.0]])
    found = measure_damage(tensor, BY_NAME["fp8-e4m3"])[0]
    assert (found.underflow, found.saturated, found.not_finite) == (0.0, 0.0, 0)
    tensor = np.array([[448.0, 2.0**-12, 0.0, 0.0]])
    assert measure_damage(tensor, BY_NAME["fp8-e4m3"])[0].underflow == 0.5


def test_a_scale_that_is_too_small_saturates() -> None:
    block = np.full((1, 32), 1.0)
    block[0, 0] = 7.5
    found = measure_damage(block, BY_NAME["mxfp4"])[0]
    assert found.saturated == 1 / 32
    assert measure_damage(block, BY_NAME["mxfp4-rceil"])[0].saturated == 0


def test_a_value_that_becomes_infinite_leaves_no_signal() -> None:
    found = measure_damage(np.array([1.0, 1e6]), BY_NAME["fp16"])[0]
    assert found.snr == -math.inf
    assert found.saturated == 0.5


def test_denormals_and_the_range_of_scales_are_counted() -> None:
    assert measure_damage(np.array([2.0**-20, 1.0]), BY_NAME["fp16"])[0].denormal == 0.5
    blocks = np.ones((1, 64))
    blocks[0, 32:] = 2.0**-9
    assert measure_damage(blocks, BY_NAME["mxfp8"])[0].scale_range == 9
    blocks[0, 32:] = 0.0
    assert measure_damage(blocks, BY_NAME["mxfp8"])[0].scale_range == 0


def test_the_worst_block_is_named() -> None:
    tensor = np.ones((3, 64))
    tensor[2, 32:] = np.linspace(0.001, 1.0, 32)
    found = measure_damage(tensor, BY_NAME["mxfp4"])[0]
    assert found.worst_block == (2, 1)
    assert found.worst < 30


@pytest.mark.parametrize("form", TABLE, ids=lambda one: one.name)
def test_nothing_is_lost_of_zeros_and_nothing_raises_for_odd_tensors(form: Format) -> None:
    assert measure_damage(np.zeros((3, 5)), form)[0].snr == math.inf
    assert measure_damage(np.zeros((0, 5)), form) == []
    scalar = measure_damage(np.array(1.5), form)[0]
    assert scalar.elements == 1
    odd = measure_damage(np.array([[np.nan, np.inf, 1.0], [1e38, -1e-45, 0.0]]), form)[0]
    assert odd.not_finite == 2
    assert not math.isnan(odd.snr)
    assert not math.isnan(odd.kurtosis)
    convolution = measure_damage(np.ones((4, 3, 2, 2)), form, weight=True)[0]
    assert convolution.elements == 48
    assert weight_matrix(np.ones((4, 3, 2, 2))).shape == (4, 12)


def test_the_usual_damage_orders_the_formats() -> None:
    usual = [usual_damage(BY_NAME[name]).snr for name in ("mxfp4", "nvfp4", "fp8-e5m2", "mxfp8", "bf16", "fp16")]
    assert usual == sorted(usual)
    assert usual[0] > 15


def _odd_matrices() -> dict[str, Array]:
    random = np.random.default_rng(3)
    normal = random.normal(size=(130, 200))
    spoiled = normal.copy()
    spoiled[:, 7] *= 3000
    return {
        "normal": normal,
        "tail": normal * np.exp(3 * random.normal(size=normal.shape)),
        "outliers": spoiled,
        "tiny": normal * 1e-25,
        "huge": normal * 1e25,
        "sparse": np.where(random.random(normal.shape) < 0.9, 0.0, normal),
        "zeros": np.zeros((5, 7)),
        "one": np.ones((1, 1)),
        "wide": random.normal(size=(3, 2500)),
        "high": random.normal(size=(700, 3)),
        "not finite": np.where(random.random(normal.shape) < 0.01, np.nan, normal),
    }


@pytest.mark.skipif(BACKEND != "c", reason="the C kernel is not built")
@pytest.mark.parametrize("kind", list(_odd_matrices()))
@pytest.mark.parametrize("form", TABLE, ids=lambda one: one.name)
def test_the_c_version_measures_what_the_numpy_version_defines(form: Format, kind: str) -> None:
    matrix = _odd_matrices()[kind].astype(np.float32)
    for weight in (False, True):
        _check_equal(matrix, form, weight)


def _check_equal(matrix: Array, form: Format, weight: bool) -> None:
    """Sums are of float32 in C and of float64 in numpy; and a scale that is no power of two is a factor in C, a divisor
    in numpy: an element at the edge between two numbers may be rounded to the other one."""
    fast = measure_damage(matrix, form, weight, native=True)
    slow = measure_damage(matrix, form, weight, native=False)
    assert len(fast) == len(slow)
    is_exact = form.scale in (None, POWER, E8M0)
    for ours, theirs in zip(fast, slow):
        for key, value in theirs.as_record().items():
            got = getattr(ours, key)
            if key in ("snr", "bulk", "worst") and value > 120:  # rounding of the scale itself
                assert got > 110, key
            elif key in ("underflow", "saturated", "denormal"):
                assert got == pytest.approx(value, abs=1e-12 if is_exact else 2e-4), key
            elif isinstance(value, float):
                assert got == pytest.approx(value, rel=1e-4 if is_exact else 2e-3, abs=0.02), key
            elif key != "worst_block":  # several may be equally bad
                assert got == value, key


@pytest.mark.skipif(BACKEND != "c", reason="the C kernel is not built")
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_both_versions_agree_for_any_shape_and_any_range(data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(TABLE))
    rows, columns = data.draw(st.integers(1, 300)), data.draw(st.integers(1, 300))
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    matrix = random.normal(size=(rows, columns)) * np.exp(data.draw(st.floats(0, 8)) * random.normal(size=(rows, 1)))
    matrix = np.where(random.random(matrix.shape) < data.draw(st.sampled_from((0.0, 0.5, 0.99))), 0.0, matrix)
    narrow = (matrix * 10.0 ** data.draw(st.integers(-30, 25))).astype(np.float32)
    _check_equal(narrow, form, data.draw(st.booleans()))


@pytest.mark.skipif(BACKEND != "c", reason="the C kernel is not built")
def test_every_level_of_cpu_instructions_agrees() -> None:
    from msprobe.stats._kernel import select

    for matrix in _odd_matrices().values():
        for form in TABLE:
            for level in (0, 1):
                select(level)
                try:
                    _check_equal(matrix.astype(np.float32), form, weight=False)
                finally:
                    select(9)


@pytest.mark.skipif(BACKEND != "c", reason="the C kernel is not built")
def test_scales_too_small_for_float32_are_measured_too() -> None:
    tiny = NORMAL * np.float32(1e-37)
    found = measure_damage(tiny, BY_NAME["nvfp4-1x16"])[0]
    assert found.snr == pytest.approx(measure_damage(NORMAL, BY_NAME["nvfp4-1x16"])[0].snr, abs=0.5)
