"""What a low-precision format would do to a tensor: the numpy version, which defines each number, and the call of the
C version (native/damage.c), which is used if the kernel is built.

A tensor is read as a matrix: its last axis has the columns, all others are rows. A format whose blocks are not square
is measured in both orientations: along the rows, and along the columns, because a product of the backward pass adds
over the other axis than the forward product. NaN and infinity are counted and left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from msprobe.stats import BACKEND
from msprobe.stats.formats import (
    CEIL,
    E4M3_SCALE,
    E8M0,
    EVEN,
    FLOAT32,
    FLOOR,
    POWER,
    RCEIL,
    Format,
    block_of,
    limit,
    round_to,
    scale,
    whole_scale,
)

if BACKEND == "c":
    from msprobe.stats._kernel import damage, extent

Array = np.ndarray[Any, Any]
ROWS, COLUMNS = "rows", "columns"
"""Orientations: whether the elements of a block follow each other along a row or along a column."""
_MOST = 4096
"""The median of a block is that of at most this many of its elements, evenly spaced."""
BULK = 8.0
"""Normally distributed numbers are all within this many medians, up to one in ten million."""
_NORMAL = (256, 256)
_CONSTANT = 1e-6
"""A variance below this part of the second moment is rounding."""
_SCALES = (None, FLOAT32, POWER, E8M0, E4M3_SCALE)
_MODES = (FLOOR, RCEIL, CEIL, EVEN)
"""The numbers of damage.c."""
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_SMALLEST_WHOLE = 2.0**-110


@dataclass(frozen=True)
class Damage:
    """The damage of one tensor in one format and orientation. Shares are of the nonzero elements.

    `snr` is the energy of the tensor over that of the error, in dB: infinite if nothing changes, minus infinity if an
    element becomes infinite. A few large elements can have nearly all of the energy, so `bulk` is that of the elements
    of at most BULK times the median magnitude. `worst` is the SNR of the worst block, `worst_block` its row and column
    among the blocks.
    `scale_range` is the number of powers of two between the smallest and the largest scale. `outlier` is the largest
    magnitude over the median magnitude of its block.
    """

    orientation: str
    elements: int
    not_finite: int
    underflow: float
    saturated: float
    denormal: float
    snr: float
    bulk: float
    worst: float
    worst_block: tuple[int, int]
    scale_range: int
    outlier: float
    kurtosis: float

    @property
    def level(self) -> float:
        """The number by which a tensor is judged: what is left of it, or of its bulk, in dB."""
        return min(self.snr, self.bulk)

    def as_record(self) -> dict[str, Any]:
        return {**asdict(self), "worst_block": list(self.worst_block)}


_KINDS: dict[str, Any] = {
    one.name: {"str": str, "int": int, "float": float}[str(one.type)]
    for one in fields(Damage)
    if one.name != "worst_block"
}


def as_matrix(values: Array) -> Array:
    """The elements as a matrix, with the last axis as columns; a weight of a convolution has a row per output."""
    return values.reshape(-1, values.shape[-1]) if values.ndim else values.reshape(1, 1)


def weight_matrix(values: Array) -> Array:
    """A weight as a matrix: one row for each output."""
    return values.reshape(values.shape[0], -1) if values.ndim > 1 else as_matrix(values)


def orientations(form: Format, weight: bool) -> tuple[str, ...]:
    """Both, or only the rows if a block is the same along both."""
    rows, columns = (form.weight_block if weight else None) or form.block
    return (ROWS,) if form.scale is None or rows == columns else (ROWS, COLUMNS)


def measure_damage(values: Array, form: Format, weight: bool = False, native: bool = BACKEND == "c") -> list[Damage]:
    """The damage in each orientation; empty for a tensor without elements. Without `native`, measures in numpy."""
    return measure_formats(values, (form,), weight, native)[form.name]


def measure_formats(
    values: Array, forms: Sequence[Format], weight: bool = False, native: bool = BACKEND == "c"
) -> dict[str, list[Damage]]:
    """The damage of several formats by their names; what is the same for all is measured once."""
    if not values.size:
        return {form.name: [] for form in forms}
    with np.errstate(invalid="ignore", over="ignore"):
        narrow = np.ascontiguousarray(values, np.float32)
    matrix = weight_matrix(narrow) if weight else as_matrix(narrow)
    found = Extent(*extent(matrix)) if native else None
    missing = found.not_finite if found else int(np.count_nonzero(~np.isfinite(matrix)))
    if missing:
        matrix = np.where(np.isfinite(matrix), matrix, np.float32(0))
        found = Extent(*extent(matrix)) if native else None
    wide = None if found else matrix.astype(np.float64)
    reach = _reach(matrix)
    return {
        form.name: _measure_native(matrix, form, weight, missing, reach, found)
        if found is not None and not _is_too_small(found.largest, form)
        else [
            _measure(matrix.astype(np.float64) if wide is None else wide, form, weight, missing, reach, one)
            for one in orientations(form, weight)
        ]
        for form in forms
    }


def _is_too_small(peak: float, form: Format) -> bool:
    """Whether the inverse of a scale may not fit float32, which the C version needs."""
    return form.scale == E4M3_SCALE and whole_scale(peak, form) < _SMALLEST_WHOLE


def worst_of(damages: list[Damage]) -> Damage:
    """The orientation that loses most."""
    return min(damages, key=lambda one: one.level)


def usual_damage(form: Format) -> Damage:
    """The damage of the format for normally distributed numbers."""
    return worst_of(measure_damage(np.random.default_rng(0).normal(size=_NORMAL), form))


def read_damage(records: Any) -> list[Damage]:
    """The damage of each orientation, from what `as_record` wrote; a damaged one is left out."""
    found = []
    for one in records if isinstance(records, list) else ():
        try:
            block = one["worst_block"]
            values = {key: kind(one[key]) for key, kind in _KINDS.items()}
            found.append(Damage(**values, worst_block=(int(block[0]), int(block[1]))))
        except (KeyError, TypeError, ValueError, IndexError, OverflowError):
            continue
    return found


class Extent(NamedTuple):
    """What `extent` returns. The moments are those of the elements, about zero."""

    largest: float
    place: int
    not_finite: int
    zeros: int
    first: float
    second: float
    third: float
    fourth: float


def _measure_native(
    matrix: Array, form: Format, weight: bool, missing: int, reach: float, size: Extent
) -> list[Damage]:
    element, peak, along = form.element, size.largest, orientations(form, weight)
    norm = math.ldexp(1.0, -min(max(math.frexp(peak)[1], -126), 126)) if peak else 1.0

    def measured(block: tuple[int, int], both: bool = False) -> Any:
        return damage(
            matrix, element.mantissa, element.lowest, element.largest, element.has_inf, _SCALES.index(form.scale),
            _MODES.index(form.mode or FLOOR), *block, reach, norm, whole_scale(peak, form),
            peak if block == matrix.shape else 0.0, both,
        )  # fmt: skip

    blocks = [block_of(matrix.shape, form, weight), block_of(matrix.shape[::-1], form, weight)[::-1]][: len(along)]
    if len(along) > 1 and blocks[0] == blocks[1][::-1]:  # short blocks
        found = measured(blocks[0], both=True)
    else:
        found = [measured(block) for block in blocks]
    return [_as_damage(matrix, missing, size, *each) for each in zip(along, blocks, found)]


def _as_damage(
    matrix: Array, missing: int, size: Extent, orientation: str, block: tuple[int, int], found: Any
) -> Damage:
    zero, beyond, tiny, energy, error, bulk, bulk_error, ratio, y, x, exponents = found
    number = matrix.size - size.zeros or 1
    variance = size.second - size.first**2
    fourth = size.fourth - 4 * size.first * size.third + 6 * size.first**2 * size.second - 3 * size.first**4
    return Damage(
        orientation,
        matrix.size,
        missing,
        (zero - size.zeros) / number,
        beyond / number,
        tiny / number,
        _decibel(energy, error),
        _decibel(bulk, bulk_error),
        _decibel(1.0, ratio),
        (y, x) if orientation == ROWS else (x, y),
        exponents,
        _outlier(matrix, *block, divmod(size.place, matrix.shape[1])),
        fourth / variance**2 if variance > _CONSTANT * size.second else 0.0,
    )


def _measure(matrix: Array, form: Format, weight: bool, missing: int, reach: float, orientation: str) -> Damage:
    if orientation == COLUMNS:
        matrix = np.ascontiguousarray(matrix.T)
    element = form.element
    if form.scale is None:
        elements, spread, exponents = matrix, np.ones(1), np.zeros(1, int)
    else:
        scaled = scale(matrix, form, weight)
        elements, spread = scaled.elements, scaled.spread
        exponents = np.frexp(scaled.scales)[1]
    rounded = round_to(elements, element)
    beyond = np.abs(rounded) > element.largest
    kept = np.clip(rounded, -element.largest, element.largest) if form.scale else limit(rounded, element)
    nonzero = matrix != 0
    number = int(np.count_nonzero(nonzero)) or 1
    tiny = (rounded != 0) & (np.abs(rounded) < 2.0**element.lowest)
    rows, columns = block_of(matrix.shape, form, weight)
    energy = _sums_of_blocks(np.square(matrix), rows, columns)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.square(kept * spread - matrix)
        errors = _sums_of_blocks(squares, rows, columns)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(errors > 0, energy / errors, np.inf)
    within = np.abs(matrix) <= reach
    worst = np.unravel_index(int(np.argmin(ratios)), ratios.shape)
    used = energy > 0 if form.scale is None else (energy > 0) & (scaled.scales > 0)
    return Damage(
        orientation,
        matrix.size,
        missing,
        int(np.count_nonzero(nonzero & (rounded == 0))) / number,
        int(np.count_nonzero(beyond)) / number,
        int(np.count_nonzero(tiny)) / number,
        _decibel(float(energy.sum()), float(errors.sum())),
        _decibel(float(np.square(matrix[within]).sum()), float(squares[within].sum())),
        _decibel(float(energy[worst]), float(errors[worst])),
        (int(worst[0]), int(worst[1])),
        int(exponents[used].max() - exponents[used].min()) if form.scale and used.any() else 0,
        _outlier(matrix, rows, columns, divmod(int(np.argmax(np.abs(matrix))), matrix.shape[1])),
        _kurtosis(matrix),
    )


def _decibel(energy: float, error: float) -> float:
    if error == 0:
        return math.inf
    return -math.inf if not math.isfinite(error) or energy == 0 else 10 * math.log10(energy / error)


def _sums_of_blocks(values: Array, rows: int, columns: int) -> Array:
    by_rows = np.add.reduceat(values, np.arange(0, values.shape[0], rows), axis=0)
    return np.asarray(np.add.reduceat(by_rows, np.arange(0, values.shape[1], columns), axis=1))


def _outlier(matrix: Array, rows: int, columns: int, place: tuple[int, int]) -> float:
    """The largest magnitude, at `place`, over the median of its block; infinite if most of the block is zero, 0 if all
    is."""
    y, x = place
    top, left = y // rows * rows, x // columns * columns
    block = matrix[top : top + rows, left : left + columns]
    step = -(-block.size // _MOST)
    median = _median(np.abs(block.reshape(-1)[::step] if step > 1 else block.reshape(-1)))
    largest = abs(float(matrix[y, x]))
    return largest / median if median else math.inf if largest else 0.0


def _reach(matrix: Array) -> float:
    """The largest magnitude of the bulk, from at most _MOST elements, evenly spaced, without zeros."""
    sample = np.abs(matrix.reshape(-1)[:: -(-matrix.size // _MOST)])
    return min(BULK * _median(sample[sample > 0]), _FLOAT32_MAX)


def _median(magnitudes: Array) -> float:
    """The upper median; 0 if there are no elements."""
    half = magnitudes.size // 2
    return float(np.partition(magnitudes, half)[half]) if magnitudes.size else 0.0


def _kurtosis(matrix: Array) -> float:
    """The fourth moment over the square of the second, about the mean: 3 for a normal distribution, 0 if constant."""
    peak = float(np.abs(matrix).max())
    even = matrix / peak if peak else matrix
    centred = even - even.mean()
    second = float(np.square(centred).mean())
    fourth = float(np.square(np.square(centred)).mean())
    return fourth / second**2 if second > _CONSTANT * float(np.square(even).mean()) else 0.0
