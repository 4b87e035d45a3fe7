"""A call that one run makes instead of another, with the same numbers in another order.

Statistics do not see the order of elements: the two calls seem to agree, and the first call that combines their results
with something else is the first that differs. The replaced call is the one to name.
"""

from __future__ import annotations

from typing import Optional

from msprobe.compare.calls import FORWARD
from msprobe.compare.measure.distance import value_key
from msprobe.compare.origin.trace import Trace

_REORDERING = {
    "cat", "concat", "stack", "repeat", "repeat_interleave", "tile", "flip", "roll", "gather", "index_select", "sort",
}  # fmt: skip
"""Moves of axes are not among them: two of them with the same result are the same."""


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
