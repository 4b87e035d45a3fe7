"""Figures in a table: the C kernel and the Python version write the same, in every layout."""

from __future__ import annotations

import numpy as np
import pytest

from msprobe.stats import dtypes, figures, gauge_memory

ROWS = [row for row in dtypes.TABLE if row.numpy is not None and row.numpy_dtype is not None]


def figures_of(measure, array, row, outside):
    strides = tuple(stride // array.itemsize for stride in array.strides)
    table = np.full((3, figures.COLUMNS), -1.0)
    done = measure(array.__array_interface__["data"][0], row.code, array.shape, strides, table, 1, outside)
    assert (table[[0, 2]] == -1).all()
    return done, table[1].tolist()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("outside", [None, (2.0**-25, 65504.0), (2.0**-10, 448.0)])
def test_both_write_the_same(row, outside):
    random = np.random.RandomState(0)
    with np.errstate(all="ignore"):
        values = random.randn(5, 3000) * 10.0 ** random.uniform(-12, 8, (5, 3000))
        values[:, ::7] = 0
        array = values.astype(row.numpy_dtype)
    for view in (array, array[:, ::3], array.T, array[:0], array[:, :16]):
        ours, theirs = (figures_of(measure, view, row, outside) for measure in (gauge_memory, figures.gauge_memory))
        assert ours[0] == theirs[0]
        assert ours[1] == pytest.approx(theirs[1], rel=1e-12, nan_ok=True)


def test_zero_and_nan_are_neither_and_infinity_is_large():
    array = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-9, -1e-9, 448.0, 447.0], np.float32)
    _, found = figures_of(gauge_memory, array, dtypes.BY_NAME["float32"], (1e-6, 448.0))
    assert found[4:] == [1, 2, 2 / 9, 2 / 9, 3 / 9, 1]


@pytest.mark.parametrize("value", [448.0, -448.0, 1e-9])
def test_one_element_outside_is_found_in_any_tile(value):
    array = np.ones(3 * 4096 + 5, np.float32)
    for place in (0, 4095, 4096, len(array) - 1):
        array[place] = value
        _, found = figures_of(gauge_memory, array, dtypes.BY_NAME["float32"], (1e-6, 448.0))
        assert [round(share * len(array)) for share in found[7:9]] == ([1, 0] if abs(value) < 1 else [0, 1])
        array[place] = 1


@pytest.mark.filterwarnings("ignore:invalid value")
def test_what_stands_beside_a_nan_is_counted_at_every_level():
    kernel = pytest.importorskip("msprobe.stats._kernel")
    bits = np.ones(4096, np.float32).view(np.uint32)
    bits[5 * 64 + 3 :: 16] = 0x7F800001  # signalling NaN
    bits[5 * 64 + 3 : 6 * 64 : 32] = 0x30000000  # small
    bits[7 * 64 + 19] = 0
    row = dtypes.BY_NAME["float32"]
    expected = figures_of(figures.gauge_memory, bits.view(np.float32), row, (1e-6, 448.0))[1][4:]
    try:
        for level in (0, 1, 9):
            kernel.select(level)
            assert figures_of(kernel.gauge_memory, bits.view(np.float32), row, (1e-6, 448.0))[1][4:] == expected
    finally:
        kernel.select(9)
