"""The statistics of one tensor in host memory, in one pass.

A C kernel computes them. If it is not built, a Python version does the same, slower. `BACKEND` says which of the two
this process uses; MSPROBE_PURE_PYTHON=1 selects the Python version.

`measure`, `render` and `describe` read a raw address: the caller keeps the tensor alive and unchanged during the call.
"""

from __future__ import annotations

import logging
import os
from typing import Any, Optional

import numpy as np

from msprobe.stats import dtypes
from msprobe.stats.result import CRC, LOW_PRECISION, ORDER, STATS, XOR, Stats

__all__ = [
    "BACKEND",
    "CRC",
    "LOW_PRECISION",
    "ORDER",
    "STATS",
    "XOR",
    "Stats",
    "TensorCache",
    "advance",
    "crc32",
    "describe",
    "gauge",
    "gauge_memory",
    "measure",
    "measure_array",
    "render",
    "render_array",
]


def _choose() -> str:
    if os.environ.get("MSPROBE_PURE_PYTHON") == "1":
        return "python"
    try:
        import msprobe.stats._kernel  # noqa: F401
    except ImportError as error:
        logging.getLogger("msprobe").warning(
            "The C parts of msprobe are not built (%s): computing statistics is many times slower. "
            "Install a C compiler and then msprobe-precision again; msprobe doctor shows what is missing.",
            error,
        )
        return "python"
    return "c"


BACKEND = _choose()
if BACKEND == "c":
    from msprobe.stats._kernel import TensorCache, advance, crc32, describe, gauge, gauge_memory, measure, render
else:
    from msprobe.stats.figures import gauge, gauge_memory
    from msprobe.stats.python_kernel import crc32, describe, measure, render
    from msprobe.stats.samples import advance
    from msprobe.stats.tensor_cache import TensorCache


def _locate(array: np.ndarray[Any, Any], code: Optional[int]) -> tuple[np.ndarray[Any, Any], int, tuple[int, ...]]:
    """The array (copied if its strides are not multiples of the item size), its code, its strides in elements."""
    if code is None:
        row = dtypes.of_numpy(array.dtype)
        if row is None:
            raise TypeError(f"no statistics for numpy dtype {array.dtype!r}; known: {', '.join(dtypes.BY_NAME)}")
        code = row.code
    elif code in dtypes.BY_CODE and dtypes.BY_CODE[code].itemsize != array.itemsize:
        name = dtypes.BY_CODE[code].name
        raise TypeError(f"cannot read an array of {array.itemsize}-byte items as {name}; pass an array of its bits")
    size = array.itemsize
    if any(stride % size for stride in array.strides):
        array = np.ascontiguousarray(array)
    return array, code, tuple(stride // size for stride in array.strides)


def measure_array(array: np.ndarray[Any, Any], code: Optional[int] = None, want: int = STATS) -> Stats:
    """`measure` for a numpy array. `code` reads the items as another type of the same size (bf16 in uint16)."""
    array, code, strides = _locate(array, code)
    return measure(array.__array_interface__["data"][0], code, array.shape, strides, want)


def render_array(
    array: np.ndarray[Any, Any], code: Optional[int] = None, want: int = STATS
) -> tuple[str, Optional[str], int]:
    """`render` for a numpy array."""
    array, code, strides = _locate(array, code)
    return render(array.__array_interface__["data"][0], code, array.shape, strides, want)
