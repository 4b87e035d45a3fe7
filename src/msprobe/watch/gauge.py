"""Measures a tensor in host memory, in one pass of the kernel."""

from __future__ import annotations

import math
from typing import Any, Optional

import numpy as np

from msprobe.stats import advance, dtypes, gauge_memory
from msprobe.stats.samples import SAMPLE, Place
from msprobe.watch.settings import LOW_PRECISION
from msprobe.watch.step_figures import StepFigures
from msprobe.watch.targets import Figures

Array = np.ndarray[Any, Any]
Outside = Optional[tuple[float, float]]


def bounds(low_precision: Optional[str]) -> Outside:
    """Limits of `low_precision`: numbers below the first become zero, the second is its largest number."""
    if low_precision is None:
        return None
    row = dtypes.BY_NAME[LOW_PRECISION[low_precision]]
    assert row.smallest_normal is not None
    return row.smallest_normal * 2.0 ** -(row.mantissa + 1), float(row.largest)


def read_memory(
    address: int,
    code: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    outside: Outside,
    found: StepFigures,
    row: int,
    joined: bool = False,
) -> None:
    """Measures the tensor at an address; `joined` combines its figures with those of the row."""
    before = found.get(row) if joined else None
    if gauge_memory(address, code, shape, strides, found.reserve(row + 1), row, outside) and before is not None:
        found[row] = combine(before, found[row])


def read_array(array: Array, code: int, outside: Outside, found: StepFigures, row: int, joined: bool = False) -> None:
    """The same for a numpy array. Its items may be the bits of a dtype that numpy does not have."""
    array = np.ascontiguousarray(array)
    strides = tuple(stride // array.itemsize for stride in array.strides)
    read_memory(array.__array_interface__["data"][0], code, array.shape, strides, outside, found, row, joined)


def combine(first: Figures, second: Figures) -> Figures:
    """Combines two calls of one module in a step, as if they were one batch."""
    mean = [0.5 * (a + b) for a, b in zip(first, second)]
    return Figures(
        math.hypot(first.norm, second.norm),
        first.max if first.max >= second.max or first.max != first.max else second.max,
        first.min if first.min <= second.min or first.min != first.min else second.min,
        mean[3],
        first.nan + second.nan,
        first.inf + second.inf,
        *mean[6:],
    )


class Samples:
    """A sample of the elements of parameters in host memory: how far it has moved since it was last read."""

    def __init__(self) -> None:
        self._known: list[Place] = []
        self._places: list[Place] = []
        self._numbers: list[int] = []
        self._factors: Array = np.empty(0)
        self._before: Array = np.empty(0)
        self._sums: Array = np.empty((0, 2))

    def take(self, parameters: list[Place]) -> None:
        """Reads the sample before a step. The number of a place is that of its parameter."""
        self._find(parameters)
        advance(self._places, self._before, self._sums)

    def changes(self, parameters: list[Place]) -> tuple[list[int], Array, Array]:
        """For each sampled parameter: its number, and estimates of the norm of the change and the norm before it.

        The sample of now is kept as the one before the next step."""
        same = self._find(parameters)
        advance(self._places, self._before, self._sums)
        if not same:
            return [], np.empty(0), np.empty(0)
        norms = self._factors[:, None] * np.sqrt(self._sums)
        return self._numbers, norms[:, 0], norms[:, 1]

    def _find(self, parameters: list[Place]) -> bool:
        """Chooses what can be sampled. Returns whether the last sample was of the same parameters."""
        if parameters == self._known:
            return True
        places = [given for given in parameters if _is_sampled(*given[1:])]
        same = [(given[0], given[3]) for given in places] == [(given[0], given[3]) for given in self._places]
        self._known, self._places = parameters, places
        if not same:
            elements = np.array([given[3] for given in places], np.int64)
            sizes = np.minimum(elements, SAMPLE)
            self._numbers = [given[0] for given in places]
            self._factors = np.sqrt(elements / np.maximum(sizes, 1))
            self._before, self._sums = np.zeros(int(sizes.sum())), np.zeros((len(places), 2))
        return same


def _is_sampled(address: int, code: int, elements: int) -> bool:
    row = dtypes.BY_CODE[code]
    return bool(address and elements and row.kind == dtypes.FLOAT and row.numpy_dtype is not None)
