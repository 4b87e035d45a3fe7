"""Measures a tensor in host memory, in one pass of the kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from ctypes import c_char
from typing import Any, Optional

import numpy as np

from msprobe.stats import dtypes, gauge_memory
from msprobe.watch.settings import LOW_PRECISION
from msprobe.watch.step_figures import StepFigures
from msprobe.watch.targets import Figures

Array = np.ndarray[Any, Any]
Outside = Optional[tuple[float, float]]
SAMPLE = 4096
"""How many elements of a weight are kept from one step to the next, to measure its update."""
_RUN = 16


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
    """Copies some elements of parameters in host memory into one array, before a step and after it.

    The views and their addresses are kept from step to step. A view is read only while the caller says that the
    parameter still has that address.
    """

    def __init__(self) -> None:
        self._views: dict[int, tuple[tuple[int, int, int], Array]] = {}  # by number: address, code and size; memory
        self._taken: list[int] = []
        self._chosen: list[tuple[int, int, int, int]] = []
        self._found: list[Array] = []
        self._asked: list[tuple[int, int, int, int]] = []
        self._layout: Optional[tuple[Array, Array]] = None
        self._before: Array = np.empty(0)
        self._after: Array = np.empty(0)
        self._work: Array = np.empty(0)

    def take(self, parameters: Sequence[tuple[int, int, int, int]]) -> None:
        """For each parameter: its number, address, dtype code and number of elements."""
        self._taken, views = self._find(parameters)
        self._before = _joined(views, self._before)

    def changes(self, parameters: Sequence[tuple[int, int, int, int]]) -> tuple[list[int], Array, Array]:
        """For each sampled parameter: its number, and estimates of the norm of the change and the norm before it.

        The sample of now is kept as the one before the next step."""
        taken, views = self._find(parameters)
        before, after = self._before, _joined(views, self._after)
        same = taken == self._taken and len(after) == len(before)
        self._taken, self._before, self._after = taken, after, before
        if not taken or not same:
            return [], np.empty(0), np.empty(0)
        firsts, factors = self._lay_out(views)
        if len(self._work) != len(after):
            self._work = np.empty(len(after))
        with np.errstate(all="ignore"):
            moved = np.subtract(after, before, out=self._work)
            squares = np.add.reduceat(np.multiply(moved, moved, out=moved), firsts)
            old = np.add.reduceat(np.multiply(before, before, out=moved), firsts)
            return taken, factors * np.sqrt(squares), factors * np.sqrt(old)

    def _find(self, parameters: Sequence[tuple[int, int, int, int]]) -> tuple[list[int], list[Array]]:
        if parameters == self._asked:
            return [given[0] for given in self._chosen], self._found
        self._asked, self._layout = list(parameters), None
        self._chosen, views = [], []
        for given in parameters:
            number, address, code, elements = given
            known = self._views.get(number)
            if known is None or known[0] != given[1:]:
                view = _view(address, code, elements)
                if view is None:
                    continue
                known = self._views[number] = (given[1:], view)
            self._chosen.append(given)
            views.append(known[1])
        self._found = views
        return [given[0] for given in self._chosen], views

    def _lay_out(self, views: list[Array]) -> tuple[Array, Array]:
        """Where the sample of each parameter begins, and the factor from its norm to that of the parameter."""
        if self._layout is None:
            sizes = np.array([view.size for view in views])
            elements = np.array([given[3] for given in self._chosen])
            self._layout = np.cumsum(sizes) - sizes, np.sqrt(elements / sizes)
        return self._layout


def _joined(views: list[Array], into: Array) -> Array:
    if not views:
        return into[:0]
    size = sum([view.size for view in views])
    if into.size != size:
        into = np.empty(size)
    at = 0
    for view in views:
        into[at : at + view.size].reshape(view.shape)[...] = view
        at += view.size
    return into


def _view(address: int, code: int, elements: int) -> Optional[Array]:
    """Some elements of a dense tensor: evenly spaced runs of a cache line. All elements of a small tensor."""
    row = dtypes.BY_CODE[code]
    dtype = row.numpy_dtype
    if dtype is None or row.kind != dtypes.FLOAT or not elements or not address:
        return None
    memory = memoryview((c_char * (elements * row.itemsize)).from_address(address)).cast("B")
    if elements <= SAMPLE:
        return np.frombuffer(memory, dtype)
    runs = SAMPLE // _RUN
    step = (elements - _RUN) // (runs - 1)
    view: Array = np.ndarray((runs, _RUN), dtype, memory, 0, (step * row.itemsize, row.itemsize))
    return view
