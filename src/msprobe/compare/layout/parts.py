"""Cuts the calls of one rank into the parts of a batch that it computes one after the other (microbatches). Calls get
new numbers inside each part, so that the parts of a pipeline, or of a run that accumulates gradients, have the names
that the run of the complete batch has.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from msprobe.compare.calls import BACKWARD, FORWARD, GRADS, Call, calls_of, module_path
from msprobe.compare.layout.dimensions import parallel_of
from msprobe.compare.sources import Source
from msprobe.dump.names import MODULE_PREFIXES

OUTSIDE = -1
"""The part of calls that belong to no microbatch: the optimizer, gradients of parameters."""


class Label(NamedTuple):
    """The n-th call of an API for a parameter, before the optimizer's step or in it."""

    parameter: str
    key: str
    in_step: bool
    nth: int


class Part(NamedTuple):
    """`calls` are numbered within the part; `names` has each one's name in the dump, `labels` which parameter some of
    them update."""

    rank: int
    microbatch: int
    source: Source
    calls: list[Call]
    names: dict[str, str]
    labels: Mapping[str, Label] = {}


def read_calls(source: Source) -> tuple[list[Call], dict[str, str]]:
    """The calls of a rank, under the paths that their modules have in the complete model; and their names in the dump.

    Wrappers of the parallel APIs (DistributedDataParallel, FSDP) are not part of a path."""
    calls = calls_of({**source.records, **source.debug}, source.construct)
    paths = {module_path(call.key) for call in calls if call.kind in ("module", "grads")}
    moved = {path: _plain_path(path, paths, source) for path in paths}
    if all(path == new for path, new in moved.items()):
        return calls, {}
    names = {call.name: _renamed(call.name, moved) for call in calls}
    made = [
        call._replace(
            name=names[call.name],
            key=_renamed(call.key, moved) if call.kind in ("module", "grads") else call.key,
            parent=_renamed(call.parent, moved) if call.parent is not None else None,
        )
        for call in calls
    ]
    return made, {new: old for old, new in names.items()}


WRAPPERS = ("_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module")


def _plain_path(path: str, paths: set[str], source: Source) -> str:
    steps = [step for step in path.split(".") if step not in WRAPPERS]
    pipeline = parallel_of(source).pipeline
    if pipeline is not None and len(pipeline.models) > 1 and steps[0].isdigit():
        steps = steps[1:]  # the number of the model that start() was given
    wrapped = len(paths) > 1 and all(one.split(".")[0] == "module" for one in paths)
    return ".".join(steps[1:] if wrapped and len(steps) > 1 else steps)


def _renamed(name: str, moved: dict[str, str]) -> str:
    """A name of a module's record with a different path."""
    prefix, _, rest = name.partition(".")
    if prefix not in MODULE_PREFIXES:
        return name
    for end in range(len(rest), 0, -1):
        if (end == len(rest) or rest[end] == ".") and rest[:end] in moved:
            return f"{prefix}.{moved[rest[:end]]}{rest[end:]}"
    return name


def passes(calls: Sequence[Call]) -> int:
    """How often the rank runs the forward of its model: the number of calls of most of its modules."""
    made = Counter(
        call.key for call in calls if call.kind == "module" and call.direction == FORWARD and not call.recompute
    )
    return Counter(made.values()).most_common(1)[0][0] if made else 1


def split(rank: int, source: Source, calls: Sequence[Call], real: Mapping[str, str], skip: int = 0) -> list[Part]:
    """The parts of a rank; the first one also has everything that belongs to no part. `skip` leaves out the first
    passes: a pipeline may run its model once to find the shapes.
    """
    numbers = _microbatches(calls)
    found: dict[int, list[Call]] = defaultdict(list)
    for call in calls:
        found[numbers.get(call.name, OUTSIDE)].append(call)
    wanted = sorted(number for number in found if number != OUTSIDE)[skip:]
    outside = found[OUTSIDE]
    parts = []
    for place, number in enumerate(wanted):
        held = found[number] if place else sorted([*found[number], *outside], key=lambda call: call.order)
        parts.append(renumber(rank, place, source, held, real))
    return parts or [renumber(rank, 0, source, outside, real)]


def whole(rank: int, source: Source, calls: Sequence[Call], real: Mapping[str, str]) -> Part:
    return Part(rank, 0, source, list(calls), {call.name: real.get(call.name, call.name) for call in calls})


def renumber(rank: int, place: int, source: Source, calls: Sequence[Call], real: Mapping[str, str]) -> Part:
    seen: Counter[tuple[str, str]] = Counter()
    numbers: dict[tuple[str, int], int] = {}
    named: dict[str, str] = {}
    kept: list[tuple[Call, int, str]] = []
    for call in calls:
        number = call.number
        if call.direction == FORWARD:
            number = seen[call.key, FORWARD]
            seen[call.key, FORWARD] += 1
            numbers[call.key, call.number] = number
        elif call.direction == BACKWARD:
            number = numbers.get((call.key, call.number), call.number)
        name = name_of(call, number)
        named[call.name] = name
        kept.append((call, number, name))
    made = [
        call._replace(name=name, number=number, parent=named.get(call.parent or "", call.parent), order=order)
        for order, (call, number, name) in enumerate(kept)
    ]
    return Part(rank, place, source, made, {name: real.get(call.name, call.name) for call, _, name in kept})


def name_of(call: Call, number: int) -> str:
    """The name of a call under a different number."""
    if call.direction not in (FORWARD, BACKWARD):
        return call.name
    return f"{call.key}.{call.direction}.{number}" if call.kind == "module" else f"{call.key}.{number}.{call.direction}"


def _microbatches(calls: Sequence[Call]) -> dict[str, int]:
    """The microbatch of each call by name: as recorded, else by the number of the outermost module around it."""
    recorded = {call.name: call.record["microbatch"] for call in calls if _recorded(call.record) is not None}
    if recorded:
        return _with_backwards(calls, recorded)
    parents = {call.name: call.parent for call in calls}
    kinds = {call.name: call for call in calls}
    numbers: dict[str, int] = {}
    last_backward = max((call.order for call in calls if call.direction == BACKWARD), default=len(calls))
    current: Optional[int] = None
    for call in calls:
        if call.direction != FORWARD:
            continue
        top = _outermost(call, parents, kinds)
        if top is not None:
            current = top.number
            numbers[call.name] = current
        elif current is not None and call.order < last_backward:
            numbers[call.name] = current
    return _with_backwards(calls, numbers)


def _recorded(record: Any) -> Optional[int]:
    value = record.get("microbatch") if isinstance(record, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _outermost(call: Call, parents: dict[str, Optional[str]], known: dict[str, Call]) -> Optional[Call]:
    found = call if call.kind == "module" else None
    name, seen = call.parent, {call.name}
    while name is not None and name not in seen:
        seen.add(name)
        if name in known and known[name].kind == "module":
            found = known[name]
        name = parents.get(name)
    return found


def _with_backwards(calls: Sequence[Call], numbers: dict[str, int]) -> dict[str, int]:
    """A backward belongs to the part of its forward."""
    forwards = {(call.key, call.number): numbers[call.name] for call in calls if call.name in numbers}
    for call in calls:
        if call.direction == BACKWARD and call.name not in numbers and (call.key, call.number) in forwards:
            numbers[call.name] = forwards[call.key, call.number]
    return {name: number for name, number in numbers.items() if not name.endswith(GRADS)}


def modules(calls: Sequence[Call]) -> set[str]:
    return {module_path(call.key) for call in calls if call.kind == "module" and call.direction == FORWARD}
