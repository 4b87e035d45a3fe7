"""Finds which parameter a call received if no module shows it: the optimizer updates its parameters in a known order.

At level L1 a dump has no modules. training.json has the names of the parameters that an optimizer updates; the n-th of
its calls, or the n-th entry of a list that it hands to one call, is the n-th of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from msprobe.compare.measure.distance import value_key
from msprobe.compare.origin.arguments import slot_text
from msprobe.compare.origin.optimizer_steps import innermost_steps, names_of
from msprobe.compare.origin.trace import Trace
from msprobe.compare.origin.wording import Candidate
from msprobe.compare.phases import Phase
from msprobe.compare.rows import Row
from msprobe.messages import Message


def name_parameter(found: Candidate, trace: Trace, events: Sequence[Any]) -> Candidate:
    """Describes the suspect as a difference of a parameter if its input is one; otherwise returns it unchanged."""
    if found.kind != "input" or found.row is None or found.phase is not Phase.FORWARD:
        return found
    name = _updated_as(found.row, trace, *_names(events))
    if not name:
        return found
    call = found.match.call
    said = Message("origin.parameter", name=name, slot=slot_text(call, found.row.slot), call=call.name)
    return replace(found, kind="parameter", said=said)


def _names(events: Sequence[Any]) -> tuple[list[str], Any]:
    """The parameter names of the first optimizer, in its order; and the record before its step."""
    steps = innermost_steps(events)
    return (names_of(steps[0]), steps[0].get("after")) if steps else ([], None)


def _updated_as(given: Row, trace: Trace, names: Sequence[str], after: Any) -> str:
    """The name of the parameter that has these numbers on both sides, if there is exactly one. An optimizer may make
    several such calls for each parameter, one parameter after the other."""
    wanted = (value_key(given.target), value_key(given.golden))
    if None in wanted or not names:
        return ""
    places: dict[str, list[bool]] = defaultdict(list)
    single: list[tuple[str, bool]] = []
    begun = False
    for match, rows in trace.groups:
        if not begun or match.how == "unmatched":
            begun = begun or (match.target is not None and match.target.name == after)
            continue
        for row in rows:
            parts = row.slot.split(".")
            if parts[:2] == ["input", "0"] and len(parts) <= 3:
                key = match.call.key if len(parts) == 2 else f"{match.call.name}.list"
                is_it = (value_key(row.target), value_key(row.golden)) == wanted
                places[key].append(is_it)
                if len(parts) == 2:
                    single.append((key, is_it))
    several = [(same, len(same) // len(names)) for same in places.values() if sum(same) == 1]
    found = {names[same.index(True) // each] for same, each in several if len(same) == each * len(names)}
    found = found or _by_last_call(single, names)
    return found.pop() if len(found) == 1 else ""


def _by_last_call(calls: Sequence[tuple[str, bool]], names: Sequence[str]) -> set[str]:
    """For an optimizer that makes more calls for some parameters (weight decay): the calls for each parameter end with
    the last API that is called once for each."""
    made = Counter(key for key, _ in calls)
    once = [key for key, number in made.items() if number == len(names)]
    if not once:
        return set()
    found, done = set(), 0
    for key, is_it in calls:
        if is_it:
            found.add(names[min(done, len(names) - 1)])
        done += key == once[-1]
    return found
