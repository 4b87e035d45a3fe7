"""The functions of `_scan.c`. If it is not built: `scan` and `ratio` in numpy, a `look` that always returns None ("not
known"), and a `run` that always returns NOT_RUN.

`FORMATS` has the dtypes that `scan` and `ratio` support. Other dtypes go through the statistics or a converted copy.
"""

from __future__ import annotations

from ctypes import c_char
from typing import Any

import numpy as np

from msprobe.stats import dtypes

__all__ = ["FORMATS", "NEAR", "NOT_RUN", "TOP", "look", "ratio", "run", "scan"]

FORMATS = {"float16": 0, "bfloat16": 1, "float32": 2, "float64": 3}
_NAMES = tuple(FORMATS)
_UNSIGNED = (np.uint16, np.uint16, np.uint32, np.uint64)
_MANTISSA = tuple(dtypes.BY_NAME[name].mantissa for name in _NAMES)
_BITS = (16, 16, 32, 64)
# TOP: the bit pattern of infinity; larger patterns are NaN. NEAR: the start of the largest exponent, a factor 2 below.
TOP = tuple((1 << (bits - 1)) - (1 << mantissa) for bits, mantissa in zip(_BITS, _MANTISSA))
NEAR = tuple(top - (1 << mantissa) for top, mantissa in zip(TOP, _MANTISSA))


def _array(address: int, code: int, count: int) -> Any:
    kind: np.dtype[Any] = np.dtype(_UNSIGNED[code])
    if not count:
        return np.empty(0, kind)
    memory: Any = (c_char * (count * kind.itemsize)).from_address(address)
    return np.frombuffer(memory, kind)


def _scan(address: int, code: int, count: int) -> tuple[int, int]:
    if not 0 <= code < len(_NAMES) or count < 0 or (count and not address):
        raise ValueError("scan: unknown dtype, or no memory")
    magnitudes = _array(address, code, count) & _UNSIGNED[code]((1 << (_BITS[code] - 1)) - 1)
    if _BITS[code] > 16:
        return int(magnitudes.max(initial=0)), 0
    tiny = np.count_nonzero(magnitudes - _UNSIGNED[code](1) < _UNSIGNED[code]((1 << _MANTISSA[code]) - 1))
    return int(magnitudes.max(initial=0)), int(tiny)


def _ratio(first: int, code: int, second: int, other: int, count: int, floor: float) -> tuple[float, int, int]:
    known = range(len(_NAMES))
    if code not in known or other not in known or count < 0 or not floor > 0 or (count and not (first and second)):
        raise ValueError("ratio: unknown dtype, no memory, or a floor that is not positive")
    a, b = (
        _array(address, kind, count).view(dtypes.BY_NAME[_NAMES[kind]].numpy_dtype).astype(np.float64)
        for address, kind in ((first, code), (second, other))
    )
    if "float64" not in (_NAMES[code], _NAMES[other]):
        floor = max(floor, 2.0**-126)
    with np.errstate(all="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        x, y = np.maximum(np.abs(a), floor), np.maximum(np.abs(b), floor)
        ratios = np.where(same, 1.0, np.maximum(x, y) / np.minimum(x, y))
        ratios = np.where(np.isfinite(a) & np.isfinite(b) | same, ratios, np.inf)
        flipped = (np.signbit(a) != np.signbit(b)) & (x > floor) & (y > floor) & ~same
    return float(ratios.max(initial=1.0)), int(flipped.sum()), int(count - same.sum())


def _look(exchange: Any, tensor: Any) -> None:
    return None


def _run(*args: Any) -> object:
    return NOT_RUN


try:
    from msprobe.stats._scan import NOT_RUN, look, ratio, run, scan
except ImportError:
    NOT_RUN = object()
    look, ratio, run, scan = _look, _ratio, _run, _scan
