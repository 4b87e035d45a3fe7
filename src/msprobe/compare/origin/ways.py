"""How each run computes a value: the calls that lead to it, from the graph of values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Optional

from msprobe.compare.calls import FORWARD, Call, Match
from msprobe.compare.flow.graph import Graph, Step, Value
from msprobe.compare.measure.distance import count, result_key, value_key
from msprobe.compare.origin.arguments import plain_values, slot_text
from msprobe.compare.origin.source import function_of, is_inside, span
from msprobe.compare.origin.trace import BAD, Trace, bad_rows
from msprobe.compare.origin.wording import Candidate
from msprobe.compare.phases import Phase
from msprobe.compare.reasons import SIDES
from msprobe.compare.rows import Row, is_tensor, slots
from msprobe.messages import Message

_MOST = 8
"""How many calls of a way are named."""


def ways(row: Row, trace: Trace) -> tuple[Message, ...]:
    """For each run, the calls by which it computes a value from values that agree; nothing if both make the same."""
    if trace.facts is None:
        return ()
    found = _ways(row, trace)
    made = [{id(step.match) for step in steps if step.is_matched} for steps in found]
    both = made[0] & made[1]
    if all(step.is_matched and id(step.match) in both for steps in found for step in steps):
        return ()
    return tuple(
        Message("evidence.way", side=side, calls=_texts(steps))
        for side, steps in zip(SIDES.values(), found)
        if steps and (len(steps) > 1 or len(found[0]) + len(found[1]) > 2)
    )


def _ways(row: Row, trace: Trace) -> list[list[Step]]:
    """For each run, the calls that lead from values that agree to this one, in their order."""
    sides = trace.facts.sides if trace.facts is not None else ()
    return [_way(side.graph.of_row.get(id(row)), side.graph) for side in sides]


def _way(value: Optional[Value], graph: Graph) -> list[Step]:
    return sorted(_before([value] if value is not None else [], graph, True), key=lambda step: step.call.order)


def by_own_calls(found: Candidate, index: int, shown: Row, trace: Trace) -> Candidate:
    """A suspect before a value that differs. Where both runs compute this value by calls of their own, one part of them
    may well be harmless, so none is to blame alone: the sentence names the value, and all calls that lead to it."""
    if trace.facts is None or found.phase is not Phase.FORWARD or not _may_be_rewritten(found):
        return found
    said = _computed(shown, trace, found.kind == "replaced")
    end = _end(index, shown, trace)
    later = _computed(end, trace, found.kind == "replaced") if end is not shown else None
    if later is not None and (said is not None or found.kind not in _ONE_RUN):
        return _of_part(found, end, later, trace)
    if said is not None:
        return _of_part(found, shown, said, trace)
    if found.kind not in _STRUCTURAL:
        return found
    return replace(found, then=later, evidence=ways(shown if later is None else end, trace) or found.evidence)


_ONE_RUN = ("missing call", "extra call")
_STRUCTURAL = (*_ONE_RUN, "replaced", "elsewhere")


def _may_be_rewritten(found: Candidate) -> bool:
    if found.kind == "call":
        return found.match.how == "fused"
    return found.kind == "wiring" or (found.kind in _STRUCTURAL and found.said is None)


def _shown(rows: Sequence[Row]) -> Optional[Row]:
    """What to show of a call: the first input that differs, else the first result."""
    bad = [row for row in rows if row.verdict in BAD and is_tensor(row.golden)]
    return min(bad, key=lambda row: not row.is_input, default=None)


def _of_part(found: Candidate, row: Row, said: Message, trace: Trace) -> Candidate:
    """The suspect for a part of the code that both runs write in a different way: the last call of each run, and the
    lines from the first to the last."""
    steps = _ways(row, trace)
    last = next(group for group in enumerate(trace.groups) if group[1][0] is steps[0][-1].match)
    lines = [span(trace.stacks[side], [step.call.name for step in way]) for side, way in enumerate(steps)]
    evidence = ways(row, trace) or found.evidence
    made = replace(found, kind="replaced", row=row, said=said, evidence=evidence, lines=(lines[0], lines[1]))
    return replace(made, index=last[0], match=last[1][0], phase=trace.phases[last[0]])


def _end(index: int, shown: Row, trace: Trace) -> Row:
    """The value behind the last call of its own that either run makes, with what follows from the value shown, in the
    function that computes it. If there is none, the value itself."""
    assert trace.facts is not None
    sides = trace.facts.sides
    first = trace.groups[index][0]
    homes = [_home(call, side.graph) for call, side in zip((first.target, first.golden), sides)]
    makers: list[Optional[Call]] = [first.target, first.golden]
    for place, steps in enumerate(_ways(shown, trace)):
        makers[place] = next((step.call for step in reversed(steps) if _is_own(step)), makers[place])
    functions = [function_of(known, call) for known, call in zip(trace.stacks, makers)]
    reached: tuple[set[int], set[int]] = (set(), set())
    end, waiting = shown, False
    for place in range(index, len(trace.groups)):
        match, rows = trace.groups[place]
        if trace.phases[place] is not Phase.FORWARD or match.call.direction != FORWARD:
            continue
        calls = (match.target, match.golden)
        if any(call is not None and call.name == home for call, home in zip(calls, homes)):
            return next((row for row in bad_rows(rows) if not row.is_input), end) if waiting else end
        made = [side.graph.steps.get(call.name) if call else None for call, side in zip(calls, sides)]
        used = [
            step is not None and (place == index or _takes(step, known, side.graph))
            for known, step, side in zip(reached, made, sides)
        ]
        for known, step, is_used in zip(reached, made, used):
            if step is not None and is_used:
                known.update(id(value) for value in step.effects)
        if not any(used) or any(
            _home(call, side.graph) != home for call, side, home in zip(calls, sides, homes) if call
        ):
            continue
        if match.how == "unmatched" or _is_other_call(match):
            inside = (is_inside(trace.stacks[n], call, functions[n]) for n, call in enumerate(calls) if call)
            waiting = waiting or all(inside)
        elif waiting and all(used):
            row = _shown(rows)
            end, waiting = (row, False) if row is not None else (end, waiting)
    return end


def _takes(step: Step, known: set[int], graph: Graph) -> bool:
    for part in step.takes:
        value: Optional[Value] = part.value
        while value is not None:
            if id(value) in known:
                return True
            value = graph.before(value)
    return False


def _home(call: Optional[Call], graph: Graph) -> Optional[str]:
    """The nearest module around a call that both runs call."""
    name = call.parent if call is not None else None
    while name is not None and name in graph.steps and not graph.steps[name].is_matched:
        name = graph.steps[name].call.parent
    return name


def _computed(row: Row, trace: Trace, one_call: bool) -> Optional[Message]:
    """The sentence, with the number or the tensors that only one run uses. `one_call`: one call replaces one other."""
    assert trace.facts is not None
    found = _ways(row, trace)
    if not all(any(map(_is_own, steps)) for steps in found):
        return None
    if one_call and all(sum(map(_is_own, steps)) == 1 for steps in found):
        return None
    call = row.match.call
    by = [_from_to(steps) for steps in found]
    if row.match.target is not None and found[0][-1].call is row.match.target and len(found[0]) == 1:
        said = Message("origin.computed_by_golden", call=call.name, slot=row.slot, golden=by[1])
    else:
        id_ = "origin.computed" if row.is_input else "origin.computed_result"
        said = Message(id_, call=call.name, slot=slot_text(call, row.slot), target=by[0], golden=by[1])
    numbers = [_numbers(steps) for steps in found]
    alone = [[*(ours - theirs)] for ours, theirs in (numbers, numbers[::-1])]
    if len(alone[0]) == len(alone[1]) == 1:
        return Message("origin.computed_number", said=said, target=str(alone[0][0]), golden=str(alone[1][0]))
    sides = trace.facts.sides
    given = [_given_alone(steps, own.graph, other.graph) for steps, own, other in zip(found, sides, sides[::-1])]
    for names, others, side in zip(given, given[::-1], reversed(SIDES.values())):
        if names and not others:
            return Message("origin.computed_without", said=said, side=side, values=names[:3])
    parts = [_parts_alone(steps, other.graph) for steps, other in zip(found, sides[::-1])]
    if parts[0] and sorted(size for _, size in parts[0]) == sorted(size for _, size in parts[1]):
        return Message("origin.computed_parts", said=said, whole=parts[0][0][0])
    return said


def _parts_alone(steps: Sequence[Step], other: Graph) -> list[tuple[str, int]]:
    """What is computed from a part of a result that agrees, if no call of the other run uses such a part: the call that
    made the result, and the number of elements."""
    used = {result_key(one.item) for one in other.values if one.uses or one.views}
    found = []
    for part in (part for step in steps for part in step.takes):
        whole, item = part.value.source, part.value.item
        if whole is None or not whole.agrees or whole.maker is None or item is None:
            continue
        if result_key(item) not in used:
            found.append((whole.maker.call.name, count(item)))
    return found


def _from_to(steps: Sequence[Step]) -> str:
    first, last = steps[0].call.name, steps[-1].call.name
    return last if len(steps) == 1 else Message("calls.from_to", first=first, last=last)


def _is_other_call(match: Match) -> bool:
    """Whether a call is matched with one of a different operation, and not of a different name only. A number that one
    of them is given (`alpha`) makes a different operation of it."""
    target, golden = match.target, match.golden
    if target is None or golden is None or target.key == golden.key or match.how == "mapping":
        return False
    return match.how != "renamed" or plain_values(target) != plain_values(golden)


def _is_own(step: Step) -> bool:
    """Whether the other run makes no such call, or a different one in its place."""
    return not step.is_matched or _is_other_call(step.match)


def _numbers(steps: Sequence[Step]) -> Counter[float]:
    """The numbers with a fraction that these calls are given."""
    given = ((item or {}).get("value") for step in steps for slot, item in slots(step.call) if slot.startswith("input"))
    return Counter(value for value in given if isinstance(value, float))


def _given_alone(steps: Sequence[Step], own: Graph, other: Graph) -> list[str]:
    """The arguments from which a value is computed and that no call of the other run uses, in any shape."""
    used = {value_key(one.item) for one in other.values if one.uses or one.views}
    found = []
    for step in steps:
        for part in step.takes:
            first = part.value
            while (earlier := own.before(first)) is not None:
                first = earlier
            item = first.item or {}
            known = first.agrees or first.maker is None
            if known and part.slot.startswith("input") and item.get("Max") != item.get("Min"):
                found += [f"{step.call.name}.{part.slot}"] if value_key(item) not in used else []
    return found


def _before(values: Sequence[Value], graph: Graph, until_they_agree: bool) -> Iterator[Step]:
    waiting = list(values)
    seen: set[int] = set()
    while waiting:
        value = waiting.pop(0)
        step = value.maker
        if id(value) in seen or (until_they_agree and value.agrees):
            continue
        seen.add(id(value))
        if step is None:
            earlier = graph.before(value) if until_they_agree else value.source
            waiting += [earlier] if earlier is not None else []
        elif id(step) not in seen:
            seen.add(id(step))
            yield step
            waiting += [part.value for part in step.takes if part.slot.startswith("input")]


def calls_before(rows: Sequence[Row], trace: Trace) -> list[int]:
    """The places of the forward calls that lead to these values in either run, the last first."""
    if trace.facts is None:
        return []
    places = {id(match): place for place, (match, _) in enumerate(trace.groups)}
    found: set[int] = set()
    for side in trace.facts.sides:
        values = [side.graph.of_row[id(row)] for row in rows if id(row) in side.graph.of_row]
        made = _before(values, side.graph, False)
        found.update(places[id(step.match)] for step in made if id(step.match) in places)
    return sorted(found, reverse=True)


def _texts(steps: Sequence[Step]) -> list[str]:
    if len(steps) <= _MOST:
        return [*map(_text, steps)]
    return [*map(_text, steps[: _MOST // 2]), "…", *map(_text, steps[-_MOST // 2 :])]


def _text(step: Step) -> str:
    given = plain_values(step.call)
    return Message("evidence.way_call", call=step.call.name, arguments=given) if given else step.call.name
