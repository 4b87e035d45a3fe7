"""From a tensor in host memory to its figures: one pass of the kernel, and one more for a low-precision dtype."""

from __future__ import annotations

import math
from ctypes import c_char
from typing import Any, Optional

import numpy as np

from msprobe.stats import STATS, count_outside, dtypes, measure
from msprobe.watch.settings import LOW_PRECISION
from msprobe.watch.targets import Figures

Array = np.ndarray[Any, Any]
SAMPLE = 4096
"""Elements of a weight by which its update is measured; they are kept from one step to the next."""
_RUN = 16


def bounds(low_precision: Optional[str]) -> Optional[tuple[float, float]]:
    """What becomes zero in a dtype of the configuration is below the first; its largest number is the second."""
    if low_precision is None:
        return None
    row = dtypes.BY_NAME[LOW_PRECISION[low_precision]]
    assert row.smallest_normal is not None
    return row.smallest_normal * 2.0 ** -(row.mantissa + 1), float(row.largest)


def read_memory(
    address: int,
    code: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    outside: Optional[tuple[float, float]],
) -> Optional[Figures]:
    """The figures of the tensor at an address; None for one without elements or without a norm (bool)."""
    most, least, mean, norm, nan, posinf, neginf, zero, count, _, _ = measure(address, code, shape, strides, STATS)
    if not count or norm is None:
        return None
    under = over = math.nan
    if outside is not None:
        below, above = count_outside(address, code, shape, strides, *outside)
        under, over = below / count, above / count
    return Figures(norm, most, least, mean, nan, posinf + neginf, zero / count, under, over)  # type: ignore[arg-type]


def read_array(array: Array, code: int, outside: Optional[tuple[float, float]]) -> Optional[Figures]:
    """The same for a numpy array, whose items may be the bits of a type that numpy does not have."""
    array = np.ascontiguousarray(array)
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return read_memory(array.__array_interface__["data"][0], code, array.shape, strides, outside)


def combine(first: Figures, second: Figures) -> Figures:
    """Two calls of one module in a step, as if they had been one batch."""
    mean = [0.5 * (a + b) for a, b in zip(first, second)]
    return Figures(
        math.hypot(first.norm, second.norm),
        first.max if first.max >= second.max or first.max != first.max else second.max,
        first.min if first.min <= second.min or first.min != first.min else second.min,
        mean[3],
        first.nan + second.nan,
        first.inf + second.inf,
        *mean[6:],
    )


def sample(address: int, code: int, elements: int) -> Optional[Array]:
    """Some elements of a dense tensor, copied: runs of a cache line, evenly spaced; all of a small one."""
    row = dtypes.BY_CODE[code]
    dtype = row.numpy_dtype
    if dtype is None or row.kind != dtypes.FLOAT or not elements or not address:
        return None
    memory = memoryview((c_char * (elements * row.itemsize)).from_address(address)).cast("B")
    if elements > SAMPLE:
        runs = SAMPLE // _RUN
        step = (elements - _RUN) // (runs - 1)
        found: Array = np.ndarray((runs, _RUN), dtype, memory, 0, (step * row.itemsize, row.itemsize))
    else:
        found = np.frombuffer(memory, dtype)
    return np.array(found, np.float32 if row.itemsize < 8 else np.float64)


def change(before: Array, after: Array, elements: int) -> tuple[float, float]:
    """The norm of the change and of the weight before it, estimated from samples of a tensor of so many elements."""
    factor = math.sqrt(elements / before.size)
    difference = np.subtract(after, before, dtype=np.float64).reshape(-1)
    old = before.reshape(-1)
    with np.errstate(all="ignore"):
        squares = float(np.dot(difference, difference)), float(np.dot(old, old))
    return factor * math.sqrt(squares[0]), factor * math.sqrt(squares[1])
