"""Shared by the tests for faults: the shards of a row with the golden tensor, and the names of places and ranks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple, Optional

import numpy as np

from msprobe.compare.layout import statistics
from msprobe.compare.layout.case import Case, Layout, reorder
from msprobe.compare.layout.dimensions import ALL_RANKS, ranks_text
from msprobe.compare.layout.fitting import Fit, error_of, fit
from msprobe.compare.layout.shards import Shards, load
from msprobe.compare.layout.ways import REDUCED, Array, R, Way, assemble, axis_of
from msprobe.compare.origin.trace import Trace, module_of
from msprobe.compare.origin.wording import Candidate
from msprobe.compare.reasons import Reason

CLOSE = 1e-3
"""Tensors that differ by less are the same."""
FAR = 3.0
"""A copy differs if its error is this many times the error of the best copy."""


class Diagnosis(NamedTuple):
    """`kind` is the fault, `ranks` those that have it, `dimension` the one of the mesh, `at` the place of
    another call that is to be named."""

    kind: str
    said: str
    ranks: tuple[int, ...] = ()
    dimension: str = ""
    at: Optional[int] = None


class Loaded(NamedTuple):
    """The shards of the target, and the golden tensor."""

    shards: Array
    golden: Array
    layout: Layout


def load_case(case: Case) -> Optional[Loaded]:
    ours, theirs = load(case.target), load(case.golden)
    if isinstance(ours, Reason) or isinstance(theirs, Reason) or case.layout is None:
        return None
    try:
        golden = assemble(theirs, case.layout.golden)[0]
    except ValueError:
        return None
    golden = golden / case.layout.factor if case.layout.factor != 1.0 else golden
    for axis, order in case.layout.orders:  # the golden tensor in the order of the shards
        if golden.ndim > axis and golden.shape[axis] == len(order):
            golden = np.take(golden, np.argsort(order), axis)
    return Loaded(ours, golden, case.layout._replace(orders=()))


def place_text(found: Candidate, trace: Trace) -> str:
    call = found.match.call
    module = module_of(call, trace.groups)
    return f"{call.name} in {module}" if module and module != call.key else call.name


class Copy(NamedTuple):
    ranks: list[int]
    error: float
    bad: bool


def copies_of(case: Case, views: Optional[Loaded]) -> list[Copy]:
    """The tensors that should be the same, with how far each is from the golden one; by their statistics if no tensors
    were saved."""
    if case.layout is None:
        return []
    axes = case.layout.target.along(R)
    if views is None:
        ours, golden = _merged(case)
        errors = [statistics.error_of(one, golden, case.layout.factor) for one in ours]
    else:
        errors = [error_of(one, views.golden) for one in _assembled(views)]
    least = min(errors, default=0.0)
    places = list(itertools.product(*(range(case.target.sizes[axis]) for axis in axes)))
    limit = max(FAR * least, 1e-6)
    return [Copy(case.target.ranks_at(axes, place), error, error > limit) for place, error in zip(places, errors)]


def fits_of(case: Case, views: Optional[Loaded]) -> list[Fit]:
    """The factor between each of these tensors and the golden one, and the remaining error."""
    if views is not None:
        return [fit(one, views.golden) for one in _assembled(views)]
    ours, golden = _merged(case)
    expected = case.layout.factor if case.layout is not None else 1.0
    return [Fit(found.error, found.factor / expected) for found in (statistics.fit(one, golden) for one in ours)]


def _assembled(views: Loaded) -> list[Array]:
    try:
        return [reorder(one, views.layout.orders) for one in assemble(views.shards, views.layout.target)]
    except ValueError:
        return []


def _merged(case: Case) -> tuple[list[statistics.Item], statistics.Item]:
    layout = case.layout
    assert layout is not None
    if any(one in REDUCED for way in (layout.target, layout.golden) for one in way.placements):
        return [], {}  # statistics of sums cannot be merged
    return statistics.merge(case.target, layout.target), statistics.merge(case.golden, layout.golden)[0]


def name_dimensions(shards: Shards, axes: Sequence[int]) -> str:
    return ", ".join(shards.names[axis] for axis in axes if shards.sizes[axis] > 1)


def error_with(views: Loaded, way: Way) -> float:
    try:
        return max(error_of(reorder(one, views.layout.orders), views.golden) for one in assemble(views.shards, way))
    except ValueError:
        return math.inf


def group_text(case: Case, axis: int) -> str:
    """`tp (ranks 0, 1)`: a dimension with the first of its groups of ranks."""
    others = [other for other in range(len(case.target.sizes)) if other != axis]
    first = ranks_text(case.target.ranks_at(others, [0] * len(others)))
    name = case.target.names[axis]
    return first if name == ALL_RANKS else f"{name} ({first})"


def golden_at(views: Loaded, place: tuple[int, ...]) -> Array:
    """The part of the golden tensor that the shard at a place should be."""
    own = views.golden
    for dimension, placement in enumerate(views.layout.target.placements):
        axis = axis_of(placement)
        if axis is not None and not views.layout.orders:
            own = _cut(own, views.shards, place, dimension, axis)
    return own


def _cut(golden: Array, shards: Array, place: tuple[int, ...], dimension: int, axis: int) -> Array:
    """The part of the golden tensor at a place along one dimension; all of it if another dimension cuts this axis
    too."""
    line = [shards[(*place[:dimension], one, *place[dimension + 1 :])] for one in range(shards.shape[dimension])]
    lengths = [piece.shape[axis] for piece in line]
    if golden.shape[axis] != sum(lengths):
        return golden
    start = sum(lengths[: place[dimension]])
    found: Array = np.take(golden, range(start, start + lengths[place[dimension]]), axis)
    return found
