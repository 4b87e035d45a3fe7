"""What a low-precision format would do to a tensor: the reference, in numpy.

A tensor is read as a matrix: its last axis has the columns, all others are rows. A format whose blocks are not square
is measured in both orientations: along the rows, and along the columns, because a product of the backward pass adds
over the other axis than the forward product. NaN and infinity are counted and left out.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from msprobe.stats.formats import Format, block_of, limit, round_to, scale

Array = np.ndarray[Any, Any]
ROWS, COLUMNS = "rows", "columns"
"""Orientations: whether the elements of a block follow each other along a row or along a column."""
_MOST = 4096
"""The median of a block is that of at most this many of its elements, evenly spaced."""
BULK = 8.0
"""Normally distributed numbers are all within this many medians, up to one in ten million."""
_NORMAL = (256, 256)


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


def measure_damage(values: Array, form: Format, weight: bool = False) -> list[Damage]:
    """The damage in each orientation; empty for a tensor without elements."""
    if not values.size:
        return []
    with np.errstate(invalid="ignore", over="ignore"):
        wide = np.asarray(values).astype(np.float32).astype(np.float64)
    matrix = weight_matrix(wide) if weight else as_matrix(wide)
    finite = np.isfinite(matrix)
    missing = int(matrix.size - np.count_nonzero(finite))
    matrix = np.where(finite, matrix, 0.0)
    return [_measure(matrix, form, weight, missing, one) for one in orientations(form, weight)]


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


def _measure(matrix: Array, form: Format, weight: bool, missing: int, orientation: str) -> Damage:
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
    within = np.abs(matrix) <= BULK * _median(np.abs(matrix[nonzero]))
    worst = np.unravel_index(int(np.argmin(ratios)), ratios.shape)
    used = energy > 0
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
        _outlier(np.abs(matrix), rows, columns),
        _kurtosis(matrix),
    )


def _decibel(energy: float, error: float) -> float:
    if error == 0:
        return math.inf
    return -math.inf if not math.isfinite(error) or energy == 0 else 10 * math.log10(energy / error)


def _sums_of_blocks(values: Array, rows: int, columns: int) -> Array:
    by_rows = np.add.reduceat(values, np.arange(0, values.shape[0], rows), axis=0)
    return np.asarray(np.add.reduceat(by_rows, np.arange(0, values.shape[1], columns), axis=1))


def _outlier(magnitudes: Array, rows: int, columns: int) -> float:
    """The largest magnitude over the median of its block; infinite if most of the block is zero, 0 if all is."""
    y, x = np.unravel_index(int(np.argmax(magnitudes)), magnitudes.shape)
    top, left = int(y) // rows * rows, int(x) // columns * columns
    block = magnitudes[top : top + rows, left : left + columns].reshape(-1)
    largest = float(magnitudes[y, x])
    median = _median(block)
    return largest / median if median else math.inf if largest else 0.0


def _median(magnitudes: Array) -> float:
    """The upper median of at most _MOST of the elements, evenly spaced; 0 if there are none."""
    if not magnitudes.size:
        return 0.0
    sample = np.sort(magnitudes[:: -(-magnitudes.size // _MOST)])
    return float(sample[sample.size // 2])


def _kurtosis(matrix: Array) -> float:
    """The fourth moment over the square of the second, about the mean: 3 for a normal distribution, 0 if constant."""
    peak = float(np.abs(matrix).max())
    centred = matrix / peak if peak else matrix
    centred = centred - centred.mean()
    second = float(np.square(centred).mean())
    return float(np.square(np.square(centred)).mean()) / second**2 if second > 1e-30 else 0.0
