"""Elements outside a range: the C kernel and its python_kernel count the same, in every layout."""

from __future__ import annotations

import numpy as np
import pytest

from msprobe.stats import count_outside, dtypes, python_kernel

ROWS = [row for row in dtypes.TABLE if row.numpy is not None and row.numpy_dtype is not None]


def arguments(array, row, small, large):
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return array.__array_interface__["data"][0], row.code, array.shape, strides, small, large


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("bounds", [(2.0**-25, 65504.0), (2.0**-10, 448.0)])
def test_both_count_the_same(row, bounds):
    random = np.random.RandomState(0)
    with np.errstate(all="ignore"):
        values = random.randn(5, 3000) * 10.0 ** random.uniform(-12, 8, (5, 3000))
        array = values.astype(row.numpy_dtype)
    for view in (array, array[:, ::3], array.T, array[:0]):
        assert count_outside(*arguments(view, row, *bounds)) == python_kernel.count_outside(
            *arguments(view, row, *bounds)
        )


def test_zero_and_nan_are_neither_and_infinity_is_large():
    array = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-9, -1e-9, 448.0, 447.0], np.float32)
    found = count_outside(*arguments(array, dtypes.BY_NAME["float32"], 1e-6, 448.0))
    assert found == (2, 3)
