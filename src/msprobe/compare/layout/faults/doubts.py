"""What statistics do not show of a fault: the order of elements, sums over ranks, often the rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

from msprobe.compare.layout.case import Case
from msprobe.compare.layout.covering import ADDED_UP
from msprobe.compare.layout.ways import P
from msprobe.compare.origin.trace import Trace
from msprobe.compare.origin.wording import UNORDERED, Candidate
from msprobe.messages import Message


def with_doubts(found: Candidate, case: Optional[Case], trace: Trace) -> Candidate:
    """Says what statistics do not show, and what to do then."""
    if case is None or case.known:
        return found
    doubts = []
    first, calls = _uncompared_before(found.index, trace)
    if calls:
        doubts.append(Message("doubt.sums", number=calls, first=first))
    if not found.ranks and len(case.target.ranks) > 1:
        doubts.append(Message("doubt.rank"))
    if found.inputs == UNORDERED:
        doubts.append(Message("doubt.order"))
    if not doubts:
        return found
    doubts[-1] = Message("also", parts=[doubts[-1], Message("doubt.collect")])
    return replace(found, evidence=(*found.evidence, *doubts))


def _uncompared_before(index: int, trace: Trace) -> tuple[str, int]:
    """The calls just before a place whose results are sums over ranks that could not be compared: the first one, and
    their number."""
    first, calls = "", 0
    for place in range(index - 1, -1, -1):
        match, rows = trace.groups[place]
        results = [row for row in rows if not row.is_input and row.joined is not None]
        if match.call.direction != trace.groups[index][0].call.direction or not results:
            continue
        if not any(row.why is ADDED_UP or _is_sum(row.joined) for row in results):
            break
        first, calls = match.call.name, calls + 1
    return first, calls


def _is_sum(case: Optional[Case]) -> bool:
    return case is not None and case.layout is not None and not case.known and P in case.layout.target.placements
