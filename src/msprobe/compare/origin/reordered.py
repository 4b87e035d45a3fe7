"""A call that one run makes, alone or instead of another, with the same numbers in a different order.

Statistics do not see the order of elements: the two calls seem to agree, and the first call that combines their results
with something else is the first that differs. The reordering call is the one to name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from msprobe.compare.calls import BACKWARD, FORWARD, Call, Match, forward_name
from msprobe.compare.measure.distance import is_repetition
from msprobe.compare.operators import REORDERS
from msprobe.compare.origin.trace import Trace
from msprobe.compare.origin.ways import calls_before
from msprobe.compare.origin.wording import Candidate
from msprobe.compare.phases import Phase
from msprobe.compare.reasons import Kind
from msprobe.compare.rows import ERROR, WARNING, Group, Row


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
