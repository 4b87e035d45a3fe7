"""What the calls after the backward work on: loops over parameters, whose names the optimizer's step has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msprobe.compare.calls import BACKWARD, GRADS, Call, Match
from msprobe.compare.layout.dimensions import parallel_of
from msprobe.compare.layout.parts import WRAPPERS
from msprobe.compare.sources import Source
from msprobe.dump.reader import RankDump

BY_NAME = 0.95
"""How sure a match by the parameter's name is."""


class Label(NamedTuple):
    """The n-th call of an API for a parameter, before the optimizer's step or in it."""

    parameter: str
    key: str
    in_step: bool
    nth: int


def label_updates(source: Source, calls: Sequence[Call]) -> dict[str, Label]:
    """By the name of the call; only where an API was called equally often for each parameter."""
    names, start, end = _optimizer(source)
    last = max((place for place, call in enumerate(calls) if call.direction in (BACKWARD, GRADS)), default=-1)
    if not names or last < 0:
        return {}
    place = {call.name: number for number, call in enumerate(calls)}
    first, stop = max(place.get(start, last), last), place.get(end, len(calls) - 1)
    found: dict[str, Label] = {}
    for in_step, section in ((False, calls[last + 1 : first + 1]), (True, calls[first + 1 : stop + 1])):
        by_key: dict[str, list[Call]] = defaultdict(list)
        for call in section:
            by_key[call.key].append(call)
        for key, made in by_key.items():
            each, rest = divmod(len(made), len(names))
            for number, call in enumerate(made if each and not rest else ()):
                found[call.name] = Label(names[number // each], key, in_step, number % each)
    return found


def _optimizer(source: Source) -> tuple[list[str], str, str]:
    """The names of the optimizer's parameters, and the calls after which its step begins and ends."""
    names: list[str] = []
    start = end = ""
    for event in source.training if isinstance(source, RankDump) else []:
        if event.get("event") == "optimizer_step" and not names:
            for group in event.get("groups") or []:
                listed = group.get("names") if isinstance(group, dict) else None
                names += [str(one) for one in listed] if isinstance(listed, list) else []
            start = str(event.get("after"))
        elif event.get("event") == "optimizer_step_end" and not end:
            end = str(event.get("after"))
    return parameter_paths(source, names), start, end


def parameter_paths(source: Source, names: Sequence[str]) -> list[str]:
    """The names of a rank's parameters in the complete model: without wrappers, and without the number of the stage
    where start() was given several."""
    plain = [".".join(step for step in name.split(".") if step not in WRAPPERS) for name in names]
    pipeline = parallel_of(source).pipeline
    staged = pipeline is not None and len(pipeline.models) > 1 and all(name.split(".")[0].isdigit() for name in plain)
    wrapped = bool(plain) and all(name.startswith("module.") for name in plain)
    return [name.partition(".")[2] if staged or wrapped else name for name in plain]


def pair_parameters(matches: Sequence[Match], ours: Mapping[str, Label], theirs: Mapping[str, Label]) -> list[Match]:
    """Updates of one parameter belong together, whatever stands around them; those of two parameters do not."""
    golden = {theirs[one.golden.name]: one.golden for one in matches if one.golden and one.golden.name in theirs}
    paired = {name: golden[label] for name, label in ours.items() if label in golden}
    taken = {call.name for call in paired.values()}
    found: list[Match] = []
    for match in matches:
        target, other = match.target, match.golden
        wanted = paired.get(target.name) if target is not None else None
        if wanted is not None and other is not None and wanted.name == other.name:
            found.append(match)
            continue
        if wanted is not None:
            found.append(Match(target, wanted, "recount", BY_NAME))
        freed = other is not None and other.name not in taken
        labelled = target is not None and other is not None and target.name in ours and other.name in theirs
        if wanted is None and (other is None or (freed and not labelled)):
            found.append(match)
            continue
        if wanted is None and target is not None:
            found.append(Match(target, None, "unmatched", 0.0))
        if freed:
            found.append(Match(None, other, "unmatched", 0.0))
    return found
