"""Modules and updates that only some ranks of a stage have: the experts of expert parallelism, the parameters that a
rank updates for all (ZeroRedundancyOptimizer). Their calls are not shards. A rank's own calls (those in such a module,
and the updates of its parameters) are taken out first, so that the calls that all ranks make can be aligned. Then they
are inserted into the joined run, where the run on one device has them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from msprobe.compare.calls import BACKWARD, FORWARD, Call, module_path
from msprobe.compare.layout.flat import calls_by_parameter, read_flat
from msprobe.compare.layout.parts import Part, modules, name_of, renumber
from msprobe.compare.layout.updates import label_updates, updates_a_share


class Owned(NamedTuple):
    """The own calls of ranks with the same own modules, and the shared call that each one precedes, by its name in the
    dump of the first part."""

    parts: list[Part]
    before: dict[str, Optional[str]]


def take_owned(parts: Sequence[Part], known: set[str]) -> tuple[list[Part], list[Owned]]:
    """The parts without their own calls, and the own calls. `known` are the modules of the other run, which has them
    all."""
    paths: dict[int, set[str]] = defaultdict(set)
    for part in parts:
        paths[part.rank] |= modules(part.calls)
    own = _of_some(list(paths.values())) & known
    updates = {part.rank: label_updates(part.source, part.calls) for part in parts if updates_a_share(part.source)}
    updated = {rank: {label.parameter for label in labels.values()} for rank, labels in updates.items()}
    own_weights = _of_some(list(updated.values()))
    if not own and not own_weights:
        return list(parts), []
    shared: list[Part] = []
    groups: dict[frozenset[str], Owned] = {}
    for part in parts:
        inside = _own_calls(part, own)
        inside |= {name for name, label in updates.get(part.rank, {}).items() if label.parameter in own_weights}
        shared.append(part._replace(calls=[call for call in part.calls if call.name not in inside]))
        names = (paths[part.rank] & own) | (updated.get(part.rank, set()) & own_weights)
        group = groups.setdefault(frozenset(names), Owned([], _places(part, inside)))
        group.parts.append(part._replace(calls=[call for call in part.calls if call.name in inside]))
    return shared, [group for group in groups.values() if group.parts[0].calls]


def _of_some(names: Sequence[set[str]]) -> set[str]:
    """What some ranks have and others do not."""
    return names[0].union(*names) - names[0].intersection(*names) if names else set()


def take_by_parameter(parts: Sequence[Part]) -> tuple[list[Part], list[Owned]]:
    """The parts without gradients of parameters and updates, and these: a rank has some elements of each parameter of a
    flat one, often none, so these are the calls of the ranks that have some."""
    flat = {part.rank: read_flat(part.source) for part in parts}
    known = {name for one in flat.values() for name in one.parameters}
    shared: list[Part] = []
    groups: dict[str, Owned] = {}
    for part in parts:
        own = calls_by_parameter(part, flat[part.rank], known)
        inside = {call.name for ones in own.values() for call, _ in ones}
        before = _places(part, inside)
        shared.append(part._replace(calls=[call for call in part.calls if call.name not in inside]))
        for name, ones in own.items():
            made = renumber(part.rank, part.microbatch, part.source, [call for call, _ in ones], part.names)
            pairs = list(zip(made.calls, ones))
            labels = {new.name: label for new, (_, label) in pairs if label is not None}
            group = groups.setdefault(name, Owned([], {new.name: before[call.name] for new, (call, _) in pairs}))
            group.parts.append(made._replace(labels=labels))
    return shared, list(groups.values())


def _places(part: Part, inside: set[str]) -> dict[str, Optional[str]]:
    found: dict[str, Optional[str]] = {}
    following: Optional[str] = None
    for call in reversed(part.calls):
        if call.name in inside:
            found[call.name] = following
        else:
            following = part.names.get(call.name, call.name)
    return found


def _own_calls(part: Part, own: set[str]) -> set[str]:
    calls = {call.name: call for call in part.calls}
    inside: set[str] = set()
    forwards: set[tuple[str, int]] = set()
    for call in part.calls:
        if call.kind in ("module", "grads"):
            is_own = module_path(call.key) in own
        else:
            is_own = _is_within(call, calls, own)
            if call.direction == FORWARD and is_own:
                forwards.add((call.key, call.number))
        if is_own:
            inside.add(call.name)
    inside |= {call.name for call in part.calls if call.direction == BACKWARD and (call.key, call.number) in forwards}
    updates = label_updates(part.source, part.calls)
    return inside | {name for name, label in updates.items() if label.parameter.rpartition(".")[0] in own}


def _is_within(call: Call, calls: Mapping[str, Call], own: set[str]) -> bool:
    above, seen = calls.get(call.parent or ""), {call.name}  # a damaged dump may have a loop of parents
    while above is not None and above.name not in seen:
        if module_path(above.key) in own:
            return True
        seen.add(above.name)
        above = calls.get(above.parent or "")
    return False


class Placed(NamedTuple):
    """The calls of one group, each with the place of the shared call that follows it."""

    calls: list[Call]
    places: list[int]


class Moved(NamedTuple):
    """A call in the joined run, and before: `group` is -1 for a shared one."""

    group: int
    before: Call
    call: Call


def place_owned(calls: Sequence[Call], owned: Owned, shared: Mapping[str, int], end: int) -> Placed:
    """`shared` has the place of each shared call of the first part, by its name in the dump; `end` is behind them
    all."""
    places: list[int] = []
    for call in calls:
        following = owned.before.get(call.name)
        place = None if following is None else shared.get(following)
        places.append(place if place is not None else places[-1] if places else end)
    return Placed(list(calls), places)


def merge(shared: Sequence[Call], groups: Sequence[Placed]) -> list[Moved]:
    """All calls in one order, with new numbers. The names are then those of a run on one device, if that makes the
    calls in this order."""
    order = [(place, len(groups), 0, -1, call) for place, call in enumerate(shared)]
    for number, group in enumerate(groups):
        order += [(place, number, at, number, call) for at, (place, call) in enumerate(zip(group.places, group.calls))]
    order.sort(key=lambda one: one[:3])
    seen: Counter[str] = Counter()
    numbers: dict[tuple[int, str, int], int] = {}
    found: list[Moved] = []
    for *_, number, call in order:
        new = call.number
        if call.kind == "api" and call.direction == FORWARD:
            new = seen[call.key]
            seen[call.key] += 1
            numbers[number, call.key, call.number] = new
        elif call.kind == "api" and call.direction == BACKWARD:
            new = numbers.get((number, call.key, call.number), call.number)
        found.append(Moved(number, call, call._replace(name=name_of(call, new), number=new, order=len(found))))
    return found
