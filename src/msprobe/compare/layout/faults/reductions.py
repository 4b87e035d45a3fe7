"""Reductions over ranks: one that is missing, one over other ranks, one made twice or with a different factor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Optional

import numpy as np

from msprobe.compare.calls import BACKWARD, GRADS, Call
from msprobe.compare.layout.case import Case
from msprobe.compare.layout.dimensions import ranks_text
from msprobe.compare.layout.faults.evidence import CLOSE, Diagnosis, Loaded, golden_at, group_text, load_case, slot_of
from msprobe.compare.layout.fitting import error_of, fit
from msprobe.compare.layout.flat import PartItem
from msprobe.compare.layout.shards import load
from msprobe.compare.layout.ways import Array, P, assemble, axis_of
from msprobe.compare.measure.distance import count, value_key
from msprobe.compare.origin.arguments import slot_text
from msprobe.compare.origin.trace import Trace, module_of
from msprobe.compare.origin.wording import Candidate
from msprobe.compare.phases import Phase
from msprobe.compare.reasons import Reason
from msprobe.compare.rows import Row
from msprobe.messages import Message


def of_reduction(found: Candidate, case: Case, trace: Trace, views: Loaded) -> Optional[Diagnosis]:
    """Tests whether the row is a reduction of the partial sums that were recorded before it."""
    if case.row.match.call.direction == GRADS or found.phase is Phase.AFTER or views.shards.ndim == 0:
        return None
    for index in range(found.index, max(found.index - 40, -1), -1):
        for row in trace.groups[index][1]:
            other = row.joined
            if other is None or row is case.row or other.layout is None or not other.explained or row.is_input:
                continue
            if other.target.sizes != case.target.sizes or other.target.first.get("shape") is None:
                continue
            axes = other.layout.target.along(P)
            unsure = not axes and _may_be_parts(other)
            parts = load(other.target) if unsure or len(axes) == 1 else None
            if parts is None or isinstance(parts, Reason):
                continue
            if _seen(views, parts).flat[0].shape != views.shards.flat[0].shape:
                continue
            for axis in range(parts.ndim) if unsure else axes:
                if _alike(parts, np.roll(parts, 1, axis)) or (unsure and not _gives_golden(views, parts, axis)):
                    continue
                diagnosis = _compare_reductions(found, case, trace, views, parts, axis, index)
                if diagnosis is not None:
                    return diagnosis
    return None


def _may_be_parts(case: Case) -> bool:
    """Whether both runs pass parts of a sum to a collective: their parts then agree like slices."""
    return case.reduced and bool(case.golden.sizes)


def _gives_golden(views: Loaded, parts: Array, axis: int) -> bool:
    """Whether the sum along a dimension is what every rank should have."""
    sums = _seen(views, _sums(parts, axis))
    return all(error_of(sums[place], golden_at(views, place)) < CLOSE for place in np.ndindex(sums.shape))


def _compare_reductions(
    found: Candidate, case: Case, trace: Trace, views: Loaded, parts: Array, axis: int, index: int
) -> Optional[Diagnosis]:
    """`parts` are the partial sums of the call at `index`, along a dimension of the mesh."""
    names, sizes = case.target.names, case.target.sizes
    alone, own = _seen(views, parts), _seen(views, _sums(parts, axis))
    if _alike(views.shards, own):
        return None
    place = _maker(index + 1, trace, trace.groups[index][0].call.direction)
    maker = trace.groups[index if place is None else place][0].call
    what = Message("call.in", call=maker.name, module=module_of(maker, trace.groups) or maker.key)
    group, ranks = group_text(case, axis), tuple(case.target.ranks)
    if _alike(views.shards, alone) or _alike(views.shards, _in_place_of(views, own, alone)):
        same = parts.flat[0].shape == views.shards.flat[0].shape
        word = "all-reduce" if same else "reduce-scatter"
        said = _missing(word, found, maker, what, group)
        return Diagnosis("missing all-reduce", said, ranks, names[axis], place)
    size = parts.shape[axis]
    for times, kind, id in (
        (size, "reduced twice", "fault.result_summed_often"),
        (1 / size, "wrong factor", "fault.result_averaged"),
    ):
        if _alike(views.shards, _in_place_of(views, own, _scaled(own, times))):
            return Diagnosis(kind, Message(id, call=what, group=group), ranks, names[axis], place)
    for other in range(len(sizes)):
        if other != axis and sizes[other] > 1 and _alike(views.shards, _seen(views, _sums(parts, other))):
            said = Message("fault.other_group", call=what, other=group_text(case, other), group=group)
            return Diagnosis("wrong group", said, ranks, names[other], place)
    if parts.ndim > 1 and _alike(views.shards, _seen(views, _sums(parts, None))):
        said = Message("fault.other_group", call=what, other=Message("fault.all_ranks"), group=group)
        return Diagnosis("wrong group", said, ranks, names[axis], place)
    return None


def _missing(reduction: str, found: Candidate, maker: Call, what: Message, group: Message) -> Message:
    """`what` is the call that made the parts, with its module."""
    if maker.direction == BACKWARD:
        reduction = Message("fault.of_gradient", reduction=reduction)
    return Message("fault.missing", reduction=reduction, call=found.match.call.name, maker=what, group=group)


def _seen(views: Loaded, whole: Array) -> Array:
    """The part of `whole` that each rank has: its slice, if the row has slices of it (a reduce-scatter)."""
    out: Array = np.empty(whole.shape, dtype=object)
    for place in np.ndindex(whole.shape):
        sliced = whole[place].ndim == views.golden.ndim and whole[place].shape != views.shards[place].shape
        out[place] = golden_at(views._replace(golden=whole[place]), place) if sliced else whole[place]
    return out


def _in_place_of(views: Loaded, right: Array, wrong: Array) -> Array:
    """What each rank would have if one summand of its tensor were `wrong`: autograd adds gradients without a record."""
    out: Array = np.empty(right.shape, dtype=object)
    for place in np.ndindex(right.shape):
        golden = golden_at(views, place)
        fits = golden.shape == right[place].shape
        out[place] = golden - right[place] + wrong[place] if fits else np.full(1, np.nan)
    return out


def _scaled(parts: Array, times: float) -> Array:
    out: Array = np.empty(parts.shape, dtype=object)
    for place in np.ndindex(parts.shape):
        out[place] = times * parts[place]
    return out


def _sums(parts: Array, axis: Optional[int]) -> Array:
    """For each rank the sum over its group along an axis; over all ranks without one."""
    out: Array = np.empty(parts.shape, dtype=object)
    for place in np.ndindex(parts.shape):
        if axis is None:
            group = list(parts.flat)
        else:
            group = [parts[(*place[:axis], one, *place[axis + 1 :])] for one in range(parts.shape[axis])]
        out[place] = np.sum([np.asarray(one).astype(np.float64) for one in group], axis=0)
    return out


def _alike(ours: Array, theirs: Array) -> bool:
    return all(error_of(ours[place], theirs[place]) < CLOSE for place in np.ndindex(ours.shape))


def of_two_stages(found: Candidate, case: Case, trace: Trace, views: Loaded) -> Optional[Diagnosis]:
    """A weight that two stages of a pipeline have: each updates it by its own gradient, not by their sum."""
    if found.phase is not Phase.AFTER or views.golden.size < 2:
        return None
    ours = assemble(views.shards, views.layout.target)[0]
    for match, rows in trace.groups:
        for row in rows if match.call.direction == GRADS else ():
            other = row.joined
            if other is None or set(other.target.ranks) & set(case.target.ranks):
                continue
            own = load_case(other)
            theirs = assemble(own.shards, own.layout.target)[0] if own is not None else None
            if theirs is None or theirs.shape != ours.shape or error_of(ours + theirs, views.golden) > CLOSE:
                continue
            said = Message(
                "fault.two_stages",
                where=slot_of(found, case),
                ranks=ranks_text(case.target.ranks),
                name=row.slot.partition(".")[2],
                module=match.call.key,
                others=ranks_text(other.target.ranks),
            )
            return Diagnosis("gradient not averaged", said, tuple(sorted({*case.target.ranks, *other.target.ranks})))
    return None


def of_own_part(found: Candidate, case: Case, cases: Iterable[Case], views: Loaded) -> Optional[Diagnosis]:
    """A gradient that the ranks keep in shards: each shard is a slice of what its rank computed alone."""
    if case.target.pieces is None and not any(axis_of(one) == 0 for one in views.layout.target.placements):
        return None
    for other in cases:
        way = other.layout.target if other.layout is not None and other.explained else None
        if way is None or way.placements != (P,) or not set(case.target.ranks) <= set(other.target.ranks):
            continue
        if other.phase is not Phase.BACKWARD or count(other.golden.first) != views.golden.size:
            continue
        alone = load(other.target)
        parts = {} if isinstance(alone, Reason) else dict(zip((one.rank for one in other.target.held), alone))
        fits = [fit(part, shard) for part, shard in _own_slices(case, views, parts)]
        if fits and all(one.error < CLOSE and abs(one.factor / fits[0].factor - 1) < CLOSE for one in fits):
            said = Message("fault.own_gradient", where=slot_of(found, case))
            return Diagnosis("gradient not averaged", said, tuple(other.target.ranks), other.target.names[0])
    return None


def _own_slices(case: Case, views: Loaded, parts: Mapping[int, Array]) -> Iterator[tuple[Array, Array]]:
    """(the slice of what a rank computed alone, its shard) for each rank."""
    for place in np.ndindex(views.shards.shape) if parts else ():
        at = int(case.target.cells[place])
        alone, item = parts[case.target.held[at].rank], case.target.items[at]
        piece = item.piece if isinstance(item, PartItem) else None
        if piece is not None:
            yield alone.reshape(-1)[piece.first : piece.last], views.shards[place]
        elif alone.shape == views.golden.shape:
            yield golden_at(views._replace(golden=alone), place), views.shards[place]


def of_unreduced(found: Candidate, case: Case, trace: Trace, views: Optional[Loaded]) -> Optional[Diagnosis]:
    """By statistics: each rank has the result of an earlier call on that rank alone, although that is a part of a
    sum."""
    own = [value_key(item) for item in case.target.items]
    takes = case.row.is_input or found.match.call.kind == "module"
    if not takes or None in own or len(set(own)) == 1:
        return None
    for index in range(found.index - 1, max(found.index - 40, -1), -1):
        match, rows = trace.groups[index]
        for row in rows:
            other = row.joined
            if (
                other is None
                or row.is_input
                or other.layout is None
                or [value_key(i) for i in other.target.items] != own
            ):
                continue
            axes = other.layout.target.along(P)
            if axes:
                module = module_of(match.call, trace.groups) or match.call.key
                said = Message(
                    "fault.missing",
                    reduction="all-reduce",
                    call=found.match.call.name,
                    maker=Message("call.in", call=match.call.name, module=module),
                    group=group_text(other, axes[0]),
                )
                ranks, name = tuple(other.target.ranks), other.target.names[axes[0]]
                return Diagnosis("missing all-reduce", said, ranks, name, index)
    return None


def of_partial_input(found: Candidate, case: Case, trace: Trace, views: Loaded) -> Optional[Diagnosis]:
    """A call that needs a sum received its parts."""
    if found.kind not in ("call", "choice", "received"):
        return None
    rows = trace.groups[found.index][1]
    for row in rows:
        given = row.joined
        if given is None or not row.is_input or given.layout is None or not given.explained:
            continue
        axes = given.layout.target.along(P)
        if not axes:
            continue
        name = given.target.names[axes[0]]
        parts = load(given.target)
        if not isinstance(parts, Reason) and _alike(parts, np.roll(parts, 1, axes[0])):
            group = group_text(given, axes[0])
            call, number = found.match.call, int(parts.shape[axes[0]])
            slot = slot_text(call, row.slot)
            said = Message("fault.mean_input", slot=slot, call=call.name, number=number, group=group)
            return Diagnosis("wrong factor", said, tuple(given.target.ranks), name, _giver(found.index, trace))
        maker = _maker(found.index, trace, found.match.call.direction)
        made = trace.groups[maker][0].call if maker is not None else found.match.call
        module = module_of(made, trace.groups) or made.key
        what = Message("call.in", call=made.name, module=module)
        said = _missing("all-reduce", found, found.match.call, what, group_text(given, axes[0]))
        return Diagnosis("missing all-reduce", said, tuple(given.target.ranks), name, maker)
    return None


def _giver(index: int, trace: Trace) -> Optional[int]:
    """The nearest call before that returned a partial sum."""
    for place in range(index - 1, -1, -1):
        match, rows = trace.groups[place]
        same = match.call.direction == trace.groups[index][0].call.direction
        if same and any(_is_partial(row) for row in rows if not row.is_input):
            return place
    return None


def _maker(index: int, trace: Trace, direction: str) -> Optional[int]:
    """The earlier call, in a direction, that made a partial sum from complete inputs: goes back through the calls that
    passed it on."""
    last = None
    for place in range(index - 1, -1, -1):
        match, rows = trace.groups[place]
        if match.how == "unmatched" or match.call.direction != direction:
            continue
        results = [row for row in rows if not row.is_input and _is_partial(row)]
        if not results or match.call.kind == "module":
            continue
        last = place
        if not any(_is_partial(row) for row in rows if row.is_input):
            return place
    return last


def _is_partial(row: Row) -> bool:
    case = row.joined
    return case is not None and case.layout is not None and case.explained and P in case.layout.target.placements
