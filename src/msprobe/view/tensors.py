"""Saved tensors, page by page: slices for the heatmap, and one pass for histograms and the worst elements.

Files are memory-mapped. A slice reads only its own pages, at most MOST_READ elements. The pass works in blocks and
stops when its time is over: a tensor of a gigabyte is never completely in memory, and the user does not wait for it.
"""

from __future__ import annotations

import base64
import threading
import time
from typing import Any, Optional

import numpy as np

from msprobe.compare.rows import Row, is_tensor
from msprobe.dump.errors import DumpError
from msprobe.dump.tensor_files.codec import load
from msprobe.view.block_scales import FORMATS, picture
from msprobe.view.material import Sides

Array = np.ndarray[Any, Any]
BLOCK = 1 << 19
BINS = 60
WORST = 20
MOST_CELLS = 256
MOST_READ = 1 << 22
TARGET, GOLDEN, DIFFERENCE, NOT_FINITE = "target", "golden", "difference", "not_finite"
MODES = (TARGET, GOLDEN, DIFFERENCE, NOT_FINITE)
EXPONENTS = (-12, 8)
"""The histogram of the difference has one bin for zero, then the powers of ten between these."""


class TensorPair:
    """The saved tensor of a row, of one side or both."""

    def __init__(self, row: Row, sides: Sides) -> None:
        self.target = _opened(row.target, sides[0])
        self.golden = _opened(row.golden, sides[1])
        one = self.target if self.target is not None else self.golden
        if one is None:
            raise DumpError(f"No tensor of {row.name[:200]} was saved: collect it with task tensor.")
        if one.size == 0:
            raise DumpError(f"The tensor of {row.name[:200]} is empty: its shape is {list(one.shape)}.")
        self.shape: tuple[int, ...] = one.shape
        self.same_shape = self.target is not None and self.golden is not None and self.target.shape == self.golden.shape
        self.sweep = Sweep(self)

    def describe(self) -> dict[str, Any]:
        modes = [mode for mode in MODES if self._has(mode)]
        known = {side: None if array is None else {"dtype": str(array.dtype), "shape": list(array.shape)}
                 for side, array in ((TARGET, self.target), (GOLDEN, self.golden))}  # fmt: skip
        return {"shape": list(self.shape), "modes": modes, "sides": known, "formats": FORMATS}

    def _has(self, mode: str) -> bool:
        if mode == TARGET:
            return self.target is not None
        if mode == GOLDEN:
            return self.golden is not None
        return self.same_shape if mode == DIFFERENCE else True

    def slice(self, mode: str, axes: tuple[int, int], index: list[int], window: Optional[list[int]]) -> dict[str, Any]:
        """At most MOST_CELLS by MOST_CELLS numbers over two axes, at `index` on the others.

        A cell is the element with the largest magnitude in its block. `every` is larger than one if the slice is so
        large that only some of its rows and columns were read."""
        if mode not in MODES or not self._has(mode):
            raise DumpError(f"This tensor cannot be shown as {mode!r}.")
        shape = self.golden.shape if mode == GOLDEN and self.golden is not None else self.shape
        y, x = _checked_axes(axes, len(shape))
        height, width = (shape[y] if y is not None else 1), (shape[x] if x is not None else 1)
        top, bottom, left, right = _checked_window(window, height, width)
        every = 1
        while ((bottom - top + every - 1) // every) * ((right - left + every - 1) // every) > MOST_READ:
            every *= 2
        where: list[Any] = [min(max(at, 0), shape[axis] - 1) for axis, at in enumerate(_padded(index, len(shape)))]
        if y is not None:
            where[y] = slice(top, bottom, every)
        if x is not None:
            where[x] = slice(left, right, every)
        picked = self._picture(mode, tuple(where))
        picked = picked.T if y is not None and x is not None and y > x else picked
        cells = _shrink(picked.reshape((bottom - top + every - 1) // every, -1))
        return {
            "height": cells.shape[0], "width": cells.shape[1], "window": [top, bottom, left, right],
            "size": [height, width], "every": every,
            "values": base64.b64encode(cells.astype("<f4").tobytes()).decode(),
        }  # fmt: skip

    def scales(self, side: str, name: str, along: str, axes: tuple[int, int], index: list[int]) -> dict[str, Any]:
        """The scales of a format in a slice over two axes, at `index` on the others; at most MOST_READ elements."""
        array = self.golden if side == GOLDEN else self.target
        if array is None:
            raise DumpError(f"No tensor of the {side[:20]} side was saved.")
        y, x = _checked_axes(axes, array.ndim)
        height, width = (array.shape[y] if y is not None else 1), (array.shape[x] if x is not None else 1)
        if height * width > MOST_READ:
            raise DumpError(f"This slice has {height} x {width} elements; scales are drawn of at most {MOST_READ}.")
        where: list[Any] = [
            min(max(at, 0), array.shape[axis] - 1) for axis, at in enumerate(_padded(index, array.ndim))
        ]
        for axis in (y, x):
            if axis is not None:
                where[axis] = slice(None)
        picked = _floats(array[tuple(where)])
        picked = picked.T if y is not None and x is not None and y > x else picked
        return picture(picked.reshape(height, width), name, along)

    def _picture(self, mode: str, where: tuple[Any, ...]) -> Array:
        with np.errstate(all="ignore"):
            if mode == TARGET and self.target is not None:
                return _floats(self.target[where])
            if mode == GOLDEN and self.golden is not None:
                return _floats(self.golden[where])
            if mode == DIFFERENCE and self.target is not None and self.golden is not None:
                ours, theirs = _floats(self.target[where]), _floats(self.golden[where])
                return np.where(_same(ours, theirs), 0.0, ours - theirs)
            # 1: only the target has NaN or infinity there, 2: only the golden run, 3: both
            total: Any = np.zeros(())
            for weight, array in ((1, self.target), (2, self.golden)):
                if array is not None and array.shape == self.shape:
                    total = total + weight * ~np.isfinite(_floats(array[where]))
            return np.asarray(total, np.float64)


class Sweep:
    """Histograms of both sides and of the difference, and the worst elements: block by block."""

    def __init__(self, pair: TensorPair) -> None:
        self._pair = pair
        self._arrays = [(name, array) for name, array in ((TARGET, pair.target), (GOLDEN, pair.golden))
                        if array is not None]  # fmt: skip
        self._flat = {name: _flat(array) for name, array in self._arrays}
        self._size = max(array.size for _, array in self._arrays)
        self._at = 0
        self._edges: Optional[Array] = None
        self._counts = {name: np.zeros(BINS, np.int64) for name, _ in self._arrays}
        self._special = {name: [0, 0] for name, _ in self._arrays}
        low, high = EXPONENTS
        self._difference = np.zeros(high - low + 1, np.int64)
        self._worst: list[tuple[float, int]] = []
        self._lock = threading.Lock()

    def advance(self, seconds: float) -> dict[str, Any]:
        """Works for that long, and says what is known so far; `share` is how much of the tensor was read."""
        with self._lock:  # two tabs may ask at once: each block is counted once
            return self._advance(seconds)

    def _advance(self, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        both = self._pair.same_shape
        if self._edges is None:
            self._edges = self._range()
        while self._at < self._size and time.monotonic() < end:
            self._block(self._at, self._at + BLOCK)
            self._at += BLOCK
        return {
            "share": 1.0 if self._size == 0 else min(self._at / self._size, 1.0),
            "edges": [float(self._edges[0]), float(self._edges[-1])],
            "histogram": {name: counts.tolist() for name, counts in self._counts.items()},
            "special": self._special,
            "difference": {"from": EXPONENTS[0], "counts": self._difference.tolist()} if both else None,
            "worst": [self._element(at) for _, at in self._worst] if both else [],
        }

    def _range(self) -> Array:
        """The limits of the histogram, from a sample of pages and not from the complete tensor."""
        lows, highs = [0.0], [0.0]
        for flat in self._flat.values():
            step = max(1, flat.size // (1 << 16))
            sample = _floats(flat[::step] if step < 64 else np.concatenate([flat[at : at + 1024] for at in
                             range(0, flat.size, max(flat.size // 64, 1))]))  # fmt: skip
            sample = sample[np.isfinite(sample)]
            if sample.size:
                lows.append(float(sample.min()))
                highs.append(float(sample.max()))
        low, high = min(lows), max(highs)
        return np.linspace(low, high if high > low else low + 1.0, BINS + 1)

    def _block(self, start: int, end: int) -> None:
        blocks = {name: _floats(flat[start:end]) for name, flat in self._flat.items()}
        assert self._edges is not None
        low, high = self._edges[0], self._edges[-1]
        for name, block in blocks.items():
            finite = block[np.isfinite(block)]
            self._special[name][0] += int(np.isnan(block).sum())
            self._special[name][1] += int(np.isinf(block).sum())
            counted, _ = np.histogram(np.clip(finite, low, high), BINS, (low, high))
            self._counts[name] += counted
        if not self._pair.same_shape:
            return
        with np.errstate(all="ignore"):
            away = np.abs(blocks[TARGET] - blocks[GOLDEN])
        same = _same(blocks[TARGET], blocks[GOLDEN])
        away = np.where(same, 0.0, np.where(np.isnan(away), np.inf, away))
        with np.errstate(divide="ignore"):
            powers = np.floor(np.log10(away))
        low_power, high_power = EXPONENTS
        bins = np.where(same, 0, np.clip(powers, low_power, high_power - 1) - low_power + 1).astype(np.int64)
        self._difference += np.bincount(bins, minlength=high_power - low_power + 1)
        count = min(WORST, away.size)
        places = np.argpartition(away, -count)[-count:]
        found = [(float(away[place]), start + int(place)) for place in places if away[place] > 0]
        self._worst = sorted([*self._worst, *found], key=lambda one: (-one[0], one[1]))[:WORST]

    def _element(self, at: int) -> dict[str, Any]:
        index = [int(one) for one in np.unravel_index(at, self._pair.shape)]
        values = {name: float(_floats(flat[at : at + 1])[0]) for name, flat in self._flat.items()}
        return {"index": index, **values, "difference": abs(values[TARGET] - values[GOLDEN])}


def _opened(item: Any, source: Any) -> Optional[Array]:
    if source is None or not is_tensor(item) or not item.get("data_name"):
        return None
    array = load(source.tensor_path(item["data_name"]), mmap=True)
    return array.reshape(1) if array.ndim == 0 else array


def _flat(array: Array) -> Array:
    """The array in C order; copied only if the file has another order."""
    return array.reshape(-1)


def _same(ours: Array, theirs: Array) -> Array:
    """Where both have the same number, the same infinity or NaN."""
    same: Array = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    return same


def _floats(array: Any) -> Array:
    if np.iscomplexobj(array):
        array = np.abs(array)
    return np.asarray(array).astype(np.float64)


def _checked_axes(axes: tuple[int, int], rank: int) -> tuple[Optional[int], Optional[int]]:
    if rank == 1:
        return None, 0
    y, x = axes
    if not (0 <= y < rank and 0 <= x < rank) or y == x:
        raise DumpError(f"Choose two different axes between 0 and {rank - 1}.")
    return y, x


def _checked_window(window: Optional[list[int]], height: int, width: int) -> tuple[int, int, int, int]:
    if window is None or len(window) != 4:
        return 0, height, 0, width
    top, left = min(max(window[0], 0), max(height - 1, 0)), min(max(window[2], 0), max(width - 1, 0))
    return top, min(max(window[1], top + 1), height), left, min(max(window[3], left + 1), width)


def _padded(index: list[int], length: int) -> list[int]:
    return [*index[:length], *[0] * (length - len(index))]


def _shrink(picture: Array) -> Array:
    """At most MOST_CELLS in each direction. Each block gives its element with the largest magnitude; NaN wins."""
    for axis in (0, 1):
        length = picture.shape[axis]
        if length > MOST_CELLS:
            factor = -(-length // MOST_CELLS)
            cut = np.array_split(picture, range(factor, length, factor), axis=axis)
            picture = np.stack([_strongest(part, axis) for part in cut], axis=axis)
    return picture


def _strongest(block: Array, axis: int) -> Array:
    place = np.argmax(np.where(np.isnan(block), np.inf, np.abs(block)), axis=axis)
    return np.take_along_axis(block, np.expand_dims(place, axis), axis).squeeze(axis)
