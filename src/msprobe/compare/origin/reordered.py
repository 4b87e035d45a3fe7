"""Numbers in a different order: from a call that one run makes, alone or instead of another, or from a weight.

Maximum, minimum, mean and norm do not see the order of elements: the two calls seem to agree, and the first call that
combines their results with something else is the first that differs. The reordering call is the one to name. If both
dumps have Order, it proves which values are in a different order; else only calls that may reorder are candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Optional

from msprobe.compare.calls import BACKWARD, FORWARD, Call, Match, forward_name
from msprobe.compare.flow.graph import Step, Value
from msprobe.compare.measure.distance import is_repetition
from msprobe.compare.measure.order import has_same_order, is_reordered
from msprobe.compare.operators import REORDERS
from msprobe.compare.origin.arguments import plain_arguments, slot_text
from msprobe.compare.origin.structure import candidate, candidate_of_one_run
from msprobe.compare.origin.trace import Trace
from msprobe.compare.origin.ways import calls_before
from msprobe.compare.origin.wording import Candidate, call_text, weight_text
from msprobe.compare.phases import Phase
from msprobe.compare.reasons import Kind
from msprobe.compare.rows import ERROR, WARNING, Group, Row
from msprobe.messages import Message

REORDERED = Message("evidence.reordered")
REORDERED_VALUE = Message("evidence.order")


def argument_before(rows: Sequence[Row], trace: Trace) -> Optional[tuple[int, Row]]:
    """The earlier call with a different argument (a padding, a shift) that leads to these values: the statistics of its
    result agree, but not the order of its elements. None if there is none."""
    for place in calls_before(rows, trace):
        match, given = trace.groups[place]
        if match.call.kind == "api" and match.call.direction == FORWARD:
            for row in given:
                if _is_excused_argument(row):
                    return place, row
    return None


def blame_arguments(group: Group) -> None:
    """Takes back the excuses of arguments whose call became the suspect."""
    for row in group[1]:
        if _is_excused_argument(row):
            row.excuse = None


def blame_forward(found: Candidate, groups: Sequence[Group]) -> bool:
    """If the suspect is the backward of a call whose forward differs, too, and that was excused because later values of
    the forward agree: takes back these excuses of the forward. Returns whether it did."""
    if found.phase is not Phase.BACKWARD or found.match.call.direction != BACKWARD:
        return False
    wanted = {forward_name(call) for call in (found.match.target, found.match.golden) if call is not None}
    bad = [
        (match, row)
        for match, rows in groups
        if match.call.direction == FORWARD
        for row in rows
        if row.excuse is not None and (_is_other_value(row) or match.how == "unmatched")
    ]
    sides = (call for match, row in bad if _is_other_value(row) for call in (match.target, match.golden))
    if not any(call is not None and call.name in wanted for call in sides):
        return False
    for _, row in bad:
        row.excuse = None
    return True


def _is_other_value(row: Row) -> bool:
    return row.judgement.verdict in (WARNING, ERROR) and row.difference.kind is Kind.VALUES


def _is_excused_argument(row: Row) -> bool:
    return row.excuse is not None and row.difference.kind is Kind.ARGUMENT


def blame_order(index: int, trace: Trace) -> Optional[Candidate]:
    """What put an input of a call in a different order: a weight, an input that no call made, or the call that made
    it. None if Order does not prove that an input is in a different order."""
    for given in trace.groups[index][1] if trace.facts is not None else ():
        row = given if is_reordered(given) else _before_moved(given, trace)
        if row is not None and given.is_input:
            step, first = _first_reordered(row, trace)
            if step is None:
                return _given_in_other_order(first, index, trace)
            place = next((i for i, (match, _) in enumerate(trace.groups) if match is step.match), None)
            if place is not None and place < index:
                return _made_in_other_order(place, first, trace)
    return None


def _before_moved(row: Row, trace: Trace) -> Optional[Row]:
    """For a value that differs: the value in a different order of which it is a part, if both runs take it from the
    same result or from the same call (queries and keys of one projection)."""
    if trace.facts is None or row.judgement.verdict not in (WARNING, ERROR) or row.absent:
        return None
    target, golden = (_maker(side.graph.of_row.get(id(row))) for side in trace.facts.sides)
    if target is None or golden is None or target.match is not golden.match:
        return None
    return next((part.row for part in (*target.results, *target.takes) if part.row and is_reordered(part.row)), None)


def _first_reordered(row: Row, trace: Trace) -> tuple[Optional[Step], Row]:
    """The first value in a different order that leads to this one, and the call that made it, if one did."""
    assert trace.facts is not None
    seen = {id(row)}
    while True:
        makers = [step for side in trace.facts.sides if (step := _maker(side.graph.of_row.get(id(row)))) is not None]
        alone = next((step for step in makers if not step.is_matched), None)
        if alone is not None or not makers:
            return alone, row
        takes = (part.row for step in makers for part in step.takes)
        earlier = next((one for one in takes if one is not None and id(one) not in seen and is_reordered(one)), None)
        if earlier is None:
            return makers[0], row
        row = earlier
        seen.add(id(row))


def _maker(value: Optional[Value]) -> Optional[Step]:
    while value is not None and value.maker is None:
        value = value.source
    return None if value is None else value.maker


def _given_in_other_order(row: Row, index: int, trace: Trace) -> Candidate:
    """A value that no recorded call made: a weight, if a module has it, else an input from outside."""
    assert trace.facts is not None
    values = [side.graph.of_row.get(id(row)) for side in trace.facts.sides]
    same = [one for value in values if value is not None for one in value.rows]
    held = next((one for one in same if one.slot.startswith("parameters.")), None)
    shown = held or row
    place = next(i for i, (match, _) in enumerate(trace.groups) if match is shown.match)
    evidence = (REORDERED_VALUE, Message("evidence.passed", call=trace.groups[index][0].call.name))
    if held is not None:
        said = Message("order.weight", weight=weight_text(held, held.match.call.key))
        return replace(candidate("weight", place, held, trace, evidence), said=said)
    call = row.match.call
    said = Message("order.input", call=call_text(call, None), slot=slot_text(call, row.slot))
    return replace(candidate("input", place, row, trace, evidence), said=said)


def _made_in_other_order(place: int, row: Row, trace: Trace) -> Candidate:
    match, rows = trace.groups[place]
    if match.how == "unmatched":
        return replace(candidate_of_one_run(place, trace), evidence=(Message("evidence.reorders"),))
    for one in rows:
        if _is_excused_argument(one):
            return candidate("argument", place, one, trace, (REORDERED,))
    given = (REORDERED_VALUE, *plain_arguments(match))
    if match.target is not None and match.golden is not None and match.target.key != match.golden.key:
        return replace(candidate("replaced", place, None, trace, given), other=match.golden.name)
    results = [one for one in rows if not one.is_input]
    made = next((one for one in results if is_reordered(one)), row)
    if row.is_input and made is row and any(has_same_order(one) for one in results):
        return _moved_between(match, row, trace)
    said = Message("order.call", call=call_text(match.call, None), slot=slot_text(match.call, made.slot))
    return replace(candidate("call", place, made, trace, given), said=said)


def _moved_between(maker: Match, row: Row, trace: Trace) -> Candidate:
    """The result of a call agrees, and the call that takes it receives it in a different order: a view is between."""
    place = next(i for i, (match, _) in enumerate(trace.groups) if match is row.match)
    call = row.match.call
    said = Message(
        "order.between", call=call_text(call, None), slot=slot_text(call, row.slot), maker=call_text(maker.call, None)
    )
    return replace(candidate("input", place, row, trace, (REORDERED_VALUE,)), said=said)


def reordering_before(index: int, trace: Trace) -> Optional[int]:
    """The earlier call that may reorder elements and leads to the inputs of a call: it is matched with a call of
    another API, or only one run makes it. None if there is none."""
    inputs = [row for row in trace.groups[index][1] if row.is_input]
    before = calls_before(inputs, trace)
    here = trace.groups[index][0].call.parent
    near = [i for i in reversed(trace.unmatched) if i < index and trace.groups[i][0].call.parent == here]
    for place in [*before, *near]:  # a copy that was not recorded may be between
        match, rows = trace.groups[place]
        if match.call.kind != "api" or match.call.direction != FORWARD:
            continue
        if match.how == "unmatched" and _is_reordered(match, rows):
            return place
        words = {_word(call) for call in (match.target, match.golden) if call is not None}
        if len(words) == 2 and words <= REORDERS:
            return place
    return None


def _is_reordered(match: Match, rows: Sequence[Row]) -> bool:
    """A call of one run that gives the numbers it was given, once or several times, in a different order."""
    if _word(match.call) not in REORDERS:
        return False
    given = [row.golden or row.target for row in rows if row.is_input]
    made = [row.golden or row.target for row in rows if not row.is_input]
    return any(is_repetition(one, other) for one in made for other in given)


def _word(call: Call) -> str:
    return str(call.key.rpartition(".")[2])
