"""A row with its shards, its layout, and the tensors that each way of joining the shards makes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from msprobe.compare.layout import statistics
from msprobe.compare.layout.fitting import EXPLAINED, error_of, find_order
from msprobe.compare.layout.fixed import Balanced
from msprobe.compare.layout.shards import Shards, load
from msprobe.compare.layout.ways import A, Array, P, R, Way, assemble, axis_of
from msprobe.compare.measure import distance
from msprobe.compare.phases import Phase
from msprobe.compare.reasons import Reason
from msprobe.compare.rows import Row

SAME = 1e-5

Orders = tuple[tuple[int, tuple[int, ...]], ...]


class Layout(NamedTuple):
    """How the shards of both sides of a row are put together; `orders` are those of slices, by axis."""

    target: Way
    golden: Way
    factor: float = 1.0
    orders: Orders = ()


@dataclass
class Case:
    """A row with its shards, and the layout that was found for it."""

    row: Row
    phase: Phase
    target: Shards
    golden: Shards
    kind: tuple[str, ...]
    layout: Optional[Layout] = None
    error: float = math.inf
    reduced: bool = False
    """Whether a collective adds up its values: the shards may be parts of a sum."""
    fixed: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
    """The known placements of both sides, by dimension."""
    balanced: Optional[Balanced] = None
    """How the target cuts sequences, if not in order."""
    owned: tuple[bool, bool] = (False, False)
    """Whether only some ranks of a stage have this call (an expert's): its input may come from all of them."""
    by_engine: bool = False
    """Whether it is a forward call that the engine made in the backward: on a gradient, or on a weight."""

    @property
    def recorded(self) -> bool:
        return any(self.fixed)

    @property
    def text(self) -> str:
        """How the shards were put together: `tp S(0), dp R`."""
        return "" if self.layout is None else self.describe(self.target, self.layout.target)

    @staticmethod
    def describe(shards: Shards, way: Way) -> str:
        return ", ".join(f"{name} {placement}" for name, placement in zip(shards.names, way.placements))

    @property
    def explained(self) -> bool:
        return self.error <= EXPLAINED

    @property
    def saved(self) -> bool:
        return self.target.saved and self.golden.saved

    @property
    def known(self) -> bool:
        """Both sides have values, not only statistics."""
        return self.target.known and self.golden.known


class Views:
    """The tensors, or the statistics, that the ways of one case make; each is made once."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._made: dict[tuple[bool, Way], Any] = {}
        self.obstacle: Union[Reason, None] = None
        self._arrays: tuple[Array, Array] = (np.empty(0), np.empty(0))
        if case.saved:
            loaded = load(case.target), load(case.golden)
            for one in loaded:
                if isinstance(one, Reason):
                    self.obstacle = one
            if self.obstacle is None:
                self._arrays = loaded  # type: ignore[assignment]

    def of(self, golden: bool, way: Way) -> list[Any]:
        key = (golden, way)
        if key not in self._made:
            shards = self._case.golden if golden else self._case.target
            try:
                if self._case.saved:
                    self._made[key] = assemble(self._arrays[golden], way)
                else:
                    self._made[key] = statistics.merge(shards, way)
            except ValueError:
                self._made[key] = []
        found: list[Any] = self._made[key]
        return found

    def is_copied(self, golden: bool, axis: int) -> bool:
        """Whether the shards of one side are the same along a dimension."""
        if self.obstacle:
            return False
        shards = self._case.golden if golden else self._case.target
        if not self._case.saved:
            keys: Array = np.empty(shards.cells.shape, dtype=object)
            for place in np.ndindex(keys.shape):
                keys[place] = distance.value_key(shards.items[int(shards.cells[place])])
            return bool((keys == np.roll(keys, 1, axis)).all())
        arrays = self._arrays[golden]
        rolled = np.roll(arrays, 1, axis)
        return all(error_of(arrays[place], rolled[place]) <= SAME for place in np.ndindex(arrays.shape))

    def fits_golden(self, way: Way) -> bool:
        """Whether a way has copies exactly where the golden run has copies: its own tensors show how it is split."""
        return all((one == R) == self.is_copied(True, axis) for axis, one in enumerate(way.placements))

    def fits(self, layout: Layout) -> bool:
        """Whether the shards of both sides can be put together this way."""
        return bool(self.of(False, layout.target) and self.of(True, layout.golden))

    def error(self, layout: Layout) -> float:
        if not self.fits(layout):
            return math.inf
        ours, theirs = self.of(False, layout.target), self.of(True, layout.golden)
        if self._case.saved:
            golden = theirs[0]
            found = [
                error_of(
                    layout.factor * reorder(one, layout.orders)
                    if layout.factor != 1.0
                    else reorder(one, layout.orders),
                    golden,
                )
                for one in ours
            ]
            return max([*found, *(error_of(one, golden) for one in theirs[1:])])
        if any(placement in (P, A) for way in (layout.target, layout.golden) for placement in way.placements):
            if not statistics.may_add_up(self._case.target, self._case.golden, layout.factor):
                return math.inf
            exact = distance.count(self._case.golden.first) == 1  # the mean of one element is its value
            least = 0.0 if exact else 0.5 * EXPLAINED
            return max(least, *(statistics.error_of(one, theirs[0], layout.factor) for one in ours))
        found = [statistics.error_of(one, theirs[0], layout.factor) for one in ours]
        return max([*found, *(statistics.error_of(one, theirs[0]) for one in theirs[1:])])

    def reorder(self, layout: Layout) -> Optional[Layout]:
        """The same with the slices along sharded axes in the order in which they explain the golden value."""
        ours, theirs = self.of(False, layout.target), self.of(True, layout.golden)
        if not ours or not theirs or ours[0].shape != theirs[0].shape:
            return None
        axes = {axis_of(one) for way in (layout.target, layout.golden) for one in way.placements} - {None}
        array = reorder(layout.factor * ours[0] if layout.factor != 1.0 else ours[0], layout.orders)
        known = {axis for axis, _ in layout.orders}
        sliced = sorted(axis for axis in axes if axis is not None and axis not in known)
        for axis in [*sliced, *(one for one in range(array.ndim) if one not in axes)]:
            order = find_order(array, theirs[0], axis)
            if order is not None:
                return layout._replace(orders=(*layout.orders, (axis, tuple(int(one) for one in order))))
        return None


def reorder(array: Array, orders: Orders) -> Array:
    for axis, order in orders:
        if array.shape[axis] == len(order):
            array = np.take(array, order, axis)
    return array
