"""How far tensors have moved since the last step, from a sample of their elements: the Python version of
native/samples.c."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_char
from typing import Any

import numpy as np

from msprobe.stats import dtypes

Array = np.ndarray[Any, Any]
Place = tuple[int, int, int, int]
"""A number of the caller's choice, the address of a dense float tensor, its dtype code, its number of elements."""
SAMPLE = 4096
"""How many elements of a larger tensor are read."""
_RUN = 16


def advance(places: Sequence[Place], before: Array, sums: Array) -> None:
    """Reads the samples of tensors into `before`, one after the other.

    `sums` gets one row for each tensor: the sum of the squares of its changes, and of its values before them."""
    at = 0
    for number, (_, address, code, elements) in enumerate(places):
        now = _view(address, code, elements).astype(np.float64).reshape(-1)
        old = before[at : at + now.size]
        with np.errstate(all="ignore"):
            sums[number] = np.square(now - old).sum(), np.square(old).sum()
        old[:] = now
        at += now.size


def _view(address: int, code: int, elements: int) -> Array:
    """Evenly spaced runs of a cache line. All elements of a small tensor."""
    row = dtypes.BY_CODE[code]
    memory = memoryview((c_char * (elements * row.itemsize)).from_address(address)).cast("B")
    if elements <= SAMPLE:
        return np.frombuffer(memory, row.numpy_dtype)
    runs = SAMPLE // _RUN
    step = (elements - _RUN) // (runs - 1)
    view: Array = np.ndarray((runs, _RUN), row.numpy_dtype, memory, 0, (step * row.itemsize, row.itemsize))
    return view
