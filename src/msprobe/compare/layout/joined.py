"""Joins the ranks of a run: stages one after the other, and for each call the records of all ranks and microbatches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

from msprobe.compare.align.plan import plan
from msprobe.compare.calls import BACKWARD, FORWARD, GRADS, Call, Match
from msprobe.compare.layout.dimensions import rank_of
from msprobe.compare.layout.flat import check_flat
from msprobe.compare.layout.owned import merge, place_owned, take_by_parameter, take_owned
from msprobe.compare.layout.parts import Label, Part, modules, name_of, passes, read_calls, split, whole
from msprobe.compare.layout.updates import label_updates, updates_a_share
from msprobe.compare.phases import Phase, phases_of
from msprobe.compare.sources import Source

SHARED = 0.2
"""Ranks of one stage have at least this share of their modules in common."""
BY_NUMBER = 0.9
"""How sure a match by number is."""


class Held(NamedTuple):
    """The record of a call on one rank, in one microbatch; `name` is its name in that dump, `label` the parameter that
    it updates, where the run is taken apart by parameters."""

    rank: int
    microbatch: int
    source: Source
    name: str
    record: Any
    label: Optional[Label] = None


class Alone(NamedTuple):
    """A call that only some ranks of a stage make; `name` is its name in the dump of the first of them."""

    ranks: tuple[int, ...]
    call: Call
    name: str


@dataclass
class JoinedRun:
    """`calls` is the run as alignment sees it: one call for those of all ranks and microbatches, in `held`.

    `stages` are the ranks of each stage of a pipeline, in order; one list of all ranks without a pipeline.
    """

    sources: list[Source]
    calls: list[Call] = field(default_factory=list)
    held: dict[str, list[Held]] = field(default_factory=dict)
    stages: list[list[int]] = field(default_factory=list)
    microbatches: int = 1
    alone: list[Alone] = field(default_factory=list)

    labels: dict[str, Label] = field(default_factory=dict)
    """The parameters that calls after the backward work on."""
    by_parameter: bool = False
    """One of the two runs keeps parameters in flat ones (FSDP1): updates are taken apart by parameters."""

    def is_owned(self, ranks: Sequence[int]) -> bool:
        """Whether their stage has more ranks than these."""
        return any(len(ranks) < len(stage) for stage in self.stages if ranks[0] in stage)

    @property
    def is_split(self) -> bool:
        """Whether the ranks update different parameters: stages of a pipeline, or shares of an optimizer."""
        return self.by_parameter or len(self.stages) > 1 or any(map(updates_a_share, self.sources))

    @property
    def shared(self) -> int:
        """How many ranks the largest stage has."""
        return max((len(stage) for stage in self.stages), default=1)

    def names(self) -> dict[str, tuple[int, str]]:
        """The first rank that made each call, and its name there."""
        return {name: (held[0].rank, held[0].name) for name, held in self.held.items() if held}


def join(sources: Sequence[Source], other: Sequence[Source]) -> JoinedRun:
    """`other` are the ranks of the other run: they show whether the batch was computed in parts."""
    ranks = {rank_of(place, source): source for place, source in enumerate(sources)}
    read = {rank: read_calls(source) for rank, source in ranks.items()}
    calls = {rank: made for rank, (made, _) in read.items()}
    expected = [read_calls(source)[0] for source in other]
    ours = max(passes(one) for one in calls.values())
    theirs = max(passes(one) for one in expected)
    run = JoinedRun(list(sources), stages=_stages(calls))
    run.by_parameter = any([check_flat(sources), check_flat(other)])
    parts: dict[int, list[Part]] = {}
    for rank, made in calls.items():
        if ours > theirs:
            skip = _skipped(made, expected[0], len(ranks))
            parts[rank] = split(rank, ranks[rank], made, read[rank][1], skip)
        else:
            parts[rank] = [whole(rank, ranks[rank], made, read[rank][1])]
    run.microbatches = max(len(one) for one in parts.values())
    known = set().union(*map(modules, expected))
    pieces = [_stage(run, [part for rank in stage for part in parts[rank]], known) for stage in run.stages]
    _concatenate(run, pieces)
    labels = {
        (rank, read[rank][1].get(name, name)): label
        for rank, made in calls.items()
        for name, label in label_updates(ranks[rank], made).items()
    }
    first = {name: ones[0] for name, ones in run.held.items() if ones}
    own = {name: one.label or labels.get((one.rank, one.name)) for name, one in first.items()}
    run.labels = {name: label for name, label in own.items() if label is not None}
    return run


def _stages(calls: dict[int, list[Call]]) -> list[list[int]]:
    """Ranks that share modules are one stage (each may also have its own experts). Ranks without modules are one stage
    too."""
    stages: list[tuple[set[str], list[int]]] = []
    for rank, made in calls.items():
        paths = modules(made)
        for known, ranks in stages:
            fewer = min(len(paths), len(known))
            if not fewer or len(paths & known) > SHARED * fewer:
                ranks.append(rank)
                break
        else:
            stages.append((paths, [rank]))
    return [ranks for _, ranks in stages]


def _skipped(made: Sequence[Call], expected: Sequence[Call], world: int) -> int:
    """The number of passes before the first microbatch: pipelines of torch run the model once to find the shapes."""
    batch = {call.key: size for call in expected if (size := _batch(call)) and call.number == 0}
    sizes: dict[str, list[int]] = {}
    for call in made:
        size = _batch(call)
        if size and call.key in batch:
            sizes.setdefault(call.key, []).append(size)
    for key, found in sizes.items():
        ways = [k for k in range(1, world + 1) if world % k == 0]
        if len(found) < 2 or any(sum(found) * k == batch[key] for k in ways):
            return 0
        if any(sum(found[1:]) * k == batch[key] for k in ways):
            return 1
    return 0


def _batch(call: Call) -> int:
    """The first size of the result of a module; 0 if it has none."""
    if call.kind != "module" or call.direction != FORWARD or call.recompute or not isinstance(call.record, dict):
        return 0
    output = call.record.get("output")
    first = output[0] if isinstance(output, list) and output else None
    shape = first.get("shape") if isinstance(first, dict) else None
    return shape[0] if isinstance(shape, list) and len(shape) > 1 and isinstance(shape[0], int) else 0


Piece = tuple[list[Call], dict[str, list[Held]]]


def _stage(run: JoinedRun, parts: Sequence[Part], known: set[str]) -> Piece:
    """The calls of a stage with the records of each part, including calls in modules that only some ranks have.

    `known` are the modules of the other run."""
    shared, owned = take_owned(parts, known)
    if run.by_parameter:
        shared, more = take_by_parameter(shared)
        owned += more
    calls, held = _side_by_side(run, shared)
    if not owned:
        return calls, held
    place = {call.name: number for number, call in enumerate(calls)}
    at: dict[tuple[int, int], dict[str, int]] = {}
    for name, ones in held.items():
        for one in ones:
            at.setdefault((one.rank, one.microbatch), {})[one.name] = place[name]
    pieces = [(calls, held), *(_side_by_side(run, group.parts) for group in owned)]
    placed = []
    for group, (own, _) in zip(owned, pieces[1:]):
        first = group.parts[0]
        placed.append(place_owned(own, group, at.get((first.rank, first.microbatch), {}), len(calls)))
    merged = merge(calls, placed)
    found = {one.call.name: pieces[one.group + 1][1][one.before.name] for one in merged}
    return [_with_items_of_all(one.call, found[one.call.name]) for one in merged], found


def _with_items_of_all(call: Call, held: Sequence[Held]) -> Call:
    """Gradients of parameters: a rank may have that of one parameter of the module, another rank that of another."""
    if call.direction != GRADS or not all(isinstance(one.record, dict) for one in held):
        return call
    return call._replace(record={name: item for one in reversed(held) for name, item in one.record.items()})


def _side_by_side(run: JoinedRun, parts: Sequence[Part]) -> Piece:
    """The calls of the first part, and what the others have for each."""
    leader = parts[0]
    held = {call.name: [_held(leader, call)] for call in leader.calls}
    calls = list(leader.calls)
    names = [call.name for call in calls]
    extra: dict[tuple[str, Optional[str]], list[tuple[Part, Call]]] = {}
    for part in parts[1:]:
        if [call.name for call in part.calls] == names:
            for call in part.calls:
                held[call.name].append(_held(part, call))
            continue
        for match in plan(part.calls, leader.calls):
            if match.target is not None and match.golden is not None:
                held[match.golden.name].append(_held(part, match.target))
            elif match.target is not None and part.microbatch == 0:
                extra.setdefault((match.target.key, match.target.parent), []).append((part, match.target))
    ranks = {part.rank for part in parts}
    for call in calls:
        owners = {one.rank for one in held[call.name]}
        if owners < ranks:
            run.alone.append(Alone(tuple(sorted(owners)), call, leader.names[call.name]))
    for found in extra.values():
        part, call = found[0]
        run.alone.append(Alone(tuple(sorted({one.rank for one, _ in found})), call, part.names[call.name]))
    run.alone = [one for one in run.alone if one.call.kind == "api" and not one.call.recompute]
    return calls, held


def _held(part: Part, call: Call) -> Held:
    label = part.labels.get(call.name)
    return Held(part.rank, part.microbatch, part.source, part.names[call.name], call.record, label)


def _concatenate(run: JoinedRun, pieces: Sequence[Piece]) -> None:
    """One sequence: forwards from the first stage to the last, backwards the other way, then the updates."""
    if len(pieces) == 1:
        run.calls, run.held = pieces[0]
        return
    offsets: dict[tuple[str, str], int] = {}
    phases: list[list[list[Call]]] = [[], [], []]
    taken: set[str] = set()
    for calls, held in pieces:
        renamed = _continue_numbers(calls, offsets, taken)
        for before, after in zip(calls, renamed):
            run.held.setdefault(after.name, []).extend(held[before.name])
        backwards = [place for place, call in enumerate(renamed) if call.direction in (BACKWARD, GRADS)]
        first = backwards[0] if backwards else len(renamed)
        last = backwards[-1] + 1 if backwards else len(renamed)
        for phase, cut in zip(phases, (renamed[:first], renamed[first:last], renamed[last:])):
            phase.append(cut)
        taken.update(call.name for call in renamed)
    joined: dict[str, Call] = {}
    for call in (one for phase in (phases[0], phases[1][::-1], phases[2]) for cut in phase for one in cut):
        joined.setdefault(call.name, call)
    run.calls = [call._replace(order=order) for order, call in enumerate(joined.values())]


def _continue_numbers(calls: Sequence[Call], offsets: dict[tuple[str, str], int], taken: set[str]) -> list[Call]:
    """The numbers of APIs continue from stage to stage; the name of a module is in one stage only."""
    seen: dict[tuple[str, str], int] = {}
    names: dict[str, str] = {}
    numbered = []
    for call in calls:
        number = call.number
        if call.kind == "api":
            number += offsets.get((call.key, FORWARD), 0)
            seen[call.key, FORWARD] = max(seen.get((call.key, FORWARD), 0), call.number + 1)
        names[call.name] = name_of(call, number)
        numbered.append(number)
    for key, count in seen.items():
        offsets[key] = offsets.get(key, 0) + count
    return [
        call._replace(name=names[call.name], number=number, parent=names.get(call.parent or "", call.parent))
        for call, number in zip(calls, numbered)
    ]


def pair_updates(matches: Sequence[Match]) -> list[Match]:
    """Pairs calls after the backward by their number, if both runs make equally many. Each parameter has the same calls
    there, and the shapes of shards mislead."""
    phases = phases_of([(match, None) for match in matches])
    after = [match for match, phase in zip(matches, phases) if phase is Phase.AFTER]
    ours: dict[str, list[Call]] = {}
    theirs: dict[str, list[Call]] = {}
    for match in after:
        if match.target is not None:
            ours.setdefault(match.target.key, []).append(match.target)
        if match.golden is not None:
            theirs.setdefault(match.golden.key, []).append(match.golden)
    counted = {key for key, calls in ours.items() if len(calls) == len(theirs.get(key, ()))}
    paired: dict[str, Call] = {}
    for key in counted:
        golden = sorted(theirs[key], key=lambda call: call.order)
        paired.update((one.name, other) for one, other in zip(sorted(ours[key], key=lambda c: c.order), golden))
    taken = {call.name for call in paired.values()}
    found = []
    for match in matches:
        if match.target is not None and match.target.name in paired:
            golden_call = paired[match.target.name]
            same = match.golden is not None and match.golden.name == golden_call.name
            found.append(match if same else Match(match.target, golden_call, "recount", BY_NUMBER))
        elif match.golden is None or match.golden.name not in taken:
            found.append(match)
        elif match.target is not None:
            found.append(Match(match.target, None, "unmatched", 0.0))
    return found


def sort_by_golden(matches: Sequence[Match]) -> list[Match]:
    """Matches in the golden run's order: the stages of a pipeline run at the same time."""
    place = -1.0
    keyed = []
    for index, match in enumerate(matches):
        if match.golden is not None:
            place = float(match.golden.order)
        keyed.append((place, index, match))
    return [match for _, _, match in sorted(keyed, key=lambda one: one[:2])]


def sort_by_target(matches: Sequence[Match]) -> list[Match]:
    """The same if only the golden run is a pipeline: a call that only it has follows its own predecessor."""
    place = -1.0
    places: dict[int, float] = {}
    for match in sorted(matches, key=lambda one: -1 if one.golden is None else one.golden.order):
        if match.target is not None:
            place = float(match.target.order)
        places[id(match)] = place
    return sorted(matches, key=lambda one: (places[id(one)], one.target is None))
