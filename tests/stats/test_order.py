"""Order: a number that depends on the places of the elements, and not on how they are read."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any, Optional

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.stats import CRC, ORDER, STATS, dtypes, python_kernel

kernel = pytest.importorskip("msprobe.stats._kernel", reason="the C kernel is not built")
BOTH = pytest.mark.parametrize("backend", [kernel, python_kernel], ids=["c", "python"])


def order(array: np.ndarray[Any, Any], want: int = STATS | ORDER, backend: ModuleType = kernel) -> Optional[float]:
    row = dtypes.of_numpy(array.dtype)
    assert row is not None
    steps = tuple(step // array.itemsize for step in array.strides)
    found: Optional[float] = backend.measure(array.ctypes.data, row.code, array.shape, steps, want).order
    return found


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(50, 40_000))
def test_a_random_permutation_changes_it_and_rounding_does_not(seed: int, size: int) -> None:
    random = np.random.default_rng(seed)
    values = random.standard_normal(size).astype(np.float32)
    norm = float(np.linalg.norm(values))
    first = order(values)
    assert first is not None
    moved = [abs((order(random.permutation(values)) or 0.0) - first) / norm for _ in range(3)]
    assert max(moved) > 1e-3  # three normal numbers with a deviation of about 1.4
    rounded = values * (1 + random.uniform(-1, 1, size) * 2.0**-23).astype(np.float32)
    assert abs((order(rounded) or 0.0) - first) < 8 * 2.0**-23 * norm


@pytest.mark.parametrize("axes", [(0, 2, 1, 3), (0, 1, 3, 2), (3, 2, 1, 0)])
@pytest.mark.parametrize("shape", [(2, 8, 4, 16), (4, 128, 8, 64)])
def test_a_view_has_the_order_of_its_copy(axes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    view = np.random.default_rng(0).standard_normal(shape).astype(np.float32).transpose(axes)
    copy = np.ascontiguousarray(view)
    assert order(copy) == order(copy, STATS | ORDER | CRC) == order(view, STATS | ORDER | CRC)
    read = order(view)
    assert read == order(copy) if read is not None else view.size > 2**16


@pytest.mark.parametrize("size", [16, 64, 1000])
def test_exchanged_halves_rows_and_axes_change_it(size: int) -> None:
    values = np.random.default_rng(1).standard_normal((size, size)).astype(np.float32)
    norm = float(np.linalg.norm(values))
    first = order(values)
    assert first is not None
    half = size // 2
    heads = values.reshape(size, 2, half)[:, ::-1].reshape(size, size)
    rows = np.concatenate([values[half:], values[:half]])
    turned = values.reshape(size, half, 2).swapaxes(1, 2).reshape(size, size)  # pairs of a rotary embedding
    for other in (heads, rows, turned, np.ascontiguousarray(values.T)):
        found = order(np.ascontiguousarray(other))
        assert found is not None
        assert abs(found - first) > 0.01 * norm


@BOTH
def test_where_there_is_none(backend: ModuleType) -> None:
    def measured(values: np.ndarray[Any, Any]) -> Optional[float]:
        return order(values, STATS | ORDER, backend)

    assert measured(np.array([1.5, 2.5], np.float32)) is not None
    assert order(np.array([1.5, 2.5], np.float32), STATS, backend) is None
    assert measured(np.array([1, 2])) is not None
    for none in (np.array([True, False]), np.array([2.0]), np.array([1.0, math.nan]), np.array([1.0, math.inf])):
        assert measured(none) is None
    assert measured(np.array([1e200, 1.0])) is None
    assert measured(np.zeros((2**16 + 1, 2), np.float32).T) is None, "a large transposed view is slow to read"
    assert measured(np.broadcast_to(np.ones(1000, np.float32), (1000, 1000))) is None, "so is an expanded one"


@BOTH
def test_the_text_has_it_after_the_norm(backend: ModuleType) -> None:
    array = np.array([1.0, 2.0], np.float32)
    row = dtypes.BY_NAME["float32"]
    text = backend.render(array.ctypes.data, row.code, (2,), (1,), STATS | ORDER)[0]
    assert text.startswith('"Max": 2.0, "Min": 1.0, "Mean": 1.5, "Norm": ')
    assert text.endswith(f', "Order": {order(array)!r}')
