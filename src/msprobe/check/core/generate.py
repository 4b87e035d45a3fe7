"""Makes inputs from statistics. The same record and the same place always give the same data."""

from __future__ import annotations

import math
import zlib
from typing import Any, Optional

import numpy as np

from msprobe.dump.items import read_number
from msprobe.stats import dtypes

Array = np.ndarray[Any, Any]
MAX_BYTES = 4 << 30


class NotMade(Exception):
    """The tensor cannot be made. The message is a reason for the user."""


def shape_of(item: dict[str, Any]) -> tuple[int, ...]:
    """The shape in a record. Raises NotMade if it is not a shape or is too large."""
    shape = item.get("shape")
    if not isinstance(shape, list) or len(shape) > 64:
        raise NotMade(f"{str(shape)[:80]} is not a shape")
    if any(type(length) is not int or length < 0 for length in shape):
        raise NotMade(f"{str(shape)[:80]} is not a shape")
    row = row_of(item)
    if math.prod(shape) * max(row.itemsize, 8) > MAX_BYTES:
        raise NotMade(f"a tensor of shape {str(shape)[:80]} is larger than {MAX_BYTES >> 30} GiB")
    return tuple(shape)


def row_of(item: dict[str, Any]) -> dtypes.Dtype:
    """The dtype of a record: `torch.float32`, MindSpore's `Float32` or numpy's `float32`."""
    text = str(item.get("dtype"))
    row = dtypes.BY_NAME.get(text.rpartition(".")[2]) or dtypes.BY_NAME.get(text.lower())
    if row is None:
        raise NotMade(f"tensors of type {text[:40]} cannot be made")
    return row


def make(item: dict[str, Any], seed: str) -> Array:
    """An array in float64, int64, uint64, bool or complex128; the caller casts it to the dtype of the record.

    Floats are uniform between Min and Max; the first element is Min and the last is Max. If the statistics are NaN, the
    tensor had NaN and its range is not known: the array has one NaN.
    """
    shape, row = shape_of(item), row_of(item)
    random = np.random.Generator(np.random.PCG64(zlib.crc32(seed.encode())))
    low, high = item.get("Min"), item.get("Max")
    if row.kind == dtypes.BOOL:
        return np.asarray(random.integers(1 if low is True else 0, 1 if high is False else 2, shape), np.bool_)
    bottom, top = read_number(low), read_number(high)
    if row.kind in (dtypes.INT, dtypes.UINT):
        return _integers(random, shape, row, bottom, top)
    if row.kind == dtypes.COMPLEX:
        size, angle = _floats(random, shape, bottom, top), random.uniform(0, 2 * math.pi, shape)
        return np.asarray(size * np.exp(1j * angle))
    return _floats(random, shape, bottom, top)


def _integers(random: Any, shape: tuple[int, ...], row: dtypes.Dtype, low: Any, high: Any) -> Array:
    most = int(row.largest)
    least = -most - 1 if row.kind == dtypes.INT else 0
    first = min(max(int(low), least), most) if low is not None and math.isfinite(low) else 0
    last = min(max(int(high), first), most) if high is not None and math.isfinite(high) else first + 1
    kind = np.uint64 if row.kind == dtypes.UINT else np.int64
    made: Array = np.asarray(random.integers(first, last, shape, dtype=kind, endpoint=True))
    return _ends(made, first, last)


def _floats(random: Any, shape: tuple[int, ...], low: Optional[float], high: Optional[float]) -> Array:
    bottom = low if low is not None and math.isfinite(low) else None
    top = high if high is not None and math.isfinite(high) else None
    if bottom is None:
        bottom = top - 1.0 if top is not None else -1.0
    if top is None or top < bottom:
        top = bottom + 1.0
    # Not bottom + share * (top - bottom): that difference may overflow.
    share = random.random(shape)
    made: Array = np.asarray(bottom * (1.0 - share) + top * share)
    return _ends(made, low if low is not None else bottom, high if high is not None else top)


def _ends(made: Array, first: Any, last: Any) -> Array:
    if made.size:
        made.reshape(-1)[-1] = last
        made.reshape(-1)[0] = first
    return made
