"""Which format a quantised tensor has, from what was recorded of its parts, and what is wrong with its numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from msprobe.compare.measure.distance import number
from msprobe.dump.plural import count
from msprobe.stats.dtypes import BY_NAME as BY_DTYPE
from msprobe.stats.formats import (
    CEIL,
    E2M1,
    E4M3,
    E4M3_SCALE,
    E5M2,
    E8M0,
    EVEN,
    FLOAT32,
    FLOOR,
    POWER,
    RCEIL,
    TABLE,
    Element,
    Format,
    block_scales,
    emulate,
    largest_of_blocks,
)

Array = np.ndarray[Any, Any]

OFF = 0.15
"""A block whose numbers are larger or smaller by this part has a wrong scale: rounding averages out."""
SAME = 0.02
"""Factors that differ by less are one."""
MOST = 0.6
"""A factor is that of a block if this share of its numbers has it."""
NEARLY = 0.95
"""Scales are transposed if this share of the blocks agrees."""
LOST = 0.3
"""A block has lost most of its numbers if its error has this share of its energy."""
FEW = 0.25
"""If more blocks than this share are off, no single one is named."""


@dataclass(frozen=True)
class Layout:
    """How a quantised matrix is stored. `block` has rows and columns, 0 for all; `scale` is the kind of the scales."""

    elements: tuple[Element, ...]
    scale: str
    block: tuple[int, int]
    highest: float
    """The largest scale, as it was recorded."""
    rounding: float
    """What rounding the numbers to the dtype of the tensor may change, as a part of them."""

    @property
    def axis(self) -> Optional[int]:
        """The axis of the blocks; None if a block is the matrix, or square."""
        rows, columns = self.block
        return None if rows == columns else 0 if columns == 1 else 1 if rows == 1 else None

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for tensors of one recipe: along which axis a block lies is not part of it."""
        along = tuple(sorted(self.block)) if self.axis is None else (1, self.length)
        return tuple(one.name for one in self.elements), self.scale, along

    @property
    def length(self) -> int:
        """Elements of a block along its axis; 0 for all of a row."""
        return max(self.block)

    def forms(self) -> Iterator[Format]:
        """The formats that it may be: how a scale was rounded is not recorded."""
        modes: dict[str, list[tuple[str, Optional[str]]]] = {
            E8M0: [(E8M0, mode) for mode in (FLOOR, RCEIL, CEIL, EVEN)],
            FLOAT32: [(FLOAT32, None), (POWER, None)],
        }
        block = self.block if self.axis != 0 else self.block[::-1]
        for element in self.elements:
            for scale, mode in modes.get(self.scale, [(self.scale, None)]):
                known = (form for form in TABLE if (form.element, form.scale, form.mode) == (element, scale, mode))
                name = next((form.name for form in known if block in (form.block, form.weight_block)), "")
                yield Format(name or f"{element.name} in blocks of {block[0]}x{block[1]}", element, block, scale, mode)

    def text(self) -> str:
        kinds = " or ".join(one.name for one in self.elements)
        rows, columns = self.block
        if self.block == (0, 0):
            return f"{kinds} with one scale"
        return f"{kinds} with scales of {rows or 'all'} x {columns or 'all'} elements"


def layout_of(item: dict[str, Any]) -> Optional[Layout]:
    """From the member `quantised` of a recorded matrix; None if it is not of a known kind."""
    parts = item.get("quantised")
    shape = item.get("shape")
    if not isinstance(parts, dict) or not isinstance(shape, list) or len(shape) != 2:
        return None
    sizes = {name: math.prod(part["shape"]) for name, part in parts.items() if _is_part(part)}
    if len(sizes) < 2:
        return None
    data, *scales = sorted(sizes, key=lambda name: -sizes[name])
    elements = _elements(parts[data], sizes[data], math.prod(shape))
    finest = parts[scales[0]]
    kind = _scale_kind(str(finest.get("dtype", "")))
    block = _block(shape, finest["shape"])
    if not elements or kind is None or block is None:
        return None
    whole = [parts[name].get("Max") for name in scales[1:]]
    highest = _largest_scale(item, parts[data], finest)
    if highest is None or any(not isinstance(one, (int, float)) for one in whole):
        return None
    return Layout(elements, kind, block, math.prod([highest, *map(float, whole)]), _rounding(str(item.get("dtype"))))


def _rounding(dtype: str) -> float:
    row = BY_DTYPE.get(dtype.rpartition(".")[2])
    return max(1e-5, 2.0 ** -(row.mantissa + 1)) if row is not None and row.mantissa else 1e-5


def _largest_scale(item: dict[str, Any], data: dict[str, Any], scale: dict[str, Any]) -> Optional[float]:
    """The largest number by which stored elements are multiplied. torchao.float8 stores what they are divided by: the
    largest element tells which of both it is."""
    real, stored = (max(abs(_number(one, "Max")), abs(_number(one, "Min"))) for one in (item, data))
    most, least = _number(scale, "Max"), _number(scale, "Min")
    if not math.isfinite(most):
        return None
    told = scale.get("dtype") == "torch.float32" and "float8" in str(data.get("dtype"))  # not of bytes
    if not told or not all(0 < one < math.inf for one in (real, stored, most, least)):
        return most
    times, by = (abs(math.log(stored * factor / real)) for factor in (most, 1 / least))
    return most if times <= by else 1 / least


def _number(item: dict[str, Any], key: str) -> float:
    found = number(item.get(key))
    return math.nan if found is None else found


def _is_part(part: Any) -> bool:
    sizes = part.get("shape") if isinstance(part, dict) else None
    return isinstance(sizes, list) and all(isinstance(size, int) for size in sizes)


def _elements(data: dict[str, Any], stored: int, number: int) -> tuple[Element, ...]:
    dtype = str(data.get("dtype", ""))
    if 2 * stored == number or "float4" in dtype:
        return (E2M1,)
    if "e4m3" in dtype:
        return (E4M3,)
    return (E5M2,) if "e5m2" in dtype else (E4M3, E5M2) if dtype.endswith("uint8") else ()


def _scale_kind(dtype: str) -> Optional[str]:
    kinds = (("e8m0", E8M0), ("uint8", E8M0), ("e4m3", E4M3_SCALE), ("float32", FLOAT32))
    return next((kind for word, kind in kinds if word in dtype), None)


def _block(shape: list[int], scales: list[int]) -> Optional[tuple[int, int]]:
    number = math.prod(scales)
    if number == 1:
        return 0, 0
    if len(scales) == 2 and all(scales) and not (shape[0] % scales[0] or shape[1] % scales[1]):
        rows, columns = shape[0] // scales[0], shape[1] // scales[1]
        return (0 if rows == shape[0] > 1 else rows), (0 if columns == shape[1] > 1 else columns)
    length = shape[0] * shape[1] // number if number else 0
    return (1, length) if length and shape[1] % length == 0 else None


def decibel(values: Array, reference: Array) -> float:
    energy, error = float(np.square(reference).sum()), float(np.square(values - reference).sum())
    if error == 0:
        return math.inf
    return 10 * math.log10(energy / error) if energy and math.isfinite(error) else -math.inf


def best_form(values: Array, reference: Array, layout: Layout) -> tuple[Format, float]:
    """The format with most of these numbers, and what it keeps of the reference in dB."""
    ours, theirs = (values.T, reference.T) if layout.axis == 0 else (values, reference)
    found = []
    for form in layout.forms():
        kept = emulate(theirs, form)
        found.append((float(np.mean(np.isclose(ours, kept, layout.rounding, 0.0))), decibel(kept, theirs), form))
    _, given, form = max(found, key=lambda one: one[:2])
    return form, given


def has_lost_block(values: Array, reference: Array, layout: Layout, form: Format) -> bool:
    """Whether a block lost most of its numbers although the format does not: it hides among many others."""
    turned = emulate(reference.T, form).T if layout.axis == 0 else emulate(reference, form)
    sizes = _sizes(values, layout)
    error, given, energy = (_sum(np.square(one), *sizes) for one in (values - reference, turned - reference, reference))
    return bool(np.any((error > LOST * energy) & (error > 10 * given) & (energy > 1e-6 * energy.max())))


def scale_factor(reference: Array, layout: Layout, form: Format) -> float:
    """The recorded largest scale over the one that the format gives."""
    most = largest_of_blocks(np.abs(reference), *_sizes(reference, layout))
    wanted = float(block_scales(most, form).max())
    return layout.highest / wanted if wanted else 1.0


def _sizes(matrix: Array, layout: Layout) -> tuple[int, int]:
    return layout.block[0] or matrix.shape[0], layout.block[1] or matrix.shape[1]


def explain(values: Array, reference: Array, layout: Layout, form: Format) -> str:
    """What is wrong with the numbers; each sentence says only what the numbers show."""
    rows, columns = _sizes(values, layout)
    kept = emulate(reference.T, form).T if layout.axis == 0 else emulate(reference, form)
    energy = _sum(np.square(kept), rows, columns)
    used = energy > 1e-12 * energy.max()
    factors = np.where(used, _sum(values * kept, rows, columns) / np.where(used, energy, 1.0), 1.0)
    zero = used & (_sum(np.abs(values), rows, columns) == 0)
    off = used & (np.abs(factors - 1) > OFF)
    if not np.any(values):
        return "all of it is zero"
    if zero.any() and zero.sum() <= FEW * used.sum():
        y, x = (int(place) for place in np.unravel_index(int(np.argmax(zero)), zero.shape))
        return f"block ({y}, {x}) is zero{_more(zero)}"
    common = float(np.median(factors[used]))
    if abs(common - 1) > OFF and np.all(np.abs(factors[used] / common - 1) < OFF) and _is_scaled(values, kept, common):
        return f"all of it is {_times(common)}"
    if _is_turned(factors, used, reference, rows, columns, form):
        return "its scales are in the order of the transposed matrix"
    if off.any() and off.sum() <= FEW * used.sum():
        far = np.abs(np.log(np.abs(factors) + 1e-9)) * off
        y, x = (int(place) for place in np.unravel_index(int(np.argmax(far)), off.shape))
        said = _of_block(*(one[y * rows : (y + 1) * rows, x * columns : (x + 1) * columns] for one in (values, kept)))
        if said:
            return f"{said.format(f'block ({y}, {x})')}{_more(off)}"
    clipped = _clipped(values, kept)
    if clipped:
        return (
            f"{100 * clipped:.2g}% of it is cut off at {float(np.abs(values).max()):.3g}, though the largest is "
            f"{float(np.abs(reference).max()):.3g}: the scale is too small"
        )
    if off.sum() > FEW * used.sum():
        return f"the scales of {int(off.sum())} of {count(int(used.sum()), 'block')} are wrong"
    moved = float(np.mean(~np.isclose(values, kept, layout.rounding, 0.0)))
    return (
        f"{100 * moved:.2g}% of its numbers are not the nearest ones: it was rounded more than once, or more coarsely"
    )


def _of_block(ours: Array, theirs: Array) -> str:
    """What is wrong with one block, if the numbers show it."""
    factor = _factor(ours, theirs)
    if abs(factor - 1) > OFF and _is_scaled(ours, theirs, factor):
        return f"the scale of {{}} is {_times(factor)}"
    if _clipped(ours, theirs):
        most, largest = float(np.abs(ours).max()), float(np.abs(theirs).max())
        return f"{{}} is cut off at {most:.3g}, though its largest is {largest:.3g}: its scale is too small"
    return ""


def _factor(ours: Array, theirs: Array) -> float:
    used = theirs != 0
    return float(np.median(ours[used] / theirs[used])) if used.any() else 1.0


def _is_scaled(ours: Array, theirs: Array, factor: float) -> bool:
    """Whether most numbers have this factor."""
    used = theirs != 0
    return bool(np.mean(np.abs(ours[used] - factor * theirs[used]) <= 0.05 * np.abs(factor * theirs[used])) > MOST)


def _sum(values: Array, rows: int, columns: int) -> Array:
    by_rows = np.add.reduceat(values, np.arange(0, values.shape[0], rows), axis=0)
    return np.asarray(np.add.reduceat(by_rows, np.arange(0, values.shape[1], columns), axis=1))


def _clipped(values: Array, kept: Array) -> float:
    """The share of the numbers that have the largest magnitude of all, though they are larger by an eighth; 0 if the
    others are not as they must be."""
    most = np.abs(values).max()
    within = np.abs(kept) <= most
    if abs(_factor(values[within], kept[within]) - 1) > OFF:
        return 0.0
    return float(np.mean((np.abs(values) == most) & (np.abs(kept) > 1.125 * most)))


def _is_turned(factors: Array, used: Array, reference: Array, rows: int, columns: int, form: Format) -> bool:
    """Whether the factors of the blocks are those of scales that were written row by row and read column by column, or
    the other way: nearly every block that is off, or would be, must have the scale of the block at the other place."""
    scales = block_scales(largest_of_blocks(np.abs(reference), rows, columns), form)
    used = used & (scales > 0)
    found = np.log(np.maximum(np.abs(factors[used]), 1e-9))
    for order in (scales.T.reshape(scales.shape), scales.reshape(scales.shape[::-1]).T):
        wanted = np.log(np.maximum(order[used], 1e-300) / scales[used])
        moved = (np.abs(wanted) > OFF) | (np.abs(found) > OFF)
        if moved.sum() > 1 and np.mean(np.abs(found - wanted)[moved] < OFF) > NEARLY:
            return True
    return False


def _more(marked: Array) -> str:
    return f" (and {count(int(marked.sum()) - 1, 'more block')})" if marked.sum() > 1 else ""


def _times(factor: float) -> str:
    if factor < 0:
        return "negative"
    return f"{factor:.3g} times too large" if factor > 1 else f"{1 / max(factor, 1e-30):.3g} times too small"
