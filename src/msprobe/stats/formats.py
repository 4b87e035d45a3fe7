"""The low-precision formats as one table, and their emulation in numpy: rounding to nearest even, or stochastic.

A format stores each element in a small type, and blocks of elements share a scale. A matrix is cut into blocks of
`block` rows and columns; 0 means all of them. `emulate(matrix.T, …)` is the other orientation, which a backward uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from msprobe.stats.stochastic import RANGE, draw

Array = np.ndarray[Any, Any]

FLOOR, RCEIL, CEIL, EVEN = "floor", "rceil", "ceil", "even"
"""How the scale of an MX block follows from its largest magnitude."""
FLOAT32, POWER, E8M0, E4M3_SCALE = "float32", "power of two", "e8m0", "e4m3 and float32"
"""Types of scales. A power of two is rounded so that the largest magnitude still fits."""
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Element:
    """A type of elements. Without infinity, what is too large becomes `largest`, as torch 2.13 casts to e4m3fn."""

    name: str
    mantissa: int
    lowest: int
    """The exponent of the smallest normal number."""
    largest: float
    has_inf: bool

    @property
    def highest(self) -> int:
        """The exponent of the largest number."""
        return int(np.frexp(self.largest)[1]) - 1


FLOAT16 = Element("float16", 10, -14, 65504.0, True)
BFLOAT16 = Element("bfloat16", 7, -126, (2 - 2.0**-7) * 2.0**127, True)
E4M3 = Element("float8_e4m3fn", 3, -6, 448.0, False)
E5M2 = Element("float8_e5m2", 2, -14, 57344.0, True)
E2M1 = Element("float4_e2m1fn", 1, 0, 6.0, False)


@dataclass(frozen=True)
class Format:
    """`scale` is None for a plain cast. `weight_block` is the block of weights if theirs is different."""

    name: str
    element: Element
    block: tuple[int, int] = (0, 0)
    scale: Optional[str] = None
    mode: Optional[str] = None
    weight_block: Optional[tuple[int, int]] = None


def _fp8() -> list[Format]:
    blocks = {"": (0, 0), "-row": (1, 0), "-1x128": (1, 128), "-128x128": (128, 128)}
    return [
        Format(f"fp8-{short}{where}{end}", element, block, scale)
        for short, element in (("e4m3", E4M3), ("e5m2", E5M2))
        for where, block in blocks.items()
        for end, scale in (("", FLOAT32), ("-pow2", POWER))
    ]


def _mx() -> list[Format]:
    return [
        Format(name if mode == FLOOR else f"{name}-{mode}", element, (1, 32), E8M0, mode)
        for name, element in (("mxfp8", E4M3), ("mxfp4", E2M1))
        for mode in (FLOOR, RCEIL, CEIL, EVEN)
    ]


TABLE: tuple[Format, ...] = (
    Format("fp16", FLOAT16),
    Format("bf16", BFLOAT16),
    *_fp8(),
    *_mx(),
    Format("nvfp4", E2M1, (1, 16), E4M3_SCALE, weight_block=(16, 16)),
    Format("nvfp4-1x16", E2M1, (1, 16), E4M3_SCALE),
)
BY_NAME: dict[str, Format] = {one.name: one for one in TABLE}


def cast(values: Array, element: Element, seed: Optional[int] = None) -> Array:
    """The numbers rounded to the type, as float64. NaN stays NaN, also in types that have none."""
    return limit(round_to(values, element, seed), element)


def round_to(values: Array, element: Element, seed: Optional[int] = None) -> Array:
    """The numbers with the mantissa of the type, as float64, as if it had no largest number. With a seed the rounding
    is stochastic: up as often as the number is near to the upper neighbour, so that it is right in the mean."""
    with np.errstate(invalid="ignore"):  # a signalling NaN
        wide = np.asarray(values).astype(np.float64)
    finite = np.isfinite(wide)
    exponents = np.frexp(np.where(finite, wide, 0.0))[1] - 1
    steps = np.ldexp(1.0, np.maximum(exponents, element.lowest) - element.mantissa)
    counts = np.where(finite, wide, 0.0) / steps
    if seed is None:
        rounded = np.rint(counts)
    else:
        noise = draw(np.arange(counts.size, dtype=np.int64), seed).reshape(counts.shape) / RANGE
        rounded = np.copysign(np.floor(np.abs(counts) + noise), counts)
    return np.where(finite, rounded * steps, wide)


def limit(rounded: Array, element: Element) -> Array:
    """What is larger than the largest number becomes infinity, or that number in a type without infinity."""
    beyond = np.inf if element.has_inf else element.largest
    return np.where(np.abs(rounded) > element.largest, np.copysign(beyond, rounded), rounded)


def emulate(matrix: Array, form: Format, weight: bool = False, seed: Optional[int] = None) -> Array:
    """What the format keeps of a finite matrix, as float64. A weight is cut into the blocks of weights. With a seed the
    elements are rounded stochastically; scales never are."""
    wide = np.asarray(matrix).astype(np.float64)
    if form.scale is None or wide.size == 0:
        return cast(wide, form.element, seed)
    scaled = scale(wide, form, weight)
    largest = form.element.largest
    return np.multiply(cast(np.clip(scaled.elements, -largest, largest), form.element, seed), scaled.spread)


@dataclass(frozen=True)
class Scaled:
    """A matrix divided by the scales of its blocks. `spread` has the scale of each element."""

    elements: Array
    spread: Array
    scales: Array
    block: tuple[int, int]


def block_of(shape: tuple[int, ...], form: Format, weight: bool) -> tuple[int, int]:
    """Rows and columns of a block of a matrix with this shape."""
    rows, columns = (form.weight_block if weight else None) or form.block
    return rows or shape[0], columns or shape[1]


def scale(matrix: Array, form: Format, weight: bool) -> Scaled:
    """Divides a matrix that is not empty by the scales of its blocks. The format has scales."""
    narrow = np.asarray(matrix).astype(np.float32)
    rows, columns = block_of(narrow.shape, form, weight)
    scales = block_scales(largest_of_blocks(np.abs(narrow), rows, columns), form)
    spread = np.repeat(np.repeat(scales, rows, 0), columns, 1)[: narrow.shape[0], : narrow.shape[1]]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        elements = np.where(spread > 0, (narrow / spread).astype(np.float32), 0.0)
    return Scaled(elements, spread, scales, (rows, columns))


def block_scales(largest: Array, form: Format) -> Array:
    """The numbers by which stored elements are multiplied, from the largest magnitude of each block."""
    most = np.asarray(largest).astype(np.float64)
    limit = form.element.largest
    if form.scale == E8M0:
        return np.ldexp(1.0, _mx_exponents(most, form))
    if form.scale == E4M3_SCALE:
        whole = whole_scale(float(most.max()), form)
        return cast((most / limit / whole).astype(np.float32), E4M3) * whole
    scales = np.where(most > 0, most / limit, 1.0)
    if form.scale == POWER:
        return np.ldexp(1.0, np.clip(_ceil_log2(scales), -126, 127))
    return np.clip(scales, 2.0**-126, _FLOAT32_MAX).astype(np.float32).astype(np.float64)


def whole_scale(largest: float, form: Format) -> float:
    """The float32 scale of a tensor whose blocks have scales in e4m3, from its largest magnitude."""
    return float(np.float32(largest / (E4M3.largest * form.element.largest))) or 1.0


def _mx_exponents(most: Array, form: Format) -> Array:
    element = form.element
    known = np.where(most > 0, most, 2.0**-149)
    if form.mode == RCEIL:
        found = _ceil_log2(known / element.largest)
    elif form.mode == CEIL:
        found = _ceil_log2(known) - element.highest
    else:
        parts, exponents = np.frexp(known)
        if form.mode == EVEN:  # half a step of the element may carry into the next power of two
            exponents = exponents + (parts + 2.0 ** -(element.mantissa + 2) >= 1.0)
        found = exponents - 1 - element.highest
    return np.clip(found, -127, 127)


def _ceil_log2(values: Array) -> Array:
    parts, exponents = np.frexp(values)
    return np.where(parts == 0.5, exponents - 1, exponents)


def largest_of_blocks(magnitudes: Array, rows: int, columns: int) -> Array:
    """The largest magnitude of each block; blocks at the edge may be smaller."""
    by_rows = np.maximum.reduceat(magnitudes, np.arange(0, magnitudes.shape[0], rows), axis=0)
    return np.asarray(np.maximum.reduceat(by_rows, np.arange(0, magnitudes.shape[1], columns), axis=1))
