"""Finds the layout of each row: the candidate that explains the golden value is kept."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from msprobe.compare.calls import GRADS, Match
from msprobe.compare.layout import statistics
from msprobe.compare.layout.fitting import EXPLAINED, error_of, find_order
from msprobe.compare.layout.fixed import Balanced
from msprobe.compare.layout.shards import Shards, load, local_shape
from msprobe.compare.layout.ways import (
    A,
    Array,
    N,
    P,
    R,
    Way,
    X,
    assemble,
    axis_of,
    free_ways,
    possible_ways,
    whole_shape,
)
from msprobe.compare.measure import distance
from msprobe.compare.phases import Phase
from msprobe.compare.reasons import Reason
from msprobe.compare.rows import Row

SAMPLE = 24
"""So many rows decide how the ranks are arranged, and so many how the backward is scaled."""
PLAIN_ENOUGH = 10.0
"""A plainer layout is preferred to one that explains the values better by less than this factor."""
SAME = 1e-5
MOST_WAYS = 400

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
    """Its values are given to a collective that sums: the shards may be parts of a sum."""
    fixed: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
    """The placements of both sides that are known, by dimension."""
    balanced: Optional[Balanced] = None
    """How the target cuts sequences, where that is not in order."""
    owned: tuple[bool, bool] = (False, False)
    """Only some ranks of a stage have such a call (an expert's): its input may come from all of them."""

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


OWNED = "owned"
"""Stands for the ranks that do not have a call, among the dimensions by which a gradient is scaled."""
Factors = Mapping[tuple[str, str], float]
"""What a gradient that is split over a dimension must be multiplied by, by side and name of the dimension."""


@dataclass
class Memory:
    """What was found for rows of the same kind: the same place in another layer."""

    layouts: dict[tuple[str, ...], Counter[Layout]] = field(default_factory=lambda: defaultdict(Counter))
    weights: dict[tuple[str, ...], Counter[Layout]] = field(default_factory=lambda: defaultdict(Counter))
    """Of parameters, by the shapes and dimensions of both sides: their gradients and states have it too."""

    def usual(self, kind: tuple[str, ...]) -> list[Layout]:
        return [layout for layout, _ in self.layouts[kind].most_common(2)] if kind in self.layouts else []

    def add(self, case: Case) -> None:
        if case.layout is not None and case.explained:
            self.layouts[case.kind][case.layout] += 1
            if "parameters." in case.row.slot:
                self.weights[_shapes(case)][case.layout] += 1

    def expected(self, case: Case) -> list[Layout]:
        """The layouts that a row which nothing explains should have."""
        if case.phase is Phase.AFTER:
            known = self.weights.get(_shapes(case), Counter())
            return [layout for layout, _ in known.most_common(1)]
        return self.usual(case.kind)[:1]


def _shapes(case: Case) -> tuple[str, ...]:
    sides = case.target, case.golden
    return tuple(str(part) for one in sides for part in (local_shape(one.first), one.names))


_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def kind_of(match: Match, row: Row, target: Shards, golden: Shards) -> tuple[str, ...]:
    """Equal for the same row of another layer, split over the same dimensions."""
    call = match.call
    parent = _NUMBER.sub("#", call.parent or "")
    names = str((target.names, golden.names))
    return parent, _NUMBER.sub("#", call.key), call.direction, row.slot, str(local_shape(target.first)), names


def search(case: Case, factors: Optional[Factors], memory: Memory) -> None:
    """Gives the case its layout and its error; leaves it without one where no way fits the shapes."""
    views = Views(case)
    if views.obstacle:
        return
    best: list[tuple[float, int, Layout]] = []
    for known in memory.usual(case.kind) if not case.recorded else ():
        error = views.error(known)
        if error <= SAME or (not case.saved and error <= EXPLAINED / 20):
            case.layout, case.error = known, error
            return
    for place, (ours, theirs) in enumerate(pairs_of(case)):
        factor = factor_of(case, ours, theirs, factors)
        for orders in known_orders(case, ours):
            layout = Layout(ours, theirs, factor, orders)
            best.append((views.error(layout), place, layout))
    if not best:
        return
    least = min(error for error, _, _ in best)
    if least > EXPLAINED and case.saved:
        for _, place, layout in sorted(best, key=lambda one: one[:2])[:8]:
            ordered = views.reorder(layout)
            if ordered is not None:
                best.append((views.error(ordered), place, ordered))
        least = min(error for error, _, _ in best)
    limit = max(PLAIN_ENOUGH * least, SAME)
    if least <= EXPLAINED:
        limit = min(limit, EXPLAINED)
    error, _, case.layout = min((one for one in best if one[0] <= limit), key=lambda one: one[1])
    case.error = error


def known_orders(case: Case, ours: Way) -> list[Orders]:
    """The orders that slices may have: that of a balanced sequence where context parallelism recorded it, along that
    axis and the others of this length (queries by keys)."""
    if case.balanced is None or case.balanced.dimension not in case.target.names or case.golden.sizes:
        return [()]
    at = case.target.names.index(case.balanced.dimension)
    axis = axis_of(ours.placements[at])
    shape = local_shape(case.golden.first)
    if axis is None or axis >= len(shape):
        return [()]
    order = case.balanced.order(case.target.sizes[at], shape[axis])
    if order is None:
        return [()]
    others = [one for one, length in enumerate(shape) if length == len(order) and one != axis]
    found: list[Orders] = [((axis, order),), *(((axis, order), (one, order)) for one in others)]
    return found if axis in case.balanced.axes else [(), *found]


def factor_of(case: Case, ours: Way, theirs: Way, factors: Optional[Factors]) -> float:
    if factors is None or case.phase is not Phase.BACKWARD:
        return 1.0
    made = 1.0
    gradient = case.row.match.call.direction == GRADS  # slices of it exist only where it has been reduced
    for side, shards, way in (("target", case.target, ours), ("golden", case.golden, theirs)):
        for name, placement in zip(shards.names, way.placements):
            if placement != R and not (gradient and axis_of(placement) is not None):
                one = factors.get((side, name), 1.0)
                made *= one if side == "target" else 1.0 / one
    for side, owned in zip(("target", "golden"), case.owned):
        if owned:
            one = factors.get((side, OWNED), 1.0)
            made *= one if side == "target" else 1.0 / one
    return made


def pairs_of(case: Case) -> list[tuple[Way, Way]]:
    """The ways of both sides that give tensors of one shape, the plainest first."""
    reductions = _reductions(case)
    ours, theirs = case.target, case.golden
    nothing = Way(())
    if not theirs.sizes:
        shape = local_shape(theirs.first)
        return [(way, nothing) for way in _keep(_fitting(ours, shape, reductions), ours, case.fixed[0])]
    if not ours.sizes:
        shape = local_shape(ours.first)
        return [(nothing, way) for way in _keep(_fitting(theirs, shape, reductions), theirs, case.fixed[1])]
    left, right = (_free(one, reductions, fixed) for one, fixed in zip((ours, theirs), case.fixed))
    found = [(a, b) for a, shape in left for b, other in right if shape == other]
    found.sort(key=lambda pair: _oddness(pair[0]) + _oddness(pair[1]))
    return found[:MOST_WAYS]


def _oddness(way: Way) -> int:
    return sum(0 if one == R else 1 if axis_of(one) is not None else 3 for one in way.placements)


def _fitting(shards: Shards, whole: Sequence[int], reductions: Sequence[str]) -> list[Way]:
    return possible_ways(local_shape(shards.first), whole, shards.sizes, reductions)


def _free(
    shards: Shards, reductions: Sequence[str], fixed: Mapping[str, str]
) -> list[tuple[Way, Optional[tuple[int, ...]]]]:
    shapes = shards.shapes()
    ways = _keep(free_ways(local_shape(shards.first), shards.sizes, reductions), shards, fixed)
    return [(way, whole_shape(shapes, way)) for way in ways]


def _keep(ways: list[Way], shards: Shards, fixed: Mapping[str, str]) -> list[Way]:
    """The ways that have the placements that are known."""
    if not fixed:
        return ways
    return [
        way
        for way in ways
        if all(fixed.get(name, placement) == placement for name, placement in zip(shards.names, way.placements))
    ]


def _reductions(case: Case) -> tuple[str, ...]:
    word = case.row.match.call.key.rpartition(".")[2].lower()
    known = {one for side in case.fixed for one in side.values()} & {P, A, N, X}
    if known:
        return tuple({P, *known})
    many = distance.count(case.golden.first) > 1
    if case.phase is Phase.AFTER and many:
        return ()  # what the optimizer works on has been reduced
    if case.phase is Phase.FORWARD and many and not case.saved and not case.reduced:
        return ()  # statistics say too little of a sum to find one
    found = [P] if case.phase is Phase.BACKWARD else [P, A]
    if "norm" in word and "layer" not in word:
        found.append(N)
    if word.startswith(("max", "amax", "all_reduce")):
        found.append(X)
    return tuple(found)


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

    def error(self, layout: Layout) -> float:
        ours, theirs = self.of(False, layout.target), self.of(True, layout.golden)
        if not ours or not theirs:
            return math.inf
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
