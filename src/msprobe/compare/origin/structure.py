"""Calls that only one run made: which of them made the difference, and what replaces them."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any, Optional

from msprobe.compare.calls import BACKWARD, FORWARD, Match, forward_name, module_path
from msprobe.compare.measure import distance
from msprobe.compare.measure.distance import value_key
from msprobe.compare.origin.arguments import plain_arguments
from msprobe.compare.origin.source import user_lines
from msprobe.compare.origin.trace import Trace, bad_rows
from msprobe.compare.origin.wording import Candidate
from msprobe.compare.phases import Phase
from msprobe.compare.reasons import Kind
from msprobe.compare.rows import Group, Row, is_tensor
from msprobe.messages import Message


def candidate(kind: str, index: int, row: Optional[Row], trace: Trace, evidence: tuple[Message, ...] = ()) -> Candidate:
    match = trace.groups[index][0]
    received = kind == "received"
    return Candidate(kind, index, row, match, trace.epoch(index), received, evidence, phase=trace.phases[index])


def structural(index: int, inputs: list[Row], trace: Trace) -> Optional[Candidate]:
    """A call that only one run made, and whose result is the input that differs, or that is just before it."""
    direction = trace.groups[index][0].call.direction
    before = [i for i in trace.unmatched if i < index and trace.groups[i][0].call.direction == direction]
    before = [i for i in before if not is_excused(trace.groups[i])]
    before = without_rewritten(before, trace) if before else before
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


def is_excused(group: Group) -> bool:
    """Whether everything that follows from the call agrees."""
    return bool(group[1]) and all(row.excuse is not None for row in group[1])


def without_rewritten(places: list[int], trace: Trace) -> list[int]:
    """Leaves out calls of a part that is written in a different way (fused projections): in a different layer the same
    call has no counterpart either, and the results agree there."""
    agree: dict[object, set[str]] = defaultdict(set)
    lines: set[object] = set()
    for i in trace.unmatched:
        match, rows = trace.groups[i]
        if rows and all(row.why.kind is Kind.COVERED for row in rows):
            agree[_part(match)].add(_path(match))
            lines.add(_line(i, trace))
    places = [i for i in places if not agree[_part(trace.groups[i][0])] - {_path(trace.groups[i][0])}]
    return [i for i in places if _line(i, trace) not in lines]


def _line(index: int, trace: Trace) -> object:
    """After the backward, what a line of the script does to the gradient of each parameter; else nothing that two calls
    have in common."""
    match = trace.groups[index][0]
    lines = user_lines(trace.stacks, match)
    known = trace.phases[index] is Phase.AFTER and any(lines)
    return (match.call.key, lines) if known else index


def _part(match: Match) -> tuple[bool, str, str]:
    """Which run makes the call, the call, and its module whatever the layer."""
    call = match.call
    layers = ".".join("*" if part.isdigit() else part for part in _path(match).split("."))
    return match.target is None, layers, "" if call.kind == "module" else call.key


def _path(match: Match) -> str:
    call = match.call
    return module_path(call.key) if call.kind == "module" else _module_name(call.parent)


def made_inside(index: int, results: list[Row], trace: Trace) -> Optional[Candidate]:
    """A call that only one run made inside this module, and that explains why the results of the module differ."""
    match = trace.groups[index][0]
    if match.call.kind != "module":
        return None
    found = structural(index, results, trace)
    around = [call.name for call in (match.target, match.golden) if call is not None]
    return found if found is not None and found.match.call.parent in around else None


def left_out(index: int, trace: Trace) -> Optional[Candidate]:
    """A call that only one run made in the module of this call, before it, and whose effect does not agree: unrecorded
    code (a slice, an index) may be between its result and the input that differs. Beside all modules, only a call whose
    result no recorded call uses."""
    call = trace.groups[index][0].call
    if call.direction != FORWARD:
        return None
    near = [i for i in trace.unmatched if i < index and _is_unexplained(trace.groups[i])]
    if call.parent is None:
        near = [i for i in near if trace.groups[i][0].call.parent is None and _is_unused(i, trace)]
    else:
        near = [i for i in near if _is_in(call.parent, i, trace)]
    calls = [i for i in near if trace.groups[i][0].call.kind == "api"]
    return candidate_of_one_run(calls[-1], trace) if calls else None


def _is_unused(index: int, trace: Trace) -> bool:
    """Whether no recorded call uses the results of a call that only one run makes."""
    match = trace.groups[index][0]
    if trace.facts is None:
        return False
    step = trace.facts.sides[match.target is None].graph.steps.get(match.call.name)
    return step is not None and bool(step.results) and not any(part.value.uses for part in step.results)


def _is_unexplained(group: Group) -> bool:
    return group[0].call.direction == FORWARD and any(row.why.kind is Kind.UNMATCHED for row in group[1])


def _is_in(module: str, index: int, trace: Trace) -> bool:
    """Whether a call was made in a module, or in a module directly inside it."""
    parent = trace.groups[index][0].call.parent
    if _module_name(parent) == _module_name(module):
        return True
    return _module_name(parent).rpartition(".")[0] == _module_name(module)


def given_around(index: int, shown: Row, trace: Trace) -> Optional[Candidate]:
    """The outermost module around a call that itself received a different input (a mask): a module is recorded when it
    returns, so its calls come first. A module that only passes on its argument shows no more than the call, unless the
    argument has a name."""
    name = trace.groups[index][0].call.parent
    own = value_key(shown.golden)
    found = None
    for place in range(index + 1, len(trace.groups)):
        match, rows = trace.groups[place]
        if name is None or match.call.name != name:
            continue
        given = [row for row in bad_rows(rows) if row.is_input and is_tensor(row.golden)]
        said = [row for row in given if not row.slot[-1].isdigit() or value_key(row.golden) != own]
        if said and match.how != "unmatched":
            found = candidate("input", place, said[0], trace)
        name = match.call.parent
    return found


def after_the_model(index: int, row: Row, trace: Trace) -> Optional[Message]:
    """The sentence if the first backward received a different gradient: nothing was recorded between the last module
    and the backward (level L0), so what the script computes there differs. None for any other call."""
    calls = [match.call for match, _ in trace.groups[: index + 1]]
    if calls[-1].direction != BACKWARD or any(call.direction != FORWARD for call in calls[:-1]):
        return None
    return Message("origin.after_model", call=calls[-1].name, slot=row.slot, module=forward_name(calls[-1]))


def alone_in(match: Match, trace: Trace) -> list[int]:
    """The forward calls that only one run made in the module of these gradients."""
    path = module_path(match.call.key)
    found = []
    for i in trace.unmatched:
        call = trace.groups[i][0].call
        inside = _module_name(call.parent) == path if call.parent else not path
        if call.direction == FORWARD and call.kind == "api" and inside and trace.phases[i] is Phase.FORWARD:
            found.append(i)
    return found


def candidate_of_one_run(index: int, trace: Trace) -> Candidate:
    rows = trace.groups[index][1]
    return _unmatched_call(index, rows[0] if rows else None, trace.unmatched, trace)


def _first_maker(index: int, row: Row, before: list[int], trace: Trace) -> tuple[int, Row]:
    """A call that only passes on the numbers of its input (repeat, contiguous) introduced no difference. If an
    unmatched call of the same run made these numbers, that call did."""
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
    """A call is missing (or extra) only if one run makes it less often. Next to an unmatched call of the other run, it
    is replaced by that call."""
    match = trace.groups[index][0]
    made: Counter[tuple[bool, str]] = Counter()
    for other, _ in trace.groups:
        for golden, call in ((False, other.target), (True, other.golden)):
            if call is not None and call.direction == match.call.direction:
                made[golden, call.key] += 1
    golden_only = match.target is None
    kind = "missing call" if golden_only else "extra call"
    partner = _replacement(index, before, trace)
    given = plain_arguments(match)
    if partner is not None:
        return replace(candidate("replaced", index, row, trace, given), other=partner)
    if made[golden_only, match.call.key] > made[not golden_only, match.call.key]:
        return candidate(kind, index, row, trace, given)
    return candidate("elsewhere", index, row, trace, given)


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
