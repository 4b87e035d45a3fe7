"""Finds the layout of each row: the candidate that explains the golden value."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from msprobe.compare.calls import GRADS, Match
from msprobe.compare.layout.case import SAME, Case, Layout, Orders, Views
from msprobe.compare.layout.fitting import EXPLAINED
from msprobe.compare.layout.shards import Shards, local_shape
from msprobe.compare.layout.ways import (
    REDUCED,
    A,
    N,
    P,
    R,
    Way,
    X,
    axis_of,
    free_ways,
    possible_ways,
    whole_shape,
)
from msprobe.compare.measure import distance
from msprobe.compare.phases import Phase
from msprobe.compare.rows import Row

SAMPLE = 24
"""How many rows decide how the ranks are arranged, and how many decide how the backward is scaled."""
PLAIN_ENOUGH = 10.0
"""A simpler layout wins unless another one explains the values better by this factor."""
MOST_WAYS = 400

OWNED = "owned"
"""In place of a dimension by which a gradient is scaled: the ranks that do not have a call."""
RatedLayout = tuple[float, int, Layout]
"""A layout with its error and how plain it is."""
Factors = Mapping[tuple[str, str], float]
"""What a gradient that is split over a dimension must be multiplied by, by side and name of the dimension."""


@dataclass
class Memory:
    """The layouts found for rows of the same kind, that is, for the same place in a different layer."""

    layouts: dict[tuple[str, ...], Counter[Layout]] = field(default_factory=lambda: defaultdict(Counter))
    weights: dict[tuple[str, ...], Counter[Layout]] = field(default_factory=lambda: defaultdict(Counter))
    """Layouts of parameters, by the shapes and dimensions of both sides: their gradients and states have the same."""

    def usual(self, kind: tuple[str, ...]) -> list[Layout]:
        return [layout for layout, _ in self.layouts[kind].most_common(2)] if kind in self.layouts else []

    def add(self, case: Case) -> None:
        if case.layout is not None and case.explained:
            self.layouts[case.kind][case.layout] += 1
            if "parameters." in case.row.slot:
                self.weights[_shapes(case)][case.layout] += 1

    def expected(self, case: Case) -> list[Layout]:
        """The layouts that an unexplained row should have."""
        if case.phase is Phase.AFTER:
            known = self.weights.get(_shapes(case), Counter())
            return [layout for layout, _ in known.most_common(1)]
        return self.usual(case.kind)[:1]


def _shapes(case: Case) -> tuple[str, ...]:
    sides = case.target, case.golden
    return tuple(str(part) for one in sides for part in (local_shape(one.first), one.names))


_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def kind_of(match: Match, row: Row, target: Shards, golden: Shards) -> tuple[str, ...]:
    """Equal for the same row of a different layer, split over the same dimensions."""
    call = match.call
    parent = _NUMBER.sub("#", call.parent or "")
    names = str((target.names, golden.names))
    return parent, _NUMBER.sub("#", call.key), call.direction, row.slot, str(local_shape(target.first)), names


def search(case: Case, factors: Optional[Factors], memory: Memory) -> None:
    """Sets the layout and the error of the case; the layout is None if no layout fits the shapes."""
    views = Views(case)
    if views.obstacle:
        return
    best: list[RatedLayout] = []
    for known in memory.usual(case.kind) if not case.recorded else ():
        error = views.error(known)
        if error <= SAME or (not case.saved and error <= EXPLAINED / 20):
            case.layout, case.error = known, error
            return
    for place, (ours, theirs) in enumerate(pairs_of(case)):
        for factor, orders in itertools.product(_factors_of(case, ours, theirs, factors), known_orders(case, ours)):
            layout = Layout(ours, theirs, factor, orders)
            if views.fits(layout):
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
    if least > EXPLAINED and case.golden.sizes:
        best = _as_golden(best, case, views)
        least = min(error for error, _, _ in best)
    limit = max(PLAIN_ENOUGH * least, SAME)
    if least <= EXPLAINED:
        limit = min(limit, EXPLAINED)
    error, _, case.layout = min((one for one in best if one[0] <= limit), key=lambda one: one[1])
    case.error = error


def _as_golden(found: list[RatedLayout], case: Case, views: Views) -> list[RatedLayout]:
    """If no layout explains the row: the layouts that split the golden side as its own tensors show. In the forward,
    sums remain only if nothing else fits, because almost any tensor is close to some sum."""
    fitting = [one for one in found if views.fits_golden(one[2].golden)] or found
    if case.phase is not Phase.FORWARD:
        return fitting
    return [one for one in fitting if not any(p in REDUCED for way in one[2][:2] for p in way.placements)] or fitting


def known_orders(case: Case, ours: Way) -> list[Orders]:
    """The orders that slices may have: that of a balanced sequence if context parallelism recorded it, along that axis
    and the others of this length (queries by keys)."""
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


def _factors_of(case: Case, ours: Way, theirs: Way, factors: Optional[Factors]) -> list[float]:
    """The factor of a row; two if it may belong to a gradient or to a weight."""
    usual = factor_of(case, ours, theirs, factors)
    if not case.by_engine or factors is None:
        return [usual]
    return list(dict.fromkeys([usual, _scaling(case, ours, theirs, factors)]))


def factor_of(case: Case, ours: Way, theirs: Way, factors: Optional[Factors]) -> float:
    if factors is None or case.phase is not Phase.BACKWARD:
        return 1.0
    return _scaling(case, ours, theirs, factors)


def _scaling(case: Case, ours: Way, theirs: Way, factors: Factors) -> float:
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
    """The ways of both sides that make tensors of the same shape, the simplest first."""
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
    found.sort(key=lambda pair: oddness(pair[0]) + oddness(pair[1]))
    return found[:MOST_WAYS]


def oddness(way: Way) -> int:
    """0 for copies, more for slices, most for sums."""
    return sum(0 if one == R else 1 if axis_of(one) is not None else 3 for one in way.placements)


def _fitting(shards: Shards, whole: Sequence[int], reductions: Sequence[str]) -> list[Way]:
    pieces = shards.pieces
    return possible_ways(local_shape(shards.first), whole, shards.sizes, reductions) if pieces is None else [pieces]


def _free(
    shards: Shards, reductions: Sequence[str], fixed: Mapping[str, str]
) -> list[tuple[Way, Optional[tuple[int, ...]]]]:
    shapes = shards.shapes()
    pieces = shards.pieces
    if pieces is not None:
        return [(pieces, whole_shape(shapes, pieces))]
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
