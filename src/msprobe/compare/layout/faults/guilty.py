"""Which ranks have the fault: shards that are a different slice, copies that differ, parts of a sum that are wrong."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Optional

import numpy as np

from msprobe.compare.calls import module_path
from msprobe.compare.layout.case import Case, Layout
from msprobe.compare.layout.dimensions import ranks_text
from msprobe.compare.layout.faults.evidence import (
    CLOSE,
    FAR,
    Diagnosis,
    Loaded,
    golden_at,
    load_case,
    name_dimensions,
    own_elements,
    place_text,
)
from msprobe.compare.layout.fitting import EXPLAINED, error_of, find_order, fit
from msprobe.compare.layout.statistics import merge
from msprobe.compare.layout.ways import REDUCED, Array, P, assemble, axis_of
from msprobe.compare.measure.distance import number, scale, value_key
from msprobe.compare.origin.arguments import slot_text
from msprobe.compare.origin.trace import Trace, module_of
from msprobe.compare.origin.wording import Candidate
from msprobe.compare.phases import Phase
from msprobe.dump.collectives import is_collective
from msprobe.messages import Message


def of_slice(found: Candidate, case: Case, trace: Trace, views: Loaded) -> Optional[Diagnosis]:
    """A shard that is a different slice of the golden tensor than its rank should have."""
    way = views.layout.target
    sliced = [axis for axis, one in enumerate(way.placements) if axis_of(one) is not None]
    if not sliced:
        return None
    wrong: dict[Message, list[int]] = {}
    axis = axis_of(way.placements[sliced[0]])
    assert axis is not None
    for place in np.ndindex(views.shards.shape):
        piece, whole = views.shards[place], golden_at(views, place, but=axis)
        own = np.take(whole, own_elements(views, place, axis), axis)
        if error_of(piece, own) < CLOSE or piece.shape != own.shape:
            continue
        rank = case.target.held[int(case.target.cells[place])].rank
        start = _find(piece, whole, axis)
        if start is not None:
            last = start + piece.shape[axis] - 1
            wrong.setdefault(Message("fault.elements", first=start, last=last, axis=axis), []).append(rank)
        elif _same_rows(piece, own, axis):
            wrong.setdefault(Message("fault.other_order"), []).append(rank)
    if not wrong:
        return None
    call, row = found.match.call, case.row
    parts = [
        Message("fault.has", ranks=ranks_text(ranks), number=len(ranks), what=text) for text, ranks in wrong.items()
    ]
    of_data = not row.slot.startswith("parameters.") and not _is_permuted(views, sliced[0])
    ranks = tuple(sorted({rank for one in wrong.values() for rank in one}))
    id = "fault.sliced_data" if of_data else "fault.sliced"
    said = Message(id, slot=slot_text(call, row.slot), where=place_text(found, trace), parts=parts)
    return Diagnosis("shard mis-sliced", said, ranks, case.target.names[sliced[0]])


def _is_permuted(views: Loaded, dimension: int) -> bool:
    """No two ranks along a dimension have the same slice."""
    line = list(np.moveaxis(views.shards, dimension, 0).reshape(views.shards.shape[dimension], -1)[:, 0])
    return all(error_of(a, b) > CLOSE for at, a in enumerate(line) for b in line[at + 1 :])


def of_same_parts(found: Candidate, case: Case, trace: Trace, views: Optional[Loaded]) -> Optional[Diagnosis]:
    """By statistics: ranks that should each have their own slice of the data or of a weight have the same one. Which is
    in its place is not known. What the ranks have exchanged is no such slice."""
    way = case.layout.target if case.layout is not None and not _is_exchanged(found.index, case, trace) else None
    for axis, placement in enumerate(way.placements if way is not None else ()):
        if axis_of(placement) is None:
            continue
        same: dict[object, set[int]] = {}
        for place in np.ndindex(case.target.cells.shape):
            at = int(case.target.cells[place])
            key, item = value_key(case.target.items[at]), case.target.items[at]
            if key is not None and item.get("Max") != item.get("Min"):
                others = (*place[:axis], *place[axis + 1 :])
                same.setdefault((key, others), set()).add(case.target.held[at].rank)
        ranks = tuple(sorted({rank for group in same.values() if len(group) > 1 for rank in group}))
        if ranks:
            slot, where = slot_text(found.match.call, case.row.slot), place_text(found, trace)
            said = Message("fault.same_part", slot=slot, where=where, ranks=ranks_text(ranks))
            return Diagnosis("shard mis-sliced", said, ranks, case.target.names[axis])
    return None


def _is_exchanged(index: int, case: Case, trace: Trace) -> bool:
    own = {value_key(item) for item in case.target.items}
    before = (rows for match, rows in trace.groups[:index] if is_collective(match.call.key))
    results = (row for rows in before for row in rows if not row.is_input)
    items = (one.joined.target.items if one.joined is not None else [one.target] for one in results)
    return any(value_key(item) in own for given in items for item in given if item is not None)


def of_order(found: Candidate, case: Case, trace: Trace, views: Loaded) -> Optional[Diagnosis]:
    """A weight whose slices are in a different order than those of the same weight in other layers, or than what it is
    multiplied with."""
    if found.phase is not Phase.FORWARD or found.kind == "weight":
        return None
    usual: dict[tuple[str, ...], Counter[object]] = {}
    around = f"{module_path(module_of(found.match.call, trace.groups) or '')}."
    weights = []
    for index, (match, rows) in enumerate(trace.groups):
        for row in rows:
            one = row.joined
            if "parameters." in row.slot and one is not None and one.layout is not None:
                usual.setdefault(one.kind, Counter())[one.layout.orders] += 1
                if f"{module_path(match.call.key)}.".startswith(around):
                    weights.append((index, one, one.layout))
    for index, one, layout in weights:
        if not layout.orders or not one.explained or (sum(usual[one.kind].values()) > 1 and len(usual[one.kind]) == 1):
            continue
        plain = load_case(replace(one, layout=layout._replace(orders=())))
        if plain is None:
            continue
        weight = replace(found, row=one.row, match=one.row.match, index=index)
        diagnosis = of_slice(weight, one, trace, plain) or _reordered(weight, one, trace, layout)
        return diagnosis._replace(at=index)
    return None


def _reordered(found: Candidate, case: Case, trace: Trace, layout: Layout) -> Diagnosis:
    """The slices of all ranks together are those of the golden tensor, in a different order."""
    axis, order = layout.orders[0]
    place = {int(mine): golden for golden, mine in enumerate(order)}
    first = [place[mine] for mine in range(len(order) // max(1, math.prod(case.target.sizes)))]
    said = Message(
        "fault.reordered",
        slot=slot_text(found.match.call, case.row.slot),
        where=place_text(found, trace),
        axis=axis,
        rank=case.target.ranks[0],
        elements=_ranges(first),
    )
    return Diagnosis("shard mis-sliced", said, tuple(case.target.ranks), name_dimensions(case.target, (0,)))


def _ranges(numbers: list[int]) -> str:
    """`0-3, 12-15, …` for numbers in the order given."""
    starts = [0, *(at for at in range(1, len(numbers)) if numbers[at] != numbers[at - 1] + 1), len(numbers)]
    runs = [(numbers[a], numbers[b - 1]) for a, b in zip(starts, starts[1:])]
    said = [f"{a}-{b}" if b > a else str(a) for a, b in runs[:4]]
    return ", ".join([*said, "…"] if len(runs) > len(said) else said)


def _find(piece: Array, golden: Array, axis: int) -> Optional[int]:
    length = piece.shape[axis]
    for start in range(golden.shape[axis] - length + 1):
        if error_of(piece, np.take(golden, range(start, start + length), axis)) < CLOSE:
            return start
    return None


def _same_rows(piece: Array, own: Array, axis: int) -> bool:
    """Whether the slices are those that the rank should have, in a different order; false for a scaled tensor."""
    order = find_order(piece, own, axis)
    return order is not None and error_of(np.take(piece, order, axis), own) < CLOSE


def guilty_ranks(case: Case) -> tuple[int, ...]:
    """The ranks whose shards differ from their part of the golden tensor; empty if this is not known."""
    if len(case.target.ranks) == 1:
        return tuple(case.target.ranks)
    if not case.known or case.layout is None:
        return _beyond_golden(case)
    views = load_case(case)
    if views is None:
        return ()
    way = views.layout.target
    partial = way.along(P)
    if partial:
        return _guilty_of_sum(case, views, partial[0])
    errors: dict[int, float] = {}
    for place in np.ndindex(views.shards.shape):
        own = golden_at(views, place)
        rank = case.target.held[int(case.target.cells[place])].rank
        errors[rank] = max(errors.get(rank, 0.0), error_of(views.shards[place], own))
    if not errors:
        return ()
    least = min(errors.values())
    if least > EXPLAINED:
        return tuple(sorted(errors))
    bad = tuple(sorted(rank for rank, error in errors.items() if error > max(FAR * least, 1e-6)))
    return bad if bad and len(bad) < len(errors) else tuple(sorted(errors))


def _beyond_golden(case: Case) -> tuple[int, ...]:
    """By statistics: the ranks whose slice or copy cannot be a part of the golden tensor, because its maximum, its
    minimum or its norm is beyond that of the complete one. Others may be wrong too."""
    layout = case.layout
    if layout is None or any(one in REDUCED for way in (layout.target, layout.golden) for one in way.placements):
        return ()
    golden = merge(case.golden, layout.golden)[0]
    size = scale(golden)
    found = set()
    for held, item in zip(case.target.held, case.target.items):
        for key, sign in (("Max", 1.0), ("Min", -1.0), ("Norm", 1.0)):
            own, whole = number(item.get(key)), number(golden.get(key))
            if own is None or whole is None or layout.factor < 0:
                continue
            room = CLOSE * (size if key != "Norm" else whole)
            if sign * (layout.factor * own - whole) > room:
                found.add(held.rank)
    return tuple(sorted(found))


def _guilty_of_sum(case: Case, views: Loaded, axis: int) -> tuple[int, ...]:
    """The rank whose part of a sum is wrong: the error of the sum is a multiple of that part, or is only at places
    where that part is not zero."""
    try:
        total = assemble(views.shards, views.layout.target)[0]
    except ValueError:
        return ()
    if total.shape != views.golden.shape or views.shards.ndim != 1:
        return ()
    away: Array = total - views.golden.astype(np.float64)
    shares: dict[int, float] = {}
    for place in range(views.shards.shape[axis]):
        part = views.shards[place].astype(np.float64)
        rank = case.target.held[int(case.target.cells[place])].rank
        if fit(part, away).error < 0.05:
            return (rank,)
        size = float(np.abs(away).sum())
        shares[rank] = float(np.abs(away)[part != 0].sum()) / size if size else 0.0
    best = max(shares.values(), default=0.0)
    chosen = [rank for rank, share in shares.items() if share == best]
    others = [share for rank, share in shares.items() if rank not in chosen]
    return tuple(chosen) if best > 0.8 and all(share < 0.5 for share in others) else ()
