"""Results of a step that are no call: the loss, and each parameter and buffer before and after its update.

They are made from what the collector recorded (training.json) and compared like calls, so that every rule sees them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

from msprobe.compare.calls import Call, Match
from msprobe.compare.operators import BUFFER, LOSS, UPDATE
from msprobe.dump.names import BACKWARD, FORWARD, forward_of, is_module, parse_name

_SIDES = ("before", "gradient", "after")


def with_results(records: Mapping[str, Any], events: Sequence[Any]) -> dict[str, Any]:
    """The records with those of the loss (before its backward) and of the updates (last)."""
    roots = _roots(records, events)
    if not roots and not any(isinstance(event, Mapping) and event.get("event") == "update" for event in events):
        return dict(records)
    found: dict[str, Any] = {}
    for name, record in records.items():
        if name in roots:
            number = sum(key.startswith(f"{LOSS}.") for key in found)
            found[f"{LOSS}.{number}.{FORWARD}"] = {"input_args": [roots[name]], "input_kwargs": {}}
        found[name] = record
    found.update(_updates(events))
    return found


def in_both(target: dict[str, Any], golden: dict[str, Any]) -> None:
    """Leaves out results that only one dump tells of (a different framework, an older msprobe)."""
    for name in [*target, *golden]:
        if name.startswith(UPDATE):
            _leave_out_idle(name, target, golden)
    for prefix in (f"{LOSS}.", UPDATE):
        told = [[name for name in side if name.startswith(prefix)] for side in (target, golden)]
        if len(told[0]) != len(told[1]) if prefix != UPDATE else not all(told):
            for side, names in zip((target, golden), told):
                for name in names:
                    del side[name]


def take_updates(calls: list[Call]) -> dict[str, Call]:
    """Takes the updates, which come last, out of the calls."""
    taken = {call.name: call for call in calls if call.key.startswith(UPDATE)}
    del calls[len(calls) - len(taken) :]
    return taken


def match_updates(target: Mapping[str, Call], golden: Mapping[str, Call]) -> list[Match]:
    """Updates belong together by the name of the parameter. A wrapper around the model puts its own name before it, and
    then no parameter has the same name."""
    other = dict(golden)
    found = []
    named = any(name in golden for name in target)
    for name, call in target.items():
        path = name.removeprefix(UPDATE)
        fitting = [one for one in other if one == name or (not named and _is_wrapped(path, one.removeprefix(UPDATE)))]
        partner = other.pop(min(fitting, key=len)) if fitting else None
        found.append(Match(call, partner, "exact" if partner else "unmatched", 1.0 if partner else 0.0))
    return [*found, *(Match(None, call, "unmatched", 0.0) for call in other.values())]


def _is_wrapped(one: str, other: str) -> bool:
    return one.endswith(f".{other}") or other.endswith(f".{one}")


def _roots(records: Mapping[str, Any], events: Sequence[Any]) -> dict[str, Any]:
    """What each backward pass began with, by the name of its first record: the result of the forward of that call."""
    starts = [event.get("after") for event in events if isinstance(event, Mapping) and event.get("event") == "backward"]
    found: dict[str, Any] = {}
    waiting = not starts or None in starts
    wanted = set(starts)
    for name in records:
        if waiting and parse_name(name).direction == BACKWARD:
            waiting = False
            root = None if is_module(name) else _result(records.get(forward_of(name)))
            if root is not None:
                found[name] = root
        waiting = waiting or name in wanted
    return found


def _result(record: Any) -> Optional[Mapping[str, Any]]:
    """The one number that a call returns."""
    output = record.get("output") if isinstance(record, Mapping) else None
    if isinstance(output, list) and len(output) == 1 and isinstance(output[0], Mapping):
        return output[0] if output[0].get("shape") in ([], [1]) else None
    return None


def _updates(events: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for event in events:
        if not isinstance(event, Mapping) or event.get("event") != "update":
            continue
        for kind in ("parameters", "buffers"):
            named = event.get(kind)
            for name, sides in named.items() if isinstance(named, Mapping) else ():
                if isinstance(sides, Mapping) and isinstance(sides.get("after"), Mapping):
                    told = {BUFFER: True} if kind == "buffers" else {}
                    items = {key: {**sides[key], **told} for key in _SIDES if isinstance(sides.get(key), Mapping)}
                    after = items.pop("after")
                    record = {"input_args": [], "input_kwargs": items, "output": {"after": after}}
                    yield f"{UPDATE}{name}.0.{FORWARD}", record


def _leave_out_idle(name: str, target: dict[str, Any], golden: dict[str, Any]) -> None:
    """A parameter that changes in no run and has no gradient in one of them: the step does nothing with it. If it
    changes in the other run only, that run alone tells of it."""
    records = [side.get(name) for side in (target, golden)]
    idle = [record is None or not _changes(record) for record in records]
    bare = [record is None or "gradient" not in record["input_kwargs"] for record in records]
    for side, left_out in zip((target, golden), (a and b for a, b in zip(idle, bare))):
        if left_out or (all(idle) and any(bare)):
            side.pop(name, None)


def _changes(record: Mapping[str, Any]) -> bool:
    before, after = record["input_kwargs"].get("before"), record["output"]["after"]
    if not isinstance(before, Mapping) or before.get("Norm") is None:
        return True
    return any(before.get(key) != after.get(key) for key in ("shape", "Max", "Min", "Mean", "Norm", "md5"))
