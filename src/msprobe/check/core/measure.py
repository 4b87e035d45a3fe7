"""Measures one output against its golden, in numpy, block by block so that a block stays in the cache.

Both sides have the dtype of the output. The golden was computed in a higher precision and rounded once at the end: no
kernel of that dtype can do better. An output that equals it needs no more checks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

Array = np.ndarray[Any, Any]
BLOCK = 1 << 15
SHARES = (1e-2, 1e-3, 1e-4)
_TINY = 1e-300


@dataclass(frozen=True)
class Format:
    """A float format. `rtol`, `small` and `small_atol` are published values of mindstudio-probe."""

    name: str
    mantissa: int
    lowest_exponent: int
    rtol: float
    small: float
    small_atol: float

    @property
    def epsilon(self) -> float:
        return 2.0**-self.mantissa

    @property
    def spacing(self) -> float:
        """The distance between its smallest numbers: no result can be closer than that."""
        return 2.0 ** (self.lowest_exponent - self.mantissa)


FORMATS = {
    "float16": Format("float16", 10, -14, 2.0**-10, 2.0**-10, 2.0**-16),
    "bfloat16": Format("bfloat16", 7, -126, 2.0**-8, 2.0**-10, 2.0**-16),
    "float32": Format("float32", 23, -126, 2.0**-20, 2.0**-20, 2.0**-30),
    "float64": Format("float64", 52, -1022, 2.0**-20, 2.0**-20, 2.0**-30),
    "float8_e4m3fn": Format("float8_e4m3fn", 3, -6, 2.0**-4, 2.0**-6, 2.0**-8),
    "float8_e5m2": Format("float8_e5m2", 2, -14, 2.0**-3, 2.0**-6, 2.0**-8),
}
FORMATS["complex64"] = FORMATS["float32"]
FORMATS["complex128"] = FORMATS["float64"]


@dataclass
class Metrics:
    """The metrics of one output. Integers and bools have only `elements` and `mismatches`; the others are NaN."""

    elements: int = 0
    mismatches: int = 0
    special: int = 0  # NaN or infinite on one side only, or different
    cosine: float = 1.0
    max_abs: float = 0.0
    shares: tuple[float, float, float] = (1.0, 1.0, 1.0)
    balance: float = 0.0
    rmse: float = 0.0
    small_errors: float = 0.0
    max_rel: float = 0.0
    mean_rel: float = 0.0
    rel_errors: float = 0.0
    abs_errors: float = 0.0
    relative_l2: float = 0.0
    ulp: Optional[tuple[float, float, float]] = None  # largest, mean, share beyond the limit

    @property
    def mismatch_rate(self) -> float:
        return self.mismatches / self.elements if self.elements else 0.0

    @property
    def special_rate(self) -> float:
        return self.special / self.elements if self.elements else 0.0


class _Sums:
    """Sums over the blocks."""

    def __init__(self) -> None:
        self.dot = self.dd = self.gg = self.ee = self.rel = self.max_abs = self.max_rel = 0.0
        self.counted = self.mismatches = self.special = self.more = self.less = 0
        self.near = [0, 0, 0]
        self.small = self.small_wrong = self.large_wrong = 0
        self.ulps, self.ulp_max, self.ulp_beyond = 0.0, 0.0, 0

    def add_equal(self, count: int, square: float) -> None:
        """Adds a block of finite numbers that are equal on both sides. `square` is the sum of their squares."""
        self.counted += count
        self.near = [one + count for one in self.near]
        self.dot, self.dd, self.gg = self.dot + square, self.dd + square, self.gg + square

    def add(self, device: Array, golden: Array, form: Format, ulp_limit: Optional[float]) -> None:
        if not (math.isfinite(device.sum()) and math.isfinite(golden.sum())):
            finite = np.isfinite(device) & np.isfinite(golden)
            other = ~finite & ~((device == golden) | (np.isnan(device) & np.isnan(golden)))
            self.special += int(np.count_nonzero(other))
            self.mismatches += int(np.count_nonzero(other))
            device, golden = device[finite], golden[finite]
        count = device.size
        if not count:
            return
        self.counted += count
        error = device - golden
        wrong = np.count_nonzero(error)
        self.dot += float(device @ golden)
        self.dd += float(device @ device)
        self.gg += float(golden @ golden)
        if not wrong:
            self.near = [one + count for one in self.near]
            self.small += _small(golden, form)
            return
        self.mismatches += wrong
        self.ee += float(error @ error)
        more = int(np.count_nonzero(error > 0))
        self.more += more
        self.less += wrong - more
        np.abs(error, out=error)
        size = np.abs(golden)
        self.max_abs = max(self.max_abs, float(error.max()))
        relative = error / np.maximum(size, _TINY)
        largest = float(relative.max())
        self.max_rel = max(self.max_rel, largest)
        self.rel += float(relative.sum())
        for number, limit in enumerate(SHARES):
            self.near[number] += count if largest < limit else int(np.count_nonzero(relative < limit))
        if float(size.min()) < form.small:
            small = size < form.small
            self.small += int(np.count_nonzero(small))
            self.small_wrong += int(np.count_nonzero(error[small] > form.small_atol))
            self.large_wrong += int(np.count_nonzero((relative > form.rtol) & ~small))
        elif largest > form.rtol:
            self.large_wrong += int(np.count_nonzero(relative > form.rtol))
        if ulp_limit is not None:
            ulps = error / spacing_at(size, form)
            self.ulps += float(ulps.sum())
            self.ulp_max = max(self.ulp_max, float(ulps.max()))
            self.ulp_beyond += int(np.count_nonzero(ulps > ulp_limit))


def _small(golden: Array, form: Format) -> int:
    return int(np.count_nonzero(np.abs(golden) < form.small))


def spacing_at(size: Array, form: Format) -> Array:
    """The distance between neighbouring numbers of a format at these magnitudes."""
    _, exponent = np.frexp(size)
    made: Array = np.maximum(np.ldexp(1.0, exponent - 1 - form.mantissa), form.spacing)
    return made


def measure_floats(device: Array, golden: Array, form: Format, ulp_limit: Optional[float] = None) -> Metrics:
    """Compares two flat float arrays of the same length."""
    sums = _Sums()
    equal: list[int] = []
    with np.errstate(all="ignore"):
        for start in range(0, device.size, BLOCK):
            ours, right = device[start : start + BLOCK], golden[start : start + BLOCK]
            wide = right.astype(np.float64)
            if np.array_equal(ours, right) and math.isfinite(square := float(wide @ wide)):
                sums.add_equal(wide.size, square)
                equal.append(start)
            else:
                sums.add(ours.astype(np.float64), wide, form, ulp_limit)
        if sums.small_wrong or sums.large_wrong:  # only then the number of small equal ones matters
            sums.small += sum(_small(golden[start : start + BLOCK], form) for start in equal)
    count = max(sums.counted, 1)
    found = Metrics(device.size, sums.mismatches, sums.special)
    found.cosine = _cosine(sums)
    found.max_abs, found.max_rel, found.mean_rel = sums.max_abs, sums.max_rel, sums.rel / count
    if sums.counted:
        found.shares = (sums.near[0] / count, sums.near[1] / count, sums.near[2] / count)
    found.balance = abs(sums.more - sums.less) / count
    found.rmse = math.sqrt(sums.ee / count)
    found.relative_l2 = math.sqrt(sums.ee / sums.gg) if sums.gg else (math.inf if sums.ee else 0.0)
    found.small_errors = found.abs_errors = sums.small_wrong / sums.small if sums.small else 0.0
    large = count - sums.small
    found.rel_errors = sums.large_wrong / large if large > 0 else 0.0
    if ulp_limit is not None:
        found.ulp = (sums.ulp_max, sums.ulps / count, sums.ulp_beyond / count)
    return found


def _cosine(sums: _Sums) -> float:
    if sums.dd == 0.0 or sums.gg == 0.0:
        return 1.0 if sums.dd == sums.gg else 0.0
    return max(-1.0, min(1.0, sums.dot / math.sqrt(sums.dd) / math.sqrt(sums.gg)))


def measure_others(device: Array, golden: Array) -> Metrics:
    """Integers and bools: equal or not."""
    wrong = int(np.count_nonzero(device != golden))
    return Metrics(device.size, wrong, cosine=1.0 if not wrong else math.nan)
