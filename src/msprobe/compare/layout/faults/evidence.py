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
from msprobe.compare.layout.ways import REDUCED, Array, R, Way, assemble, axis_of, shard
from msprobe.compare.origin.arguments import slot_text
from msprobe.compare.origin.trace import Trace, module_of
from msprobe.compare.origin.wording import Candidate
from msprobe.compare.reasons import Reason
from msprobe.messages import Message

CLOSE = 1e-3
"""Tensors that differ by less are the same."""
FAR = 3.0
"""A copy differs if its error is this many times the error of the best copy."""


class Diagnosis(NamedTuple):
    """`kind` is the fault, `ranks` those that have it, `dimension` the one of the mesh, `at` the place of
    another call that is to be named."""

    kind: str
    said: Message
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
    return Message("call.in", call=call.name, module=module) if module and module != call.key else call.name


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


def slot_of(found: Candidate, case: Case) -> Message:
    """`X: input.0`."""
    call = found.match.call
    return Message("named", name=call.name, said=slot_text(call, case.row.slot))


def name_dimensions(shards: Shards, axes: Sequence[int]) -> str:
    return ", ".join(shards.names[axis] for axis in axes if shards.sizes[axis] > 1)


def error_with(views: Loaded, way: Way) -> float:
    try:
        return max(error_of(reorder(one, views.layout.orders), views.golden) for one in assemble(views.shards, way))
    except ValueError:
        return math.inf


def group_text(case: Case, axis: int) -> Message:
    """`tp (ranks 0, 1)`: a dimension with the first of its groups of ranks."""
    others = [other for other in range(len(case.target.sizes)) if other != axis]
    first = ranks_text(case.target.ranks_at(others, [0] * len(others)))
    name = case.target.names[axis]
    return first if name == ALL_RANKS else Message("fault.group", dimension=name, ranks=first)


def golden_at(views: Loaded, place: tuple[int, ...], but: Optional[int] = None) -> Array:
    """The part of the golden tensor that the shard at a place should be; uncut along the axis `but`."""
    own = views.golden
    axes = {axis_of(placement) for placement in views.layout.target.placements} - {None, but}
    for axis in axes if not views.layout.orders else ():
        assert axis is not None
        own = np.take(own, own_elements(views, place, axis), axis)
    return own


def own_elements(views: Loaded, place: tuple[int, ...], axis: int) -> Array:
    """Which elements along an axis the shard at a place has. Several dimensions of the mesh may cut the axis. All
    elements, if the shards together are not the axis."""
    way, shape = views.layout.target, views.shards.shape
    cutting = [dimension for dimension, one in enumerate(way.placements) if axis_of(one) == axis]
    line = views.shards[tuple(slice(None) if one in cutting else place[one] for one in range(len(shape)))]
    marks: Array = np.empty(line.shape, dtype=object)
    for number, at in enumerate(np.ndindex(line.shape)):
        marks[at] = np.full(line[at].shape[axis], number)
    order = tuple(cutting.index(one) for one in way.order or reversed(range(len(shape))) if one in cutting)
    whole = assemble(marks, Way((shard(0),) * len(cutting), order))[0]
    if len(whole) != views.golden.shape[axis]:
        return np.arange(views.golden.shape[axis])
    own = np.ravel_multi_index(tuple(place[one] for one in cutting), line.shape)
    return np.flatnonzero(whole == own)
