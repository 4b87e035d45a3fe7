"""The figures of tensors as rows of a table: the Python version of native/figures.c.

A row has norm, maximum, minimum, mean, the number of NaN and of infinities, the shares of zeros, of elements below and
of elements above a range, and 1. Other rows of the table stay as they are.
"""

from __future__ import annotations

import math
from typing import Any, Optional

import numpy as np

from msprobe.stats.python_kernel import count_outside, measure
from msprobe.stats.result import STATS

Array = np.ndarray[Any, Any]
Range = Optional[tuple[float, float]]
COLUMNS = 10


def gauge(
    tensors: list[Any],
    rows: list[int],
    table: Array,
    heads: dict[Any, tuple[int, str]],
    exchange: Any,
    strided: Any,
    outside: Range,
) -> list[int]:
    """Writes the figures of each tensor into its row; None and tensors without elements are skipped.

    The arguments are those of `describe`. Returns the places of tensors that cannot be read in host memory.
    """
    left = []
    for place, (tensor, row) in enumerate(zip(tensors, rows)):
        if tensor is None:
            continue
        head = heads.get(tensor.dtype)
        if head is None or tensor.layout is not strided or not tensor.is_cpu or tensor.is_neg() or tensor.is_conj():
            left.append(place)
        elif tensor.data_ptr():
            gauge_memory(tensor.data_ptr(), head[0], tensor.shape, tensor.stride(), table, row, outside)
    return left


def gauge_memory(
    ptr: int, code: int, shape: tuple[int, ...], strides: tuple[int, ...], table: Array, row: int, outside: Range
) -> bool:
    """The same for an address; whether there were figures: not for a tensor without elements, or of type bool."""
    stats = measure(ptr, code, shape, strides, STATS)
    if not stats.count or stats.norm is None:
        return False
    below = above = math.nan
    if outside is not None:
        small, large = (float(np.float32(bound)) for bound in outside)
        below, above = (number / stats.count for number in count_outside(ptr, code, shape, strides, small, large))
    figures = (stats.norm, stats.max, stats.min, stats.mean, stats.nan, stats.posinf + stats.neginf)
    table[row] = (*figures, stats.zero / stats.count, below, above, 1)
    return True
