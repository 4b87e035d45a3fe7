"""Which parameter each call after the backward works on: they are loops over parameters, and the step of the optimizer
has the names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msprobe.compare.calls import BACKWARD, GRADS, Call, Match
from msprobe.compare.layout.dimensions import parallel_of
from msprobe.compare.layout.parts import WRAPPERS, Label, Part
from msprobe.compare.origin.optimizer_steps import innermost_steps, names_of
from msprobe.compare.sources import Source
from msprobe.dump.reader import RankDump

BY_NAME = 0.95
"""How sure a match by the parameter's name is."""


def label_updates(source: Source, calls: Sequence[Call]) -> dict[str, Label]:
    """The labels by the name of the call; only for APIs that were called equally often for each parameter."""
    names = optimizer_names(source)
    last = _last_backward(calls)
    if not names or last < 0:
        return {}
    first, stop = _step_places(source, [call.name for call in calls], last)
    found: dict[str, Label] = {}
    before = [] if updates_a_share(source) else calls[last + 1 : first + 1]  # clipping is done for every parameter
    for in_step, section in ((False, before), (True, calls[first + 1 : stop + 1])):
        by_key: dict[str, list[Call]] = defaultdict(list)
        for call in section:
            by_key[call.key].append(call)
        for key, made in by_key.items():
            each, rest = divmod(len(made), len(names))
            for number, call in enumerate(made if each and not rest else ()):
                found[call.name] = Label(names[number // each], key, in_step, number % each)
    return found


def calls_in_step(part: Part) -> Sequence[Call]:
    """The calls of the optimizer's first step."""
    last = _last_backward(part.calls)
    if last < 0:
        return []
    first, stop = _step_places(part.source, [part.names[call.name] for call in part.calls], last)
    return part.calls[first + 1 : stop + 1]


def _last_backward(calls: Sequence[Call]) -> int:
    return max((place for place, call in enumerate(calls) if call.direction in (BACKWARD, GRADS)), default=-1)


def _step_places(source: Source, names: Sequence[str], last: int) -> tuple[int, int]:
    """The places of the call after which the optimizer's step begins, and of its last call; `names` are the dump's."""
    events = _events(source)
    steps = innermost_steps(events)
    ends = [event for event in events if event.get("event") == "optimizer_step_end"]
    start, end = str(steps[0].get("after")) if steps else "", str(ends[0].get("after")) if ends else ""
    place = {name: number for number, name in enumerate(names)}
    return max(place.get(start, last), last), place.get(end, len(names) - 1)


def _events(source: Source) -> Sequence[Mapping[str, Any]]:
    return source.training if isinstance(source, RankDump) else []


def optimizer_names(source: Source) -> list[str]:
    """The names of the optimizer's parameters in the complete model."""
    steps = innermost_steps(_events(source))
    return parameter_paths(source, names_of(steps[0])) if steps else []


def updates_a_share(source: Source) -> bool:
    """Whether the rank updates only some of the parameters that its optimizer has, as with ZeroRedundancyOptimizer."""
    events = _events(source)
    every = [event for event in events if event.get("event") == "optimizer_step"]
    steps = innermost_steps(events)
    return len(steps) < len(every) and set(names_of(steps[0])) < set(names_of(every[0]))


def parameter_paths(source: Source, names: Sequence[str]) -> list[str]:
    """The names of a rank's parameters in the complete model: without wrappers, and without the number of the stage if
    start() received several."""
    plain = [".".join(step for step in name.split(".") if step not in WRAPPERS) for name in names]
    pipeline = parallel_of(source).pipeline
    staged = pipeline is not None and len(pipeline.models) > 1 and all(name.split(".")[0].isdigit() for name in plain)
    wrapped = bool(plain) and all(name.startswith("module.") for name in plain)
    return [name.partition(".")[2] if staged or wrapped else name for name in plain]


def pair_by_parameter(
    target: Sequence[Call], golden: Sequence[Call], ours: Mapping[str, Label], theirs: Mapping[str, Label]
) -> list[Match]:
    """Pairs the updates of one parameter, at any place in the step."""
    known = {theirs[call.name]: call for call in golden if call.name in theirs}
    pairs = [(call, known.get(ours[call.name])) for call in target if call.name in ours]
    return [Match(call, other, "recount", BY_NAME) for call, other in pairs if other is not None]


def separate_parameters(
    matches: Sequence[Match], ours: Mapping[str, Label], theirs: Mapping[str, Label]
) -> Iterator[Match]:
    """Separates updates of different parameters."""
    for match in matches:
        target, golden = match.target, match.golden
        if target is not None and golden is not None and target.name in ours and golden.name in theirs:
            yield Match(target, None, "unmatched", 0.0)
            yield Match(None, golden, "unmatched", 0.0)
        else:
            yield match
