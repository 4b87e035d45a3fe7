"""Plans which calls of a dump are checked: records in, tasks out, and a reason for each call that is left out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from msprobe.dump.names import BACKWARD, FORWARD, ApiName, parse_api_name
from msprobe.dump.record_keys import DAMAGED, INPUT_ARGS, INPUT_KWARGS, RAISED, UNFINISHED
from msprobe.messages import Message

Record = dict[str, Any]
_OF_VALUES = frozenset(("Max", "Min", "Mean", "Norm", "data_name", "md5"))


@dataclass(frozen=True)
class Task:
    """One call: its forward record and, if the dump has it, its backward record."""

    call: str
    title: str
    forward: Record
    backward: Optional[Record]


@dataclass
class Plan:
    """The plan. `skipped` has a reason for each API call that does not run; `notes` are sentences for the user."""

    tasks: list[Task] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def make_plan(
    records: Mapping[str, Record],
    white_list: Sequence[str] = (),
    black_list: Sequence[str] = (),
    once: bool = False,
) -> Plan:
    """With both lists, a call runs if it is in the white list and not in the black list (seed 003).

    `once`: of several calls that differ only in their values, only the first runs.
    """
    plan = Plan()
    first: dict[str, str] = {}
    used: set[str] = set()
    seen: set[str] = set()
    for text, record in records.items():
        name = parse_api_name(text)
        if name is None or name.direction != FORWARD:
            continue
        seen.add(name.call)
        used.update(item for item in (*white_list, *black_list) if _listed(name, (item,)))
        if (white_list and not _listed(name, white_list)) or _listed(name, black_list):
            continue
        reason = _unfit(record)
        if reason is None and once:
            same = first.setdefault(_shape_of(name, record), name.call)
            reason = None if same == name.call else Message("check.same_call", call=same)
        if reason is not None:
            plan.skipped[name.call] = reason
            continue
        plan.tasks.append(Task(name.call, name.title, record, records.get(f"{name.call}.backward")))
    plan.notes += [Message("check.unused", item=repr(item)) for item in _unused((*white_list, *black_list), used)]
    alone = [name.call for name in _backwards(records) if name.call not in seen]
    if alone:
        plan.notes.append(Message("check.alone", number=len(alone), first=alone[0]))
    return plan


def _unused(items: Sequence[str], used: set[str]) -> list[str]:
    return [item for item in dict.fromkeys(items) if item not in used]


def _backwards(records: Mapping[str, Record]) -> Iterator[ApiName]:
    for text in records:
        name = parse_api_name(text)
        if name is not None and name.direction == BACKWARD:
            yield name


def _listed(name: ApiName, items: Sequence[str]) -> bool:
    return any(item in (name.api, name.title, name.call, f"{name.call}.forward") for item in items)


def _unfit(record: Record) -> Optional[str]:
    if RAISED in record or UNFINISHED in record:
        return Message("check.unfinished")
    if isinstance(record.get(DAMAGED), str):
        return Message("check.damaged_because", why=record[DAMAGED])
    if INPUT_ARGS not in record:
        return Message("check.no_inputs")
    if not isinstance(record[INPUT_ARGS], list) or not isinstance(record.get(INPUT_KWARGS, {}), dict):
        return Message("check.damaged")
    return None


def _shape_of(name: ApiName, record: Record) -> str:
    return name.title + json.dumps(_without_values([record[INPUT_ARGS], record.get(INPUT_KWARGS)]))


def _without_values(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_values(one) for one in value]
    if isinstance(value, dict):
        if "dtype" in value and "shape" in value:
            return {key: one for key, one in value.items() if key not in _OF_VALUES}
        return {key: _without_values(one) for key, one in value.items()}
    return value
