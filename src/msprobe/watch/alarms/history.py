"""The usual values: the last values of every target, their median, and a scale that is robust to outliers.

Values are logarithms (base 10) of norms, so a scale is a factor. All targets are handled together, as rows of arrays.
Medians are computed only every few steps: they move slowly, and sorting is the expensive part.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
WINDOW = 64
_REFRESH = 8
_NORMAL = 1.4826
"""The median distance from the median, times this, is the standard deviation of a normal distribution."""
SETTLED = 20
"""Watched steps until a target has a usual value; the first steps of a training are not typical."""
_BASE_AFTER = 48
LEAST_SCALE = 0.02


def middle(rows: Array) -> Array:
    """The median of each row, ignoring NaN; NaN if the row has nothing else."""
    ordered = np.sort(rows, axis=1)  # NaN are sorted last
    count = np.count_nonzero(~np.isnan(rows), axis=1)
    found: Array = ordered[np.arange(len(rows)), np.maximum(count - 1, 0) // 2]
    return found


def extended(rows: Array, length: int, value: Any) -> Array:
    """The same array if it is long enough, else a longer one."""
    more = length - len(rows)
    return rows if more <= 0 else np.append(rows, np.full(more, value, rows.dtype))


class History:
    """One row per target; rows are added as targets appear."""

    def __init__(self) -> None:
        self.recent = np.empty((0, WINDOW))
        self.steps = np.full(WINDOW, -1, np.int64)
        self.count = np.empty(0, np.int64)
        self.median = np.empty(0)
        self.scale = np.empty(0)
        self.top = np.empty(0)
        self.base = np.empty(0)
        self.peak = np.empty(0)  # the highest median since the base
        self.normal_until = np.empty(0, np.int64)  # the last step whose value was not far above the base
        self._ticks = 0

    def grow(self, rows: int) -> None:
        more = rows - len(self.count)
        if more <= 0:
            return
        self.recent = np.vstack([self.recent, np.full((more, WINDOW), np.nan)])
        self.count = np.append(self.count, np.zeros(more, np.int64))
        self.median, self.scale, self.top, self.base, self.peak = (
            np.append(old, np.full(more, np.nan)) for old in (self.median, self.scale, self.top, self.base, self.peak)
        )
        self.normal_until = np.append(self.normal_until, np.full(more, -1, np.int64))

    def add(self, step: int, values: Array) -> None:
        """Adds the values of a step, after the rules have compared them with the usual values."""
        at = self._ticks % WINDOW
        self.recent[:, at] = values
        self.steps[at] = step
        self.count += ~np.isnan(values)
        self.top = np.fmax(self.top, values)
        self._ticks += 1
        if self._ticks % _REFRESH == 0 or self._ticks == SETTLED:
            self._refresh()
        usual = values - self.base <= np.maximum(3 * self.scale, 0.2)
        usual |= np.isnan(self.base)
        self.normal_until[usual] = step

    def _refresh(self) -> None:
        self.median = middle(self.recent)
        distance = middle(np.abs(self.recent - self.median[:, None]))
        self.scale = np.maximum(_NORMAL * distance, LEAST_SCALE)
        self.top = np.fmax.reduce(self.recent, axis=1)
        first = np.isnan(self.base) & (self.count >= _BASE_AFTER)
        self.base[first] = self.median[first]
        self.peak = np.where(np.isnan(self.base), np.nan, np.fmax(self.peak, self.median))

    @property
    def settled(self) -> Array:
        enough: Array = (self.count >= SETTLED) & ~np.isnan(self.median)
        return enough

    @property
    def learnt(self) -> Array:
        """Targets that are now far below what was usual once: gradients when the model has learnt its data."""
        far: Array = self.median < self.peak - 1
        return far

    def last(self, row: int, most: int = WINDOW) -> list[tuple[int, float]]:
        """The last values of a target, as (step, logarithm)."""
        order = [index % WINDOW for index in range(self._ticks - most, self._ticks) if index >= 0]
        pairs = [(int(self.steps[index]), float(self.recent[row, index])) for index in order]
        return [pair for pair in pairs if pair[1] == pair[1]]

    def around(self, row: int, most: int = 6) -> tuple[tuple[int, float], ...]:
        """The last values of a target, as (step, norm)."""
        return tuple((step, 10**value) for step, value in self.last(row, most))


class Streak:
    """Counts for how many watched steps a condition has held; knows the step at which it began."""

    def __init__(self) -> None:
        self.length = np.empty(0, np.int64)
        self.began = np.empty(0, np.int64)
        self._runs = False

    def update(self, step: int, holds: Array, known: Array) -> None:
        """`known` is False if this step says nothing about a target: its streak neither grows nor ends."""
        more = len(holds) - len(self.length)
        if more > 0:
            self.length = np.append(self.length, np.zeros(more, np.int64))
            self.began = np.append(self.began, np.zeros(more, np.int64))
        if not holds.any():  # the usual case, at little cost
            if self._runs:
                self.length[known] = 0
                self._runs = bool(self.length.any())
            return
        self._runs = True
        starts = holds & known & (self.length == 0)
        self.began[starts] = step
        self.length = np.where(known, np.where(holds, self.length + 1, 0), self.length)

    def reaches(self, length: int, holds: Array) -> Array:
        """Which streaks reach this length at this step: true once per streak."""
        reached: Array = (self.length == length) & holds
        return reached


class Onset:
    """True when a condition begins to hold; true again only after it was false for a while."""

    QUIET = 50

    def __init__(self) -> None:
        self._last = np.empty(0, np.int64)
        self._tick = 0

    def of(self, holds: Array) -> Array:
        self._tick += 1
        more = len(holds) - len(self._last)
        if more > 0:
            self._last = np.append(self._last, np.full(more, -self.QUIET - 1, np.int64))
        if not holds.any():
            return holds
        begins: Array = holds & (self._tick - self._last > self.QUIET)
        self._last[holds] = self._tick
        return begins
