"""How each run computes a value: the calls that lead to it, from the graph of values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from msprobe.compare.flow.graph import Step, Value
from msprobe.compare.origin.arguments import plain_values
from msprobe.compare.origin.trace import Trace
from msprobe.compare.reasons import SIDES
from msprobe.compare.rows import Row
from msprobe.messages import Message

_MOST = 8
"""How many calls of a way are named."""


def ways(row: Row, trace: Trace) -> tuple[Message, ...]:
    """For each run, the calls by which it computes a value from values that agree; nothing if both make the same."""
    if trace.facts is None:
        return ()
    found = [_way(side.graph.of_row.get(id(row))) for side in trace.facts.sides]
    made = [{id(step.match) for step in steps if step.is_matched} for steps in found]
    both = made[0] & made[1]
    if all(step.is_matched and id(step.match) in both for steps in found for step in steps):
        return ()
    return tuple(
        Message("evidence.way", side=side, calls=[*map(_text, steps[-_MOST:])])
        for side, steps in zip(SIDES.values(), found)
        if steps and (len(steps) > 1 or len(found[0]) + len(found[1]) > 2)
    )


def _way(value: Optional[Value]) -> list[Step]:
    """The calls that lead from values that agree to this one, in their order."""
    return sorted(_before([value] if value is not None else [], True), key=lambda step: step.call.order)


def _before(values: Sequence[Value], until_they_agree: bool) -> Iterator[Step]:
    waiting = list(values)
    seen: set[int] = set()
    while waiting:
        value = waiting.pop(0)
        step = value.maker
        if id(value) in seen or (until_they_agree and value.agrees):
            continue
        seen.add(id(value))
        if step is None:
            waiting += [value.source] if value.source is not None else []
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
        found.update(places[id(step.match)] for step in _before(values, False) if id(step.match) in places)
    return sorted(found, reverse=True)


def _text(step: Step) -> str:
    given = plain_values(step.call)
    return Message("evidence.way_call", call=step.call.name, arguments=given) if given else step.call.name
