"""A call that one run makes instead of another, with the same numbers in another order.

Statistics do not see the order of elements: the two calls seem to agree, and the first call that combines their results
with something else is the first that differs. The replaced call is the one to name.
"""

from __future__ import annotations

from typing import Optional

from msprobe.compare.calls import FORWARD
from msprobe.compare.measure.distance import value_key
from msprobe.compare.origin.trace import Trace
from msprobe.compare.reasons import Kind
from msprobe.compare.rows import ERROR, PASS, Group, Judgement, Row

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


def blamed_arguments(group: Group) -> dict[int, Judgement]:
    """New judgements by the id of the row, for arguments that seemed harmless before their call became the suspect."""
    return {
        id(row): row.judgement._replace(verdict=ERROR)
        for row in group[1]
        if row.verdict == PASS and row.judgement.reason.kind is Kind.ARGUMENT
    }


def reordering_before(index: int, trace: Trace) -> Optional[int]:
    """The earlier call, matched with a call of another API, whose result leads to the inputs of a call, if both may
    reorder elements; None if there is none."""
    wanted = {value_key(row.golden) for row in trace.groups[index][1] if row.is_input} - {None}
    for i in range(index - 1, -1, -1):
        match, rows = trace.groups[i]
        if match.target is None or match.golden is None or match.call.direction != FORWARD:
            continue
        if match.call.kind != "api" or not any(not row.is_input and value_key(row.golden) in wanted for row in rows):
            continue
        words = {call.key.rpartition(".")[2] for call in (match.target, match.golden)}
        if len(words) == 2 and words <= _REORDERING:
            return i
        wanted |= {value_key(row.golden) for row in rows if row.is_input} - {None}
    return None
