"""The kernel in numpy: for machines without a compiler, and as a reference for the C kernel in the tests.

The code is the definition of each statistic; docs/kernel.md has the same in words. Integers are summed exactly, other
types in float64. Elements are read in memory order, as in C, except for the digests and Order.
"""

from __future__ import annotations

import ctypes
import math
import zlib
from typing import Any, Optional, cast

import numpy as np

from msprobe.stats import dtypes
from msprobe.stats.dtypes import BOOL, COMPLEX, FLOAT, Dtype
from msprobe.stats.result import CRC, LOW_PRECISION, ORDER, STATS, XOR, Number, Stats
from msprobe.stats.stochastic import draw

Array = np.ndarray[Any, Any]
Figures = tuple[Number, Number, float, float, int, int, int, int]
_TILE, _CHUNK = 4096, 2**18  # as in core.h: LOW_PRECISION rounds at these points
_RAW = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "V16"}
_LIMIT = 2**62
_SMALL, _RUN = 2**16, 64  # as in order.c: what is cheap to read in logical order


def measure(
    ptr: int, code: int, shape: tuple[int, ...], strides: tuple[int, ...], want: int, threads: int = 0
) -> Stats:
    """The statistics of the tensor at `ptr`. Strides count elements. Only the C kernel uses `threads`."""
    row, raw = _view(ptr, code, shape, strides, want)
    crc, xor = _digests(raw, want)
    count = raw.size
    if not count or not want & STATS:
        return Stats(None, None, None, None, 0, 0, 0, 0, count, crc, xor)
    logical = raw
    raw, repeats = _memory_order(raw)
    flat = np.ascontiguousarray(raw).reshape(-1)
    if row.kind == BOOL:
        zero = int((flat == 0).sum()) * repeats
        return Stats(zero < count, zero == 0, (count - zero) / count, None, 0, 0, 0, zero, count, crc, xor)
    if row.kind in (FLOAT, COMPLEX):
        figures = _of_floats(row, flat, repeats, bool(want & LOW_PRECISION))
    else:
        figures = _of_integers(flat.view(row.name), repeats)
    order = _order(row, logical, figures) if _order_wanted(logical, want) else None
    return Stats(*figures, count, crc, xor, order)


def render(
    ptr: int, code: int, shape: tuple[int, ...], strides: tuple[int, ...], want: int, threads: int = 0
) -> tuple[str, Optional[str], int]:
    """The JSON members "Max" to "Norm" and, if computed, "Order" ("" without STATS), the digest for "md5", and the
    number of NaN and inf."""
    if want & CRC and want & XOR:
        raise ValueError("render writes one digest: use CRC or XOR, not both")
    stats = measure(ptr, code, shape, strides, want, threads)
    digest = None
    if stats.crc is not None:
        digest = f"{stats.crc:08x}"
    elif stats.xor is not None:
        digest = f"0x{stats.xor:016x}"
    text = ""
    if want & STATS:
        numbers = tuple(_json(value) for value in stats[:4])
        text = '"Max": {}, "Min": {}, "Mean": {}, "Norm": {}'.format(*numbers)
        if stats.order is not None:
            text += f', "Order": {_json(stats.order)}'
    return text, digest, stats.nan + stats.posinf + stats.neginf


def describe(
    tensor: Any, exchange: Any, heads: dict[Any, tuple[int, str]], strided: Any, want: int
) -> Optional[tuple[str, str]]:
    """A torch tensor in host memory as JSON, in two parts: dtype, shape and statistics; the member of the digest.

    `exchange` is the table of C functions of its type, or None. `heads` has the code and the text of each dtype.
    Returns None for a tensor that cannot be read in place.
    """
    head = heads.get(tensor.dtype)
    if head is None or tensor.layout is not strided or not tensor.is_cpu or tensor.is_neg() or tensor.is_conj():
        return None
    shape, ptr = tensor.shape, tensor.data_ptr()
    if not ptr and 0 not in shape:
        return None
    code, text = head
    numbers, digest, _ = render(ptr, code, shape, tensor.stride(), want)
    figures = f"{numbers}, " if numbers else ""
    return f"{text}{list(shape)}, {figures}", f', "md5": "{digest}"' if digest is not None else ""


def count_outside(
    ptr: int, code: int, shape: tuple[int, ...], strides: tuple[int, ...], small: float, large: float
) -> tuple[int, int]:
    """How many floats are closer to zero than `small` (zeros aside), and how many at least as far as `large`."""
    row, raw = _view(ptr, code, shape, strides, STATS)
    if not raw.size or row.kind not in (FLOAT, COMPLEX):
        return 0, 0
    raw, repeats = _memory_order(raw)
    sizes = np.abs(_decode(row, np.ascontiguousarray(raw).reshape(-1)))
    below, above = np.count_nonzero((sizes > 0) & (sizes < small)), np.count_nonzero(sizes >= large)
    return int(below) * repeats, int(above) * repeats


def crc32(buffer: Any, value: int = 0) -> int:
    """zlib.crc32."""
    return zlib.crc32(buffer, value)


def _json(value: Number) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return repr(value)


def _view(ptr: int, code: int, shape: tuple[int, ...], strides: tuple[int, ...], want: int) -> tuple[Dtype, Array]:
    """The raw items as unsigned integers, after the same checks as in C."""
    row = dtypes.BY_CODE.get(code)
    if row is None:
        raise ValueError(f"unknown dtype code {code}")
    if want & ~(STATS | CRC | XOR | LOW_PRECISION | ORDER):
        raise ValueError(f"unknown flags in want: {want}")
    if len(shape) != len(strides) or len(shape) > 64:
        raise ValueError(f"{len(shape)} sizes and {len(strides)} strides: expected the same number, at most 64")
    if any(size < 0 for size in shape):
        raise ValueError(f"negative size in shape {tuple(shape)}")
    raw = np.dtype(_RAW[row.itemsize])
    if 0 in shape:
        return row, np.empty(0, raw)
    spans = [(size - 1) * stride * row.itemsize for size, stride in zip(shape, strides)]
    low, high = sum(s for s in spans if s < 0), sum(s for s in spans if s > 0) + row.itemsize
    if math.prod(shape) * row.itemsize >= _LIMIT or high - low >= _LIMIT:
        raise ValueError("the size of the tensor overflows")
    if ptr <= 0 or ptr + low <= 0 or ptr + high >= 2**63:
        raise ValueError("the address of the tensor is not in the memory of this process")
    kept = [(size, stride) for size, stride in zip(shape, strides) if size != 1]  # numpy: at most 32 (64) dims
    memory = (ctypes.c_ubyte * (high - low)).from_address(ptr + low)
    steps = tuple(stride * row.itemsize for _, stride in kept)
    return row, np.ndarray(tuple(size for size, _ in kept), raw, memoryview(memory), -low, steps)


def _digests(raw: Array, want: int) -> tuple[Optional[int], Optional[int]]:
    if not want & (CRC | XOR):
        return None, None
    data = raw.tobytes()
    crc = zlib.crc32(data) if want & CRC else None
    if not want & XOR:
        return crc, None
    words = np.frombuffer(data + bytes(-len(data) % 8), "<u8")
    return crc, int(np.bitwise_xor.reduce(words))


def _memory_order(raw: Array) -> tuple[Array, int]:
    """The elements in the order of their addresses, repeated ones (stride 0) once, and the number of repeats."""
    repeats = math.prod(size for size, step in zip(raw.shape, raw.strides) if step == 0)
    raw = raw[tuple(0 if step == 0 else slice(None, None, -1 if step < 0 else 1) for step in raw.strides)]
    raw = cast(Array, np.asarray(raw))
    return raw.transpose(sorted(range(raw.ndim), key=lambda axis: -raw.strides[axis])), repeats


def _order_wanted(raw: Array, want: int) -> bool:
    """Whether Order is computed: in logical order, which costs much for some large views."""
    if not want & ORDER or raw.size == 1:
        return False
    if raw.size <= _SMALL or want & (CRC | XOR):
        return True
    run = 1
    for size, step in zip(reversed(raw.shape), reversed(raw.strides)):
        if step != run * raw.itemsize:
            break
        run *= size
    return 0 not in raw.strides and run * raw.itemsize >= _RUN


def _order(row: Dtype, raw: Array, figures: Figures) -> Optional[float]:
    """The sum of the weighted elements. None for NaN, infinity and values whose squares may not fit float64."""
    nan, posinf, neginf = figures[4:7]
    if nan or posinf or neginf:
        return None
    flat = np.ascontiguousarray(raw).reshape(-1)
    if row.kind in (FLOAT, COMPLEX):
        if _exponent(max(float(cast(float, figures[0])), -float(cast(float, figures[1])))):
            return None
        values = _decode(row, flat)
    else:
        values = flat.view(row.name).astype(np.float64)
    total = 0.0
    for tile in range(0, values.size, _TILE):
        part = values[tile : tile + _TILE]
        total += float((part * _PLACES[: part.size]).sum()) * _tile_weight(tile // _TILE)
    return total


def _weights(bits: Array) -> Array:
    """The weights of lanes, groups or tiles: at least 0.5 and less than 1.5 away from zero."""
    return cast(Array, np.where(bits >> 31, -1.0, 1.0) * (0.5 + (bits & 0xFFFFF) / 2.0**20))


def _tile_weight(number: int) -> float:
    """Of a large tensor only the first tiles count all; of the later ones about one of four counts, twice as much."""
    bits = draw(np.array([_BEFORE + number]), 0)
    if number < _COMPLETE:
        return float(_weights(bits)[0])
    return 0.0 if int(bits[0]) >> 29 & 3 else 2.0 * float(_weights(bits)[0])


_LANES, _COMPLETE = 16, 16
_BEFORE = 1 + _LANES + _TILE // _LANES
_PLACES = (
    _weights(draw(np.arange(1 + _LANES, _BEFORE), 0))[:, None] * _weights(draw(np.arange(1, 1 + _LANES), 0))
).reshape(-1)
"""The weights of the elements of a tile."""


def _of_integers(values: Array, repeats: int) -> Figures:
    total = _exact_sum(values) * repeats
    squares = float(np.square(values.astype(np.float64)).sum()) * repeats
    count, zero = values.size * repeats, int((values == 0).sum()) * repeats
    mean = float(total) / count
    return int(values.max()), int(values.min()), mean, math.sqrt(squares), 0, 0, 0, zero


def _exact_sum(values: Array) -> int:
    """The exact sum. 64-bit items are summed in two halves, so that the sum of 2**30 items cannot overflow."""
    wide = np.uint64 if values.dtype.kind == "u" else np.int64
    if values.itemsize < 8:
        return int(values.sum(dtype=wide))
    half, mask = values.dtype.type(32), values.dtype.type(2**32 - 1)
    total = 0
    for start in range(0, values.size, 2**30):
        part = values[start : start + 2**30]
        total += int((part >> half).sum(dtype=wide)) * 2**32 + int((part & mask).sum(dtype=wide))
    return total


def _decode(row: Dtype, flat: Array) -> Array:
    """The values as float64; for complex numbers the magnitude, NaN if either part is NaN."""
    if row.kind == COMPLEX:
        parts = flat.view({4: "f2", 8: "f4", 16: "f8"}[row.itemsize]).astype(np.float64).reshape(-1, 2)
        magnitude = np.hypot(parts[:, 0], parts[:, 1])
        magnitude[np.isnan(parts).any(axis=1)] = np.nan
        return cast(Array, magnitude)
    if row.name == "float8_e8m0fnu":
        return cast(Array, np.where(flat == 255, np.nan, np.ldexp(1.0, flat.astype(np.int32) - 127)))
    return cast(Array, flat.view(row.numpy_dtype).astype(np.float64))


def _of_floats(row: Dtype, flat: Array, repeats: int, low_precision: bool) -> Figures:
    with np.errstate(all="ignore"):
        values = _decode(row, flat)
        nan = int(np.isnan(values).sum())
        posinf, neginf = int((values == np.inf).sum()), int((values == -np.inf).sum())
        zero = int((values == 0).sum())
        counts = (nan * repeats, posinf * repeats, neginf * repeats, zero * repeats)
        if nan:
            return (math.nan, math.nan, math.nan, math.nan, *counts)
        largest, smallest = float(values.max()) + 0.0, float(values.min()) + 0.0
        if posinf or neginf:
            mean = math.nan if posinf and neginf else math.inf if posinf else -math.inf
            return (largest, smallest, mean, math.inf, *counts)
        mean, norm = _mean_norm(row, values, repeats, max(largest, -smallest), low_precision)
    return (largest, smallest, mean, norm, *counts)


def _mean_norm(row: Dtype, values: Array, repeats: int, peak: float, low: bool) -> tuple[float, float]:
    """Mean and norm. Values whose squares do not fit float64 are scaled by a power of two, so a finite result stays
    finite."""
    exponent = _exponent(peak)
    count = values.size * repeats
    if exponent:
        values = np.ldexp(values, -exponent)
    if not low or row.name == "float8_e8m0fnu":
        total, squares = float(values.sum()) * repeats, float(np.square(values).sum()) * repeats
        return _ldexp(total / count, exponent), _ldexp(math.sqrt(squares), exponent)
    total = squares = 0.0
    for chunk in range(0, values.size, _CHUNK):
        chunk_total = chunk_squares = 0.0
        for tile in range(chunk, min(chunk + _CHUNK, values.size), _TILE):
            part = values[tile : min(tile + _TILE, chunk + _CHUNK)]
            chunk_total = round_to(row, chunk_total + float(part.sum()))
            chunk_squares = round_to(row, chunk_squares + float(np.square(part).sum()))
        total, squares = round_to(row, total + chunk_total), round_to(row, squares + chunk_squares)
    total, squares = round_to(row, total * repeats), round_to(row, squares * repeats)
    mean, norm = round_to(row, total / count), round_to(row, math.sqrt(squares))
    return _ldexp(mean, exponent), _ldexp(norm, exponent)


def _exponent(peak: float) -> int:
    """The power of two by which values are divided, so that their squares fit float64: usually 0."""
    return math.frexp(peak)[1] if peak and not 2.0**-400 <= peak <= 2.0**470 else 0


def _ldexp(value: float, exponent: int) -> float:
    return float(np.ldexp(value, exponent))  # math.ldexp raises instead of returning infinity


def round_to(row: Dtype, value: float) -> float:
    """`value` rounded to a float dtype: to nearest even; overflow gives infinity (NaN if the dtype has none)."""
    if not math.isfinite(value) or value == 0:
        return value
    assert row.smallest_normal is not None
    exponent = max(math.frexp(value)[1] - 1, math.frexp(row.smallest_normal)[1] - 1)
    quantum = math.ldexp(1.0, max(exponent - row.mantissa, -1074))
    rounded = round(value / quantum) * quantum if abs(value) < row.largest * 2 else math.inf
    if abs(rounded) <= row.largest:
        return rounded
    return math.copysign(math.inf, value) if row.has_inf else math.nan
