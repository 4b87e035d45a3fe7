"""Explains what only one layout does, if its effect agrees: such rows are not compared; harmless. A parallel
run exchanges tensors between its ranks and prepares them for this; a run on one device does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Optional

from msprobe.compare.calls import FORWARD, GRADS, Match
from msprobe.compare.judge.effects import Effects
from msprobe.compare.layout.dispatch import cover_dispatch
from msprobe.compare.measure.distance import count, number, result_key, value_key
from msprobe.compare.phases import Phase, phases_of
from msprobe.compare.reasons import Kind, Reason
from msprobe.compare.rows import ERROR, NOT_COMPARED, PASS, WARNING, Group, Judgement, Row, is_tensor
from msprobe.dump.collectives import is_collective
from msprobe.messages import Message

_SUM = Message("layout.sum")
ADDED_UP = Reason(Kind.KIND, _SUM)
_AFTER_SUM = Reason(Kind.COVERED, Message("also", parts=[_SUM, Message("layout.later_agrees")]))
_AFTER = Reason(Kind.COVERED, Message("layout.one_layout"))
_NORMS = Reason(Kind.COVERED, Message("layout.norms"))
_OTHER_NORMS = Reason(Kind.KIND, Message("layout.norms_unseen"))
_PACKED = Reason(Kind.COVERED, Message("layout.packed"))
_OWN = Message("layout.own_part")
_OWN_PART = Reason(Kind.COVERED, Message("also", parts=[_OWN, Message("layout.results_agree")]))
_SCALES = frozenset(("div", "div_", "mul", "mul_", "true_divide", "true_divide_", "__truediv__", "__mul__"))
SURE = 0.6
"""With less confidence, calls are matched by their place alone."""
_LAST_PART = Reason(Kind.COVERED, Message("layout.last_microbatch"))


def cover(groups: Sequence[Group], microbatches: int) -> dict[int, Judgement]:
    """New judgements by the id of the row."""
    found: dict[int, Judgement] = {}
    if microbatches > 1:
        for match, rows in groups:
            for row in rows if match.call.direction == GRADS else ():
                if row.joined is not None and not row.joined.explained:
                    found[id(row)] = Judgement(NOT_COMPARED, 0.0, _LAST_PART)
    _cover_inside(groups, found)
    cover_inputs(groups, found, microbatches)
    cover_dispatch(groups, found)
    _cover_norms(groups, found)
    _cover_packing(groups, found)
    if any(_differs(row) and id(row) not in found for _, rows in groups for row in rows):
        return found
    last = max((place for place, (_, rows) in enumerate(groups) if any(map(_agrees, rows))), default=-1)
    updates = _results_of_updates(groups)
    for place, (match, rows) in enumerate(groups):
        if place >= last and not _is_repeated(match, rows, updates):
            continue
        for row in rows:
            alone = match.how == "unmatched" or _are_other_collectives(match)
            if row.verdict == NOT_COMPARED and alone and row.why.kind is Kind.UNMATCHED:
                found[id(row)] = Judgement(NOT_COMPARED, 0.0, _AFTER)
            elif row.why.kind is Kind.SHAPE and _is_own_exchange(match, rows):
                found.setdefault(id(row), Judgement(NOT_COMPARED, 0.0, _AFTER))
            elif row.why is ADDED_UP:
                found.setdefault(id(row), Judgement(NOT_COMPARED, 0.0, _AFTER_SUM))
    return found


def _is_own_exchange(match: Match, rows: Sequence[Row]) -> bool:
    """Whether two exchanges between ranks have nothing to do with each other: they were matched by their place, and
    their tensors do not fit together. Each layout exchanges other tensors."""
    cases = [row.joined for row in rows if row.joined is not None]
    exchanged = is_collective(match.call.key) or any(case.reduced for case in cases)
    return exchanged and bool(cases) and all(case.layout is None for case in cases)


def _are_other_collectives(match: Match) -> bool:
    """Whether the runs exchange something by different collectives: two wrappers gather the same weights."""
    if match.target is None or match.golden is None or match.target.key == match.golden.key:
        return False
    return is_collective(match.target.key) and is_collective(match.golden.key)


def _cover_packing(groups: Sequence[Group], found: dict[int, Judgement]) -> None:
    """The buffers of different collectives have the same numbers in a different order."""
    for match, rows in groups:
        if _are_other_collectives(match):
            packed = [row for row in rows if _differs(row) and _has_same_numbers(row)]
            found.update((id(row), Judgement(NOT_COMPARED, 0.0, _PACKED)) for row in packed)


def _has_same_numbers(row: Row) -> bool:
    """Whether all ranks together have the same numbers in both runs, in any order."""
    if row.joined is None:
        return False
    ours, theirs = (_total(side.items) for side in (row.joined.target, row.joined.golden))
    pairs = zip_longest(ours, theirs, fillvalue=math.nan)
    return bool(ours) and all(math.isclose(a, b, rel_tol=1e-5) for a, b in pairs)


def _total(items: Sequence[dict[str, Any]]) -> tuple[float, ...]:
    """Number of elements, maximum, minimum and norm of several tensors together; empty without these."""
    most, least, norms = (
        [value for item in items if (value := number(item.get(key))) is not None] for key in ("Max", "Min", "Norm")
    )
    if not len(items) == len(most) == len(least) == len(norms) > 0:
        return ()
    return sum(map(count, items)), max(most), min(least), math.hypot(*norms)


Results = set[tuple[str, object]]


def _results_of_updates(groups: Sequence[Group]) -> Results:
    """The results of the calls after the backward in the target, if they agree."""
    return {
        (match.call.key, result_key(row.target))
        for (match, rows), phase in zip(groups, phases_of(groups))
        if phase is Phase.AFTER
        for row in rows
        if _agrees(row) or row.why.kind is Kind.ROUNDING
    }


def _is_repeated(match: Match, rows: Sequence[Row], updates: Results) -> bool:
    """Whether a call repeats an update. If two stages of a pipeline share a weight, both update it and have the same
    result. Ranks that update a share of the weights send the results to the others."""
    given = [result_key(row.target) for row in rows if not row.is_input and is_tensor(row.target)]
    known = updates
    if is_collective(match.call.key):
        known = {(match.call.key, result) for _, result in updates}
    return match.golden is None and bool(given) and all((match.call.key, key) in known for key in given)


def _cover_inside(groups: Sequence[Group], found: dict[int, Judgement]) -> None:
    """Ranks may make calls without counterpart for their part (a shifted index, a mask). If the results of the module
    around such a call agree, it does not matter."""
    effects: Optional[Effects] = None
    for match, rows in groups:
        bad = [row for row in rows if _is_odd(row)] if match.call.kind == "api" else []
        if not bad:
            continue
        effects = effects or Effects(groups)
        module = effects.agreeing_module(match.target) if match.target is not None else None
        if module is not None:
            for row in bad:
                what = _SUM if row.why is ADDED_UP else _OWN
                why = Message("also", parts=[what, Message("agrees.results_of", call=module)])
                found[id(row)] = Judgement(NOT_COMPARED, 0.0, Reason(Kind.COVERED, why))


def cover_inputs(groups: Sequence[Group], found: dict[int, Judgement], microbatches: int = 1) -> None:
    """Adds the judgements of inputs that differ while the results agree: positions that each rank counts from 0 and
    then shifts, sums that each run divides by the number of its own parts. A weight that differs is never covered so.
    After the backward only the latter: there, clipping hides a wrong factor."""
    for (match, rows), phase in zip(groups, phases_of(groups)):
        results = [row for row in rows if not row.is_input and is_tensor(row.golden)]
        if match.call.direction != FORWARD or is_collective(match.call.key) or not all(map(_agrees, results)):
            continue
        odd = [row for row in rows if row.slot.startswith("input.") and _differs(row)] if results else []
        other_number = any(_has_other_number(row) for row in rows) if odd else False
        in_forward = phase is Phase.FORWARD and (not other_number or microbatches > 1)
        if in_forward or (phase is not Phase.FORWARD and other_number and is_scaling(match)):
            for row in odd:
                found.setdefault(id(row), Judgement(NOT_COMPARED, 0.0, _OWN_PART))


def is_scaling(match: Match) -> bool:
    return match.call.direction == FORWARD and match.call.key.rpartition(".")[2] in _SCALES


def _has_other_number(row: Row) -> bool:
    ours, theirs = (_number(item) for item in (row.target, row.golden)) if row.is_input else (None, None)
    return ours is not None and theirs is not None and ours != theirs


def _number(item: Optional[dict[str, object]]) -> Optional[float]:
    value = item.get("value") if item is not None and not is_tensor(item) else None
    return number(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _cover_norms(groups: Sequence[Group], found: dict[int, Judgement]) -> None:
    """Each layout adds up the norm of all gradients in other parts, by other calls. If the inputs of the updates agree,
    the norm agrees."""
    after = [one for one, phase in zip(groups, phases_of(groups)) if phase is Phase.AFTER and one[0].how != "unmatched"]
    odd, tensors = [], []
    listed = _lists_of_numbers(after)
    for match, rows in after:
        for row in rows:
            is_number = not is_tensor(row.golden) or row.golden is None or count(row.golden) < 2
            if is_number or match.confidence < SURE or value_key(row.golden) in listed:
                odd.append(row)
            else:
                tensors.append(row)
    if not any(row.verdict == PASS for row in tensors):
        if any(row.why.kind is Kind.KIND for row in tensors) and not any(map(_is_odd, tensors)):
            found.update((id(row), Judgement(NOT_COMPARED, 0.0, _OTHER_NORMS)) for row in odd if _is_odd(row))
        return
    if _starts_with_a_norm(after, {id(row) for row in tensors if _is_odd(row) and id(row) not in found}):
        return
    for row in odd:
        if _is_odd(row) or row.why.kind is Kind.KIND or row.absent:
            found[id(row)] = Judgement(NOT_COMPARED, 0.0, _NORMS)


def _starts_with_a_norm(after: Sequence[Group], odd: set[int]) -> bool:
    """Whether a wrong norm may be why the first of these tensors differs: the call that has it was given a tensor, or a
    single number, that differs."""
    first = next((rows for _, rows in after if any(id(row) in odd for row in rows)), [])
    return any(row.is_input and is_tensor(row.golden) and _is_odd(row) for row in first)


def _lists_of_numbers(groups: Sequence[Group]) -> set[object]:
    """What the golden run makes of numbers alone: the norms of all parameters, which it stacks."""
    found: set[object] = set()
    for _, rows in groups:
        given = [row.golden for row in rows if row.is_input and row.golden is not None and is_tensor(row.golden)]
        if given and all(count(item) < 2 for item in given):
            found |= {value_key(row.golden) for row in rows if not row.is_input}
    return found - {None}


def _is_odd(row: Row) -> bool:
    return _differs(row) or row.why.kind is Kind.SHAPE or row.why is ADDED_UP


def _differs(row: Row) -> bool:
    return row.verdict in (WARNING, ERROR)


def _agrees(row: Row) -> bool:
    return row.verdict == PASS and not row.is_input and is_tensor(row.golden)
