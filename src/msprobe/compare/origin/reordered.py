"""A call that one run makes, alone or instead of another, with the same numbers in a different order.

Statistics do not see the order of elements: the two calls seem to agree, and the first call that combines their results
with something else is the first that differs. The reordering call is the one to name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from msprobe.compare.calls import BACKWARD, FORWARD, Call, Match, forward_name
from msprobe.compare.measure.distance import ValueKey, is_repetition, value_key
from msprobe.compare.origin.state import may_be_part
from msprobe.compare.origin.trace import Trace
from msprobe.compare.origin.wording import Candidate
from msprobe.compare.phases import Phase
from msprobe.compare.reasons import Kind
from msprobe.compare.rows import ERROR, WARNING, Group, Item, Row

_REORDERING = {
    "cat", "concat", "stack", "repeat", "repeat_interleave", "tile", "flip", "roll", "gather", "index_select", "sort",
}  # fmt: skip
"""Calls that only move axes are not included: two of them with the same result are the same."""


def argument_before(index: int, trace: Trace) -> Optional[tuple[int, Row]]:
    """The earlier call with a different argument (a padding, a shift) whose result leads to the inputs of a call: its
    statistics agree, but not the order of its elements. None if there is none."""
    wanted = {value_key(row.golden) for row in trace.groups[index][1] if row.is_input} - {None}
    for i in range(index - 1, -1, -1):
        match, rows = trace.groups[i]
        if match.call.kind != "api" or match.call.direction != FORWARD:
            continue
        if any(not row.is_input and value_key(row.golden) in wanted for row in rows):
            for row in rows:
                if _is_excused_argument(row):
                    return i, row
    return None


def argument_of_part(shown: Row, index: int, trace: Trace) -> Optional[tuple[int, Row]]:
    """The same where the input that differs is a part of such a result (a slice, which is not recorded)."""
    for i in range(index - 1, -1, -1):
        match, rows = trace.groups[i]
        if match.call.kind != "api" or match.call.direction != FORWARD:
            continue
        given = [row for row in rows if _is_excused_argument(row)]
        for made in rows if given else ():
            whole = made.target, made.golden
            if not made.is_input and all(one and may_be_part(part, one) for part, one in zip(_sides(shown), whole)):
                return i, given[0]
    return None


def _sides(row: Row) -> tuple[Item, Item]:
    return row.target, row.golden


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
        if match.how != "unmatched" and match.call.direction == FORWARD
        for row in rows
        if row.excuse is not None and row.judgement.verdict in (WARNING, ERROR) and row.difference.kind is Kind.VALUES
    ]
    if not any(call is not None and call.name in wanted for match, _ in bad for call in (match.target, match.golden)):
        return False
    for _, row in bad:
        row.excuse = None
    return True


def _is_excused_argument(row: Row) -> bool:
    return row.excuse is not None and row.difference.kind is Kind.ARGUMENT


def reordering_before(index: int, trace: Trace) -> Optional[int]:
    """The earlier call that may reorder elements and whose result leads to the inputs of a call: it is matched with a
    call of another API, or only one run makes it. None if there is none."""
    wanted = {value_key(row.golden) for row in trace.groups[index][1] if row.is_input} - {None}
    here = trace.groups[index][0].call.parent
    near: Optional[int] = None
    for i in range(index - 1, -1, -1):
        match, rows = trace.groups[i]
        if match.call.kind != "api" or match.call.direction != FORWARD:
            continue
        alone = match.target is None or match.golden is None
        if alone and _is_reordered(match, rows):
            if _gives(rows, wanted):
                return i
            if near is None and match.call.parent == here:
                near = i  # a slice or a view that was not recorded may be between
        if alone or not _gives(rows, wanted):
            continue
        words = {_word(call) for call in (match.target, match.golden) if call is not None}
        if len(words) == 2 and words <= _REORDERING:
            return i
        wanted |= {value_key(row.golden) for row in rows if row.is_input} - {None}
    return near


def _gives(rows: Sequence[Row], wanted: set[Optional[ValueKey]]) -> bool:
    return any(not row.is_input and value_key(row.golden or row.target) in wanted for row in rows)


def _is_reordered(match: Match, rows: Sequence[Row]) -> bool:
    """A call of one run that gives the numbers it was given, once or several times, in a different order."""
    if _word(match.call) not in _REORDERING:
        return False
    given = [row.golden or row.target for row in rows if row.is_input]
    made = [row.golden or row.target for row in rows if not row.is_input]
    return any(is_repetition(one, other) for one in made for other in given)


def _word(call: Call) -> str:
    return str(call.key.rpartition(".")[2])
