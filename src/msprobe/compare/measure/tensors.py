"""The metrics of two saved tensors: one streaming pass over memory-mapped files, sums in float64.

Memory is limited to a block, for any size of tensors. The pass is in C (`_pairs.c`); `twin` does the same in numpy if
the extension is not built.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np

from msprobe.compare.reasons import Kind, Reason
from msprobe.dump.errors import DumpError
from msprobe.dump.tensor_files import codec as files
from msprobe.messages import Message

Kernel = Callable[[Any, Any, str, float, float], "tuple[float, ...]"]
_native: Optional[Kernel]
try:
    from msprobe.compare.measure._pairs import pairs as _native
except ImportError:
    _native = None

BLOCK = 1 << 20
_SAMPLE = 1 << 14
_SMALL = 1e-290
_NUMPY_FLOATS = tuple(map(np.dtype, (np.float16, np.float32, np.float64)))
"""ml_dtypes declares its float8_e5m2 as a numpy float, but numpy does not know it."""
Array = np.ndarray[Any, Any]


class TensorMetrics(NamedTuple):
    """The metrics of mindstudio-probe, and those that decide the verdict.

    `distance` is the largest |a-b| relative to the larger of |b| and the tensors' root mean square, `relative_l2` the
    norm of the difference relative to the larger norm, `norm_change` the difference of the norms relative to it.
    `special` counts NaN and infinities that are not the same on both sides, `first_special` is the flat index of the
    first.
    """

    cosine: float
    euclidean: float
    max_abs: float
    max_relative: float
    one_thousandth: float
    five_thousandths: float
    different: int
    elements: int
    special: int
    first_special: int
    distance: float
    relative_l2: float
    scale: float
    norm_change: float = 0.0


class NotComparable(Exception):
    """Two tensors that cannot be compared element by element, and why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason


def compare_files(target: Path, golden: Path) -> TensorMetrics:
    """Raises NotComparable with the reason; never unpickles."""
    arrays = []
    for path in (target, golden):
        try:
            arrays.append(files.load(path, mmap=True))
        except DumpError as error:
            kind = Kind.UNREADABLE if path.exists() else Kind.MISSING_FILE
            raise NotComparable(Reason(kind, Message("error", text=str(error)))) from None
    return compare_arrays(arrays[0], arrays[1])


def compare_arrays(target: Array, golden: Array) -> TensorMetrics:
    return compare_pieces([(target, golden)])


def compare_pieces(pieces: list[tuple[Array, Array]]) -> TensorMetrics:
    """The metrics of a tensor in pieces: shards, or the complete tensor as one piece."""
    for target, golden in pieces:
        if target.shape != golden.shape:
            shapes = Message("and", target=str(list(target.shape)), golden=str(list(golden.shape)))
            raise NotComparable(Reason(Kind.SHAPE, shapes))
        for dtype in (target.dtype, golden.dtype):
            if dtype.kind in "USMmO" or dtype.type is np.void:
                raise NotComparable(Reason(Kind.UNREADABLE, Message("damaged.file_dtype", dtype=str(dtype))))
    total, size = _total(pieces, 1.0)
    unit = 1.0
    wide = any(side.dtype in (np.float64, np.complex128) for piece in pieces for side in piece)
    if wide and total is not None and _leaves_float64(total):
        unit = _unit(pieces)
        total, size = _total(pieces, unit)
    if total is None:
        return TensorMetrics(1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0, 0, 0, -1, 0.0, 0.0, 0.0)
    return _finished(total, size, unit)


def _total(pieces: list[tuple[Array, Array]], unit: float) -> tuple[Optional[list[float]], float]:
    """The sums over all pieces and the typical size of an element, after multiplying the elements by `unit`."""
    total: Optional[list[float]] = None
    done = 0
    size = max([_sampled_scale(side, unit) for piece in pieces for side in piece], default=0.0)
    for target, golden in pieces:
        part = _measured(target, golden, size, unit)
        if part is None:
            continue
        if part[13] >= 0:
            part[13] += done
        done += target.size
        total = part if total is None else _joined(total, part)
    return total, size


def _leaves_float64(total: list[float]) -> bool:
    """Whether squares of the elements are too large or too small for float64: only those of float64 can be."""
    dot, aa, bb, dd, different = *total[:4], total[10]
    return bool(different) and (not math.isfinite(dot + aa + bb + dd) or dd == 0.0 or max(aa, bb) < _SMALL)


def _unit(pieces: list[tuple[Array, Array]]) -> float:
    """A power of two that scales the largest finite element to about 1."""
    largest = 0.0
    for side in (side for piece in pieces for side in piece):
        for start in range(0, side.size, BLOCK):
            block = side.reshape(-1)[start : start + BLOCK]
            parts = (block.real, block.imag) if block.dtype.kind == "c" else (block,)
            sizes = [np.abs(part.astype(np.float64)) for part in parts]
            largest = max(largest, *(float(one[np.isfinite(one)].max(initial=0.0)) for one in sizes))
    return 2.0 ** min(max(-math.frexp(largest)[1], -1000), 1000)


def _measured(target: Array, golden: Array, size: float, unit: float) -> Optional[list[float]]:
    a, b = _flat(target, golden)
    wide = _needs_float64(a.dtype) or _needs_float64(b.dtype)
    kind = np.dtype(np.float64 if wide else np.float32)
    wide_integers = all(array.dtype.kind in "iu" and array.dtype.itemsize == 8 for array in (a, b))
    total: Optional[list[float]] = None
    measure = _native or twin
    step = len(a) if a.dtype == kind and b.dtype == kind and unit == 1.0 else BLOCK
    for start in range(0, len(a), max(step, 1)):
        x, y = _block(a, start, step, kind), _block(b, start, step, kind)
        if unit != 1.0:
            x, y = x * unit, y * unit
        part = list(measure(x, y, kind.char, _eps(a.dtype, b.dtype) * unit, size))
        if wide_integers and unit == 1.0:
            _count_exactly(part, a[start : start + step], b[start : start + step], size)
        if part[13] >= 0:
            part[13] += start
        total = part if total is None else _joined(total, part)
    return total


def _flat(target: Array, golden: Array) -> tuple[Array, Array]:
    """Both as one dimension, in the same order of elements; copied only if the orders of the files differ."""
    if target.flags.f_contiguous and golden.flags.f_contiguous:
        target, golden = target.T, golden.T
    a, b = (np.ascontiguousarray(array).reshape(-1) for array in (target, golden))
    if a.dtype.kind == "c" or b.dtype.kind == "c":
        wide = np.complex128 if np.complex128 in (a.dtype, b.dtype) else np.complex64
        a, b = (array.astype(wide, copy=False).view(wide(0).real.dtype) for array in (a, b))
    return a, b


def _needs_float64(dtype: np.dtype[Any]) -> bool:
    return dtype == np.float64 or (dtype.kind in "iu" and dtype.itemsize > 2)


def _count_exactly(part: list[float], a: Array, b: Array, size: float) -> None:
    """Counts the 64-bit integers that differ, as integers: they do not fit into float64."""
    unequal = np.flatnonzero(a != b)
    if len(unequal) == part[10]:
        return
    part[10] = len(unequal)
    away, of = max((abs(int(a[i]) - int(b[i])), abs(int(b[i]))) for i in unequal[:BLOCK])
    part[4] = max(part[4], float(away))
    part[6] = max(part[6], away / max(of, size, 1.0))


def _eps(*dtypes: np.dtype[Any]) -> float:
    """Replaces a golden zero as divisor: the larger epsilon of the two dtypes; that of float32 if numpy does not have
    the dtype."""
    return max(float(np.finfo(d if d in _NUMPY_FLOATS else np.float32).eps) for d in dtypes)


def _block(array: Array, start: int, step: int, kind: np.dtype[Any]) -> Array:
    """Elements of a file are not aligned if its header has an unusual length."""
    return np.require(array[start : start + step], kind, "A")


def _sampled_scale(array: Array, unit: float = 1.0) -> float:
    """The root mean square of a sample, without masks: huge elements, a million times the small ones."""
    if not array.size:
        return 0.0
    array = array.reshape(-1) if array.flags.c_contiguous else np.ravel(array, order="K")
    if array.dtype.kind == "c":
        array = np.abs(array)
    starts, length = _sample_places(len(array))
    sample = np.concatenate([array[start : start + length] for start in starts])
    sample = np.abs(sample.astype(np.float64, copy=False))
    largest = float(sample.max())
    if not math.isfinite(largest):
        sample = sample[np.isfinite(sample)]
        largest = float(sample.max(initial=0.0))
    if largest == 0.0:
        return 0.0
    with np.errstate(over="ignore"):
        if largest > 1e4:
            mask = (sample > 1e4) & (sample > 1e6 * np.quantile(sample[sample > 0], 0.1))
            sample = sample[~mask]
        if unit != 1.0:
            sample = sample * unit
        return math.sqrt(float(np.add.reduce(sample * sample)) / len(sample)) if len(sample) else 0.0


@lru_cache(maxsize=1024)
def _sample_places(count: int) -> tuple[tuple[int, ...], int]:
    """The starts and the length of the pieces that are a sample of `count` elements."""
    pieces = min(16, count)
    length = _SAMPLE // pieces
    return tuple(np.linspace(0, max(count - length, 0), pieces, dtype=np.int64).tolist()), length


def _joined(left: list[float], right: list[float]) -> list[float]:
    joined = [a + b for a, b in zip(left, right)]
    for index in (4, 5, 6):
        joined[index] = max(left[index], right[index])
    joined[13] = left[13] if left[13] >= 0 else right[13]
    return joined


def _finished(total: list[float], size: float, unit: float) -> TensorMetrics:
    dot, aa, bb, dd, max_abs, max_relative, scaled, compared, thousandth, five, different, same, other, first = total[
        :14
    ]
    if different == 0:
        cosine = 1.0
    elif aa == 0 or bb == 0:
        cosine = math.nan
    else:
        cosine = min(1.0, max(-1.0, dot / (math.sqrt(aa) * math.sqrt(bb))))
    seen = max(compared, 1)
    return TensorMetrics(
        cosine,
        math.sqrt(dd) / unit,
        max_abs / unit,
        max_relative,
        thousandth / seen if compared else 1.0,
        five / seen if compared else 1.0,
        int(different),
        int(compared + same + other),
        int(other),
        int(first),
        math.inf if other else scaled,
        math.sqrt(dd / max(aa, bb)) if dd else 0.0,
        size / unit,
        abs(math.sqrt(aa) - math.sqrt(bb)) / math.sqrt(max(aa, bb)) if different and max(aa, bb) else 0.0,
    )


def twin(a: Array, b: Array, kind: str, eps: float, scale: float) -> tuple[float, ...]:
    """`_pairs.pairs` in numpy, block by block."""
    total: Optional[list[float]] = None
    for start in range(0, len(a), BLOCK):
        x = a[start : start + BLOCK].astype(np.float64)
        y = b[start : start + BLOCK].astype(np.float64)
        with np.errstate(all="ignore"):
            usual = np.isfinite(x) & np.isfinite(y)
            same = ~usual & ((x == y) | (np.isnan(x) & np.isnan(y)))
            other = ~usual & ~same
            first = int(np.argmax(other)) + start if other.any() else -1
            x, y = x[usual], y[usual]
            d, m = np.abs(x - y), np.abs(y)
            relative = d / np.where(m == 0, eps, m)
            scaled = np.where(d > 0, d / np.maximum(m, scale), 0.0)
            part: list[float] = [
                float(x @ y),
                float(x @ x),
                float(y @ y),
                float(d @ d),
                float(d.max(initial=0)),
                float(relative.max(initial=0)),
                float(scaled.max(initial=0)),
                len(x),
                int((relative < 0.001).sum()),
                int((relative < 0.005).sum()),
                int((d > 0).sum()),
                int(same.sum()),
                int(other.sum()),
                first,
            ]
        total = part if total is None else _joined(total, part)
    return tuple(total or [0.0] * 13 + [-1])
