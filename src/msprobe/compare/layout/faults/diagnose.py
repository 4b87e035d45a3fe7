"""Which fault of a parallel run explains the first difference: its kind, its ranks, the dimension of the mesh.

Each test reads the shards of the row again and asks one question: is a copy different on some rank, is the tensor a
multiple of what it should be, is it still a part of a sum, was it summed over other ranks, is a shard the wrong slice?
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Optional

from msprobe.compare.calls import FORWARD, GRADS
from msprobe.compare.layout.case import Case
from msprobe.compare.layout.covering import is_scaling
from msprobe.compare.layout.dimensions import ALL_RANKS, MICROBATCH, ranks_text
from msprobe.compare.layout.faults.doubts import with_doubts
from msprobe.compare.layout.faults.evidence import (
    CLOSE,
    Diagnosis,
    Loaded,
    copies_of,
    error_with,
    fits_of,
    group_text,
    load_case,
    name_dimensions,
    place_text,
    slot_of,
)
from msprobe.compare.layout.faults.guilty import guilty_ranks, of_order, of_same_parts, of_slice
from msprobe.compare.layout.faults.reductions import (
    of_own_part,
    of_partial_input,
    of_reduction,
    of_two_stages,
    of_unreduced,
)
from msprobe.compare.layout.faults.weights import of_weight
from msprobe.compare.layout.joined import Alone
from msprobe.compare.layout.shards import local_shape
from msprobe.compare.layout.ways import A, P, R, possible_ways
from msprobe.compare.origin.arguments import slot_text
from msprobe.compare.origin.trace import Trace, module_of
from msprobe.compare.origin.wording import Candidate
from msprobe.compare.phases import Phase
from msprobe.compare.rows import ERROR, is_tensor, slots_of
from msprobe.dump.collectives import is_collective
from msprobe.messages import Message


def diagnose(found: Candidate, trace: Trace, training: tuple[int, ...] = (), alone: Sequence[Alone] = ()) -> Candidate:
    """The suspect in terms of ranks, if its shards show more than the assembled tensor; `training` are the ranks whose
    training loop differs, `alone` the calls that only some ranks make."""
    if found.kind == "training":
        return replace(found, ranks=training)
    found = _by_result(found, trace)
    case = found.row.joined if found.row is not None else None
    diagnosis = None
    if case is not None and case.layout is not None:
        diagnosis = next(_tests(found, case, trace), None)
    if diagnosis is None or diagnosis.kind == found.kind:
        ranks = diagnosis.ranks if diagnosis is not None else _ranks_of(found, case, trace)
        diagnosis = _of_extra(found, trace, ranks, alone) or _of_argument(found, case, trace, ranks) or diagnosis
    if diagnosis is None:
        return with_doubts(replace(found, ranks=ranks, collective=_collective(found.index, trace)), case, trace)
    index = found.index if diagnosis.at is None else diagnosis.at
    named = replace(
        found,
        kind=diagnosis.kind,
        said=diagnosis.said,
        index=index,
        match=trace.groups[index][0],
        ranks=diagnosis.ranks,
        dimension=diagnosis.dimension,
        collective=_collective(found.index, trace),
    )
    return with_doubts(named, case, trace)


def _ranks_of(found: Candidate, case: Optional[Case], trace: Trace) -> tuple[int, ...]:
    """The ranks whose shards differ; for what is no tensor, those that pass a different argument or make the call."""
    if case is not None:
        return guilty_ranks(case)
    held = [
        one
        for row in trace.groups[found.index][1]
        if row.joined is not None and row.match.target is not None
        for one in row.joined.target.held
    ]
    golden, slot = found.match.golden, found.row.slot if found.row is not None else ""
    if found.kind == "argument" and golden is not None:
        theirs = _arguments(golden.record).get(slot)
        held = [one for one in held if _arguments(one.source.records.get(one.name)).get(slot) != theirs]
    return tuple(sorted({one.rank for one in held}))


def _by_result(found: Candidate, trace: Trace) -> Candidate:
    """A gradient that is divided is judged by the result of the division: each layout divides by its own number."""
    if found.kind != "argument" or found.phase is not Phase.AFTER or not is_scaling(found.match):
        return found
    rows = [row for row in trace.groups[found.index][1] if not row.is_input and row.joined is not None]
    return replace(found, row=rows[0]) if rows and any(row.verdict == ERROR for row in rows) else found


def _tests(found: Candidate, case: Case, trace: Trace) -> Iterator[Diagnosis]:
    """By the saved tensors, else by statistics."""
    if case.known:
        views = load_case(case)
        tests = (
            *(of_weight, of_order, _of_gradient, _of_factor, of_two_stages),
            *(of_reduction, of_partial_input, of_slice, _of_copy),
        )
        made = (test(found, case, trace, views) for test in tests if views is not None)
    else:
        made = (test(found, case, trace, None) for test in _BY_STATISTICS)
    return (one for one in made if one is not None)


# The gradients that the optimizer gets


def _of_gradient(found: Candidate, case: Case, trace: Trace, views: Loaded) -> Optional[Diagnosis]:
    """After the backward, a gradient that differs from rank to rank, or is a multiple of what it should be."""
    if found.phase is not Phase.AFTER and case.row.match.call.direction != GRADS:
        return None
    if views.shards.ndim == 0 or views.golden.size < 2:
        return of_own_part(found, case, _cases(trace), views)
    copies = copies_of(case, views)
    if len(copies) > 1 and max(one.error for one in copies) - min(one.error for one in copies) < CLOSE:
        return None
    local = local_shape(case.target.first)
    for placement, id in ((A, "fault.not_averaged"), (P, "fault.not_summed")):
        for way in possible_ways(local, views.golden.shape, case.target.sizes, (placement,)):
            axes = way.along(placement)
            if not axes or error_with(views, way) > CLOSE:
                continue
            name = name_dimensions(case.target, axes)
            said = Message(id, where=slot_of(found, case), group=group_text(case, axes[0]))
            return Diagnosis("gradient not averaged", said, tuple(case.target.ranks), name)
    return of_own_part(found, case, _cases(trace), views)


# A factor


def _of_factor(found: Candidate, case: Case, trace: Trace, views: Optional[Loaded]) -> Optional[Diagnosis]:
    """Every copy is the same multiple of what it should be."""
    fits = fits_of(case, views)
    if not fits or any(one.error > CLOSE or abs(one.factor / fits[0].factor - 1) > CLOSE for one in fits):
        return None
    times = 1.0 / fits[0].factor if fits[0].factor else math.inf
    if abs(times - 1) < 0.01 or not math.isfinite(times):
        return None
    where, slot = place_text(found, trace), slot_text(found.match.call, case.row.slot)
    batch = _batch_dimensions(trace)
    for name, size in sorted(_sizes(case, trace).items(), key=lambda one: (one[0] != MICROBATCH, one[0] not in batch)):
        kind, fault, why = _factor_words(found, name, size, times)
        if fault is not None and why is not None:
            said = Message("fault.factor", fault=fault, slot=slot, where=where, times=f"{times:.4g}", why=why)
            ranks = tuple(case.target.ranks) if len(case.target.ranks) > 1 or name == MICROBATCH else ()
            if case.target.pieces is not None:  # the ranks that have nothing of this parameter were reduced with
                ranks = tuple(sorted({rank for one in _cases(trace) for rank in one.target.ranks}))
            return Diagnosis(kind, said, ranks, name)
    return None


def _sizes(case: Case, trace: Trace) -> dict[str, int]:
    """The dimensions of the run with their sizes, those of the row first; then all ranks. A row that only some ranks
    have is not the measure of a dimension."""
    found = dict(zip(case.target.names, case.target.sizes))
    for other in _cases(trace):
        for name, size in zip(other.target.names, other.target.sizes):
            found[name] = max(found.get(name, 1), size)
    found = {name: size for name, size in found.items() if size > 1}
    ranks = [name for name in found if name != MICROBATCH]
    if len(ranks) > 1:
        found[", ".join(ranks)] = math.prod(found[name] for name in ranks)
    return found


def _cases(trace: Trace) -> Iterator[Case]:
    return (row.joined for _, rows in trace.groups for row in rows if row.joined is not None)


def _batch_dimensions(trace: Trace) -> set[str]:
    """The dimensions that split the batch: gradients that differ along them are scaled."""
    found: Optional[set[str]] = None
    for case in _cases(trace):
        if case.layout is not None and case.explained and case.layout.factor != 1.0:
            split = {n for n, one in zip(case.target.names, case.layout.target.placements) if one != R}
            found = split if found is None else found & split
    return found or set()


def _factor_words(
    found: Candidate, name: str, size: int, times: float
) -> tuple[str, Optional[Message], Optional[Message]]:
    """The kind of fault, its name in the sentence, and why."""
    more, less = math.isclose(times, size, rel_tol=0.01), math.isclose(times * size, 1.0, rel_tol=0.01)
    if not more and not less:
        return "", None, None
    if name == MICROBATCH:
        why = Message("fault.loss_not_divided" if more else "fault.loss_divided", number=size)
        return "wrong microbatch scaling", Message("fault.microbatch_scaling"), why
    ranks = Message("fault.ranks_of", number=size, dimension=name)
    if name == ALL_RANKS:
        ranks = Message("fault.ranks", number=size)
    if found.phase is Phase.AFTER or found.match.call.direction == GRADS:
        if more:
            why = Message("fault.summed_gradients", ranks=ranks)
            return "gradient not averaged", Message("fault.gradient_not_averaged"), why
        return "wrong factor", Message("fault.wrong_factor"), Message("fault.divided_often", number=size, ranks=ranks)
    if more:
        return "reduced twice", Message("fault.reduced_twice"), Message("fault.summed_often", ranks=ranks)
    return "wrong factor", Message("fault.wrong_factor"), Message("fault.mean_of_sum", ranks=ranks, number=size)


# A rank that computes something else


def _of_copy(found: Candidate, case: Case, trace: Trace, views: Optional[Loaded]) -> Optional[Diagnosis]:
    copies = copies_of(case, views)
    bad = [one for one in copies if one.bad]
    axes = case.layout.target.along(R) if case.layout is not None else ()
    if not bad or len(bad) == len(copies) or not axes:
        return None
    ranks = tuple(sorted({rank for one in bad for rank in one.ranks}))
    if len(ranks) == len(case.target.ranks):
        return None
    dimension = name_dimensions(case.target, axes)
    fine = sorted({rank for one in copies if not one.bad for rank in one.ranks})
    where, slot = place_text(found, trace), slot_text(found.match.call, case.row.slot)
    said = Message("fault.copy", slot=slot, where=where, ranks=ranks_text(ranks), fine=ranks_text(fine))
    return Diagnosis(found.kind, said, ranks, dimension)


def _of_extra(found: Candidate, trace: Trace, ranks: tuple[int, ...], alone: Sequence[Alone]) -> Optional[Diagnosis]:
    """The ranks with the difference make a call there that the others, and the golden run, do not make; or other ranks
    do, in a module whose ranks exchange tensors."""
    call = found.match.call
    if call.direction != FORWARD or found.phase is not Phase.FORWARD:
        return None
    golden = {match.target.name for match, _ in trace.groups if match.target is not None and match.golden is not None}
    parents = {match.target.name: match.target.parent for match, _ in trace.groups if match.target is not None}
    places: set[Optional[str]] = {call.name}
    name = call.parent
    while name not in places:
        places.add(name)
        name = parents.get(name or "")
    inside = [
        one
        for one in alone
        if one.call.direction == FORWARD and not is_collective(one.call.key) and one.call.name not in golden
    ]
    exchanges = any(m.target and m.target.parent == call.name and is_collective(m.target.key) for m, _ in trace.groups)
    near = (call.name, call.parent) if call.kind == "module" else (call.parent,)
    own = [
        one
        for one in inside
        if (one.call.parent in places and set(one.ranks) == set(ranks)) or (not ranks and one.call.parent in near)
    ]
    for one in own or [one for one in inside if one.call.parent == call.name and exchanges]:
        where = module_of(one.call, trace.groups) or module_of(call, trace.groups) or call.key
        ranks_said = ranks_text(one.ranks)
        said = Message("fault.extra_call", ranks=ranks_said, number=len(one.ranks), call=one.name, module=where)
        return Diagnosis("extra call", said, one.ranks)
    return None


def _of_argument(found: Candidate, case: Optional[Case], trace: Trace, ranks: tuple[int, ...]) -> Optional[Diagnosis]:
    """The ranks with the difference pass a different plain argument than the other ranks and the golden run."""
    golden = found.match.golden
    if case is None or golden is None or found.kind != "call" or found.phase is not Phase.FORWARD or not ranks:
        return None
    given = [(one.rank, _arguments(one.source.records.get(one.name))) for one in case.target.held]
    theirs = _arguments(golden.record)
    for slot in sorted({slot for _, own in given for slot in own} | set(theirs)):
        odd = tuple(sorted({rank for rank, own in given if own.get(slot) != theirs.get(slot)}))
        if odd == ranks and len(odd) < len({rank for rank, _ in given}):
            value = next(own.get(slot) for rank, own in given if rank in odd)
            name = slot_text(found.match.call, slot).partition(" (")[0].removeprefix("input.")
            text = Message("setting.is", name=name, target=str(value), golden=str(theirs.get(slot)))
            where = place_text(found, trace)
            said = Message("origin.argument_on_ranks", call=where, ranks=ranks_text(ranks), argument=text)
            return Diagnosis("argument", said, ranks)
    return None


def _arguments(record: Any) -> dict[str, Any]:
    """The plain inputs of a call."""
    slots = slots_of(record) if isinstance(record, dict) else ()
    return {
        slot: item.get("value")
        for slot, item in slots
        if slot.startswith("input.") and item is not None and not is_tensor(item)
    }


def _collective(index: int, trace: Trace) -> str:
    """The collective before a place, if it is in the same module."""
    parent = trace.groups[index][0].call.parent
    for place in range(index - 1, max(index - 30, -1), -1):
        call = trace.groups[place][0].target
        if call is not None and is_collective(call.key):
            inside = parent is None or call.parent == parent or place >= index - 3
            return call.name if inside else ""
    return ""


_BY_STATISTICS = (of_weight, of_unreduced, of_same_parts, _of_factor, _of_copy)
