"""A call that one run makes, alone or instead of another, with the same numbers in another order.

Statistics do not see the order of elements: the two calls seem to agree, and the first call that combines their results
with something else is the first that differs. The reordering call is the one to name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from msprobe.compare.calls import FORWARD, Call, Match
from msprobe.compare.measure.distance import ValueKey, is_repetition, value_key
from msprobe.compare.origin.state import may_be_part
from msprobe.compare.origin.trace import Trace
from msprobe.compare.reasons import Kind
from msprobe.compare.rows import ERROR, PASS, Group, Item, Judgement, Row

_REORDERING = {
    "cat", "concat", "stack", "repeat", "repeat_interleave", "tile", "flip", "roll", "gather", "index_select", "sort",
}  # fmt: skip
"""Calls that only move axes are not included: two of them with the same result are the same."""


def argument_before(index: int, trace: Trace) -> Optional[tuple[int, Row]]:
    """The earlier call with another argument (a padding, a shift) whose result leads to the inputs of a call: its
    statistics agree, but not the order of its elements. None if there is none."""
    wanted = {value_key(row.golden) for row in trace.groups[index][1] if row.is_input} - {None}
    for i in range(index - 1, -1, -1):
        match, rows = trace.groups[i]
        if match.call.kind != "api" or match.call.direction != FORWARD:
            continue
        if any(not row.is_input and value_key(row.golden) in wanted for row in rows):
            for row in rows:
                if row.verdict == PASS and row.judgement.reason.kind is Kind.ARGUMENT:
                    return i, row
    return None


def argument_of_part(shown: Row, index: int, trace: Trace) -> Optional[tuple[int, Row]]:
    """The same where the input that differs is a part of such a result (a slice, which is not recorded)."""
    for i in range(index - 1, -1, -1):
        match, rows = trace.groups[i]
        if match.call.kind != "api" or match.call.direction != FORWARD:
            continue
        given = [row for row in rows if row.verdict == PASS and row.judgement.reason.kind is Kind.ARGUMENT]
        for made in rows if given else ():
            whole = made.target, made.golden
            if not made.is_input and all(one and may_be_part(part, one) for part, one in zip(_sides(shown), whole)):
                return i, given[0]
    return None


def _sides(row: Row) -> tuple[Item, Item]:
    return row.target, row.golden


def blamed_arguments(group: Group) -> dict[int, Judgement]:
    """New judgements by the id of the row, for arguments that seemed harmless before their call became the suspect."""
    return {
        id(row): row.judgement._replace(verdict=ERROR)
        for row in group[1]
        if row.verdict == PASS and row.judgement.reason.kind is Kind.ARGUMENT
    }


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
    """A call of one run that gives the numbers it was given, once or several times, in another order."""
    if _word(match.call) not in _REORDERING:
        return False
    given = [row.golden or row.target for row in rows if row.is_input]
    made = [row.golden or row.target for row in rows if not row.is_input]
    return any(is_repetition(one, other) for one in made for other in given)


def _word(call: Call) -> str:
    return str(call.key.rpartition(".")[2])
