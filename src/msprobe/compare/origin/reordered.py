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
"""Moves of axes are not among them: two of them with the same result are the same."""


def argument_before(index: int, trace: Trace) -> Optional[tuple[int, Row]]:
    """The call before with another argument (a padding, a shift) from whose result the inputs of a call were computed:
    its statistics agree, but not the order of its elements. None where there is none."""
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
    """New judgements, by the row's id, of arguments that were taken for harmless before their call was blamed."""
    return {
        id(row): row.judgement._replace(verdict=ERROR)
        for row in group[1]
        if row.verdict == PASS and row.judgement.reason.kind is Kind.ARGUMENT
    }


def reordering_before(index: int, trace: Trace) -> Optional[int]:
    """The call before, matched with a call of another API, from whose result the inputs of a call were computed, where
    both may reorder elements; None where there is none."""
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
