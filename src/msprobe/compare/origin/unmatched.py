"""Calls that only one run made: the one that made a difference, and what stands in its place in the other run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, Optional

from msprobe.compare.calls import Match
from msprobe.compare.measure import distance
from msprobe.compare.measure.distance import value_key
from msprobe.compare.origin.trace import Trace
from msprobe.compare.origin.wording import Candidate
from msprobe.compare.rows import Row


def find_unmatched(index: int, inputs: list[Row], trace: Trace) -> Optional[Candidate]:
    """A call that only one run made, and whose result is the value that differs, or that stands just before it."""
    direction = trace.groups[index][0].call.direction
    before = [i for i in trace.unmatched if i < index and trace.groups[i][0].call.direction == direction]
    if not before:
        return None
    for i in reversed(before):
        match, rows = trace.groups[i]
        golden_only = match.target is None
        wanted = {value_key(row.golden if golden_only else row.target) for row in inputs} - {None}
        for row in rows:
            if not row.is_input and value_key(row.golden if golden_only else row.target) in wanted:
                first, shown = _first_maker(i, row, before, trace)
                return _unmatched_call(first, shown, before, trace)
    adjacent = []
    i = index - 1
    while i >= 0 and (i in before or trace.groups[i][0].call.kind == "module"):
        if i in before and trace.groups[i][0].call.kind != "module":
            adjacent.append(i)
        i -= 1
    if not adjacent:
        return None
    found = min(adjacent)
    rows = trace.groups[found][1]
    return _unmatched_call(found, rows[0] if rows else None, before, trace)


def _first_maker(index: int, row: Row, before: list[int], trace: Trace) -> tuple[int, Row]:
    """A call that hands on the numbers of its input (repeat, contiguous) made no difference: the unmatched call of the
    same run that made them did, where there is one."""
    match, rows = trace.groups[index]
    golden_only = match.target is None

    def side(one: Row) -> Any:
        return one.golden if golden_only else one.target

    handed_on = [one for one in rows if one.is_input and distance.is_repetition(side(row), side(one))]
    for i in reversed([i for i in before if i < index] if handed_on else []):
        other, made = trace.groups[i]
        if (other.target is None) == golden_only:
            for one in made:
                if not one.is_input and distance.is_repetition(side(one), side(handed_on[0])):
                    return _first_maker(i, one, before, trace)
    return index, row


def _unmatched_call(index: int, row: Optional[Row], before: list[int], trace: Trace) -> Candidate:
    """A call is missing (or extra) only where one run makes it less often; beside an unmatched call of the other run
    it is replaced by that."""
    match = trace.groups[index][0]
    made: Counter[tuple[bool, str]] = Counter()
    for other, _ in trace.groups:
        for golden, call in ((False, other.target), (True, other.golden)):
            if call is not None and call.direction == match.call.direction:
                made[golden, call.key] += 1
    golden_only = match.target is None
    kind = "missing call" if golden_only else "extra call"
    partner = _replacement(index, before, trace)
    if partner is not None:
        return replace(Candidate.at(index, "replaced", row, trace), other=partner)
    if made[golden_only, match.call.key] > made[not golden_only, match.call.key]:
        return Candidate.at(index, kind, row, trace)
    return Candidate.at(index, "elsewhere", row, trace)


def _replacement(index: int, before: list[int], trace: Trace) -> Optional[str]:
    """The nearest unmatched call of the other run in the same module and the same gap."""
    match = trace.groups[index][0]
    for step in (1, -1):
        i = index + step
        while i in before:
            other = trace.groups[i][0]
            if (other.target is None) != (match.target is None):
                same_place = _module_name(other.call.parent) == _module_name(match.call.parent)
                return other.call.name if same_place and other.call.kind == match.call.kind else None
            i += step
    return None


def _module_name(name: Optional[str]) -> str:
    """`Module.a.Block.forward.0` -> `a`: classes may differ."""
    return ".".join((name or "").split(".")[1:-3])


def is_inside(inner: Match, module: Match) -> bool:
    path, within = _module_name(module.call.name), _module_name(inner.call.parent)
    return within == path or within.startswith(path + ".")
