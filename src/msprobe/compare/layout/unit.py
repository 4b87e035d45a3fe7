"""One step of two runs in different layouts: joined, aligned, put together, measured."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from msprobe.compare.align.plan import plan
from msprobe.compare.align.translate import Translation
from msprobe.compare.calls import BACKWARD, FORWARD, Call, Match
from msprobe.compare.layout import statistics
from msprobe.compare.layout.case import Case, Layout, reorder
from msprobe.compare.layout.covering import ADDED_UP
from msprobe.compare.layout.dimensions import MICROBATCH, Grid, arrangements, rank_of
from msprobe.compare.layout.fixed import LayoutFile, balanced_sequence, fixed_placements, grid_of_file
from msprobe.compare.layout.flat import PartItem, flatten
from msprobe.compare.layout.joined import Alone, Held, JoinedRun, join, pair_updates, sort_by_golden, sort_by_target
from msprobe.compare.layout.search import OWNED, Factors, Memory, kind_of, oddness, search
from msprobe.compare.layout.settling import agree_with_kind, settle_backward
from msprobe.compare.layout.shards import Shards, arrange, forget_files, load
from msprobe.compare.layout.updates import pair_by_parameter, separate_parameters
from msprobe.compare.layout.ways import REDUCED, assemble
from msprobe.compare.measure.distance import ValueKey, value_key
from msprobe.compare.measure.rows import from_files, from_records
from msprobe.compare.measure.tensors import NotComparable, compare_arrays
from msprobe.compare.pairing import Pairing
from msprobe.compare.phases import Phase, is_made_by_engine, phases_of
from msprobe.compare.reasons import NO_REASON, UNSPLIT, Kind, Reason
from msprobe.compare.rows import UNMEASURED, Group, Item, Measurement, Row, is_tensor, slots_of
from msprobe.compare.sources import Pair, Source
from msprobe.dump.collectives import is_collective
from msprobe.messages import Message

SAMPLE = 40


class JoinTask(NamedTuple):
    """The ranks of one step on both sides."""

    target: tuple[Source, ...]
    golden: tuple[Source, ...]
    file: Optional[LayoutFile] = None


@dataclass(frozen=True)
class JoinedUnit:
    """The measured rows of one step, and how the ranks belong together.

    `names` has the rank and the original name of calls that got a new name, on both sides; `ranks` the ranks of the
    target that made each call; `alone` says which calls only some ranks of the target made; `factors` how the backward
    is scaled."""

    groups: list[Group]
    grids: Pair[Grid]
    stages: Pair[list[list[int]]]
    microbatches: Pair[int]
    names: Pair[dict[str, tuple[int, str]]]
    ranks: dict[str, tuple[int, ...]]
    alone: list[Alone]
    factors: Factors


def run_joined(task: JoinTask, mode: str, translation: Translation) -> JoinedUnit:
    forget_files()
    target, golden = join(task.target, task.golden), join(task.golden, task.target)
    if target.is_split or golden.is_split:
        matches = _match_split(target, golden, mode, translation)
    else:
        matches = pair_updates(plan(target.calls, golden.calls, mode, translation, of_parts=True))
    pairing = Pairing(translation)
    groups: list[Group] = [(match, pairing.rows(match)) for match in matches]
    rows = _Rows(groups, target, golden, task.file)
    grids, cases = rows.arranged(*_arrangements(task))
    names = [
        *(("target", name, size) for name, size in zip(grids.target.names, grids.target.sizes)),
        *(("golden", name, size) for name, size in zip(grids.golden.names, grids.golden.sizes)),
        ("target", MICROBATCH, target.microbatches),
        ("golden", MICROBATCH, golden.microbatches),
        *((side, OWNED, run.shared) for side, run in (("target", target), ("golden", golden))),
    ]
    factors = settle_backward(cases, names)
    memory = Memory()
    for case in cases:
        search(case, factors, memory)
        memory.add(case)
        case.row.joined = case
        if case.explained:
            case.row.measurement = _measure(case)  # while its files are still open
    agree_with_kind(cases, memory)
    for _, made in groups:
        for row in made:
            if row.joined is None:
                row.measurement = rows.unarranged(row)
            elif row.measurement is UNMEASURED:
                row.measurement = _measure(row.joined)
    return JoinedUnit(
        groups,
        grids,
        Pair(target.stages, golden.stages),
        Pair(target.microbatches, golden.microbatches),
        Pair(target.names(), golden.names()),
        {name: tuple(sorted({one.rank for one in ones})) for name, ones in target.held.items()},
        target.alone,
        factors,
    )


def _match_split(target: JoinedRun, golden: JoinedRun, mode: str, translation: Translation) -> list[Match]:
    """The ranks of a side update different parameters: the updates are matched by the parameter's name."""
    updates = pair_by_parameter(target.calls, golden.calls, target.labels, golden.labels)
    taken = {match.target.name for match in updates if match.target is not None}
    given = {match.golden.name for match in updates if match.golden is not None}
    ours = [call for call in target.calls if call.name not in taken]
    theirs = [call for call in golden.calls if call.name not in given]
    others = separate_parameters(plan(ours, theirs, mode, translation, of_parts=True), target.labels, golden.labels)
    matches = sorted([*others, *updates], key=lambda one: math.inf if one.target is None else one.target.order)
    return sort_by_golden(matches) if target.is_split else sort_by_target(matches)


def _arrangements(task: JoinTask) -> tuple[list[Grid], list[Grid]]:
    """The possible arrangements of the ranks of both sides; only that of the user's file, if it has one."""
    found = []
    for side in ("target", "golden"):
        sources = getattr(task, side)
        ranks = [rank_of(place, source) for place, source in enumerate(sources)]
        given = grid_of_file(getattr(task.file, side), ranks, task.file.path) if task.file is not None else None
        found.append(arrangements(sources) if given is None else [given])
    return found[0], found[1]


class _Rows:
    """The rows of a unit with what every rank has of them."""

    def __init__(
        self, groups: Sequence[Group], target: JoinedRun, golden: JoinedRun, file: Optional[LayoutFile]
    ) -> None:
        self._file = file
        self._groups = groups
        self._runs = (target, golden)
        self._slots: dict[int, dict[str, Item]] = {}
        self._obstacles: dict[int, Reason] = {}
        self._sources = target.sources
        self._exchanged = {key for run in self._runs for key in self._collective_inputs(run)}

    def _items(self, held: Sequence[Held], slot: str) -> list[Item]:
        found = []
        for one in held:
            known = self._slots.get(id(one.record))
            if known is None:
                known = dict(slots_of(one.record)) if isinstance(one.record, dict) else {}
                self._slots[id(one.record)] = known
            found.append(known.get(slot))
        return found

    def _collective_inputs(self, run: JoinedRun) -> Iterator[Optional[ValueKey]]:
        """The inputs of collectives: a shard of a sum is passed to one."""
        for call in run.calls:
            if is_collective(call.key):
                for one in run.held[call.name]:
                    for slot, item in slots_of(one.record) if isinstance(one.record, dict) else ():
                        if slot.startswith("input."):
                            yield value_key(item)

    @functools.cached_property
    def _by_engine(self) -> set[int]:
        """The places of forward calls among those of the backward that the engine made, as their stacks show: a
        function of the user may have a collective in its backward."""
        directions = [match.call.direction for match, _ in self._groups]
        first = directions.index(BACKWARD) if BACKWARD in directions else len(directions)
        found = set()
        for place in range(first, len(directions)):
            match = self._groups[place][0]
            if directions[place] == FORWARD and match.target is not None and match.golden is not None:
                held = self._runs[0].held[match.target.name][0]
                if is_made_by_engine(match, ({match.target.name: held.source.stacks.get(held.name, [])}, {})):
                    found.add(place)
        return found

    def cases(self, grids: Pair[Grid], most: Optional[int] = None) -> list[Case]:
        made = []
        phases = phases_of(self._groups)
        balanced = balanced_sequence(self._sources, grids.target)
        for place, ((match, rows), phase) in enumerate(zip(self._groups, phases)):
            for row in rows:
                if match.target is None or match.golden is None or row.absent:
                    continue
                if not is_tensor(row.target) or not is_tensor(row.golden):
                    continue
                found = self._shards(match.target, match.golden, row, grids)
                if isinstance(found, Reason):
                    self._obstacles[id(row)] = found
                    continue
                ours, theirs = found
                fixed = (
                    fixed_placements(ours, row.target_name or "", grids.target, self._file),
                    fixed_placements(theirs, row.golden_name or "", grids.golden, self._file),
                )
                reduced = any(value_key(item) in self._exchanged for item in (*ours.items, *theirs.items))
                kind = kind_of(match, row, ours, theirs)
                owned = self._is_owned(0, ours), self._is_owned(1, theirs)
                case = Case(
                    row, phase, ours, theirs, kind, reduced=reduced, fixed=fixed, balanced=balanced, owned=owned
                )
                case.by_engine = place in self._by_engine
                made.append(case)
                if most is not None and len(made) >= most:
                    return made
        return made

    def _shards(self, target: Call, golden: Call, row: Row, grids: Pair[Grid]) -> Union[tuple[Shards, Shards], Reason]:
        """What both sides have of a row; flattened where one of them has parts of flat parameters."""
        held = self._runs[0].held[target.name], self._runs[1].held[golden.name]
        items = [self._items(one, slot) for one, slot in zip(held, (row.slot, row.golden_slot))]
        parts = [item for side in items for item in side if isinstance(item, PartItem)]
        if parts:
            items = [[flatten(item) for item in side] for side in items]
        if any(part.unsplit for part in parts):
            return UNSPLIT
        ours = arrange(held[0], items[0], grids.target)
        theirs = arrange(held[1], items[1], grids.golden)
        if isinstance(ours, Reason):
            return ours
        return theirs if isinstance(theirs, Reason) else (ours, theirs)

    def _is_owned(self, side: int, shards: Shards) -> bool:
        return shards.pieces is None and self._runs[side].is_owned(shards.ranks)

    def arranged(self, ours: Sequence[Grid], theirs: Sequence[Grid]) -> tuple[Pair[Grid], list[Case]]:
        """The arrangement of the ranks of both sides that explains most of the first rows in the simplest ways."""
        pairs = [Pair(a, b) for a in ours for b in theirs]
        best: Optional[tuple[float, int, Pair[Grid]]] = None
        for pair in pairs if len(pairs) > 1 else []:
            cases = [case for case in self.cases(pair, 3 * SAMPLE) if case.phase is Phase.FORWARD][:SAMPLE]
            for case in cases:
                search(case, None, Memory())
            score = sum(case.explained for case in cases) + 0.5 * (pair.target.known + pair.golden.known)
            plainness = -sum(oddness(way) for case in cases if case.layout is not None for way in case.layout[:2])
            if best is None or (score, plainness) > best[:2]:
                best = (score, plainness, pair)
        chosen = best[2] if best is not None else pairs[0]
        return chosen, self.cases(chosen)

    def unarranged(self, row: Row) -> Measurement:
        if id(row) in self._obstacles:
            return Measurement(None, self._obstacles[id(row)])
        return from_records(row)


def _measure(case: Case) -> Measurement:
    """The distance of the assembled tensors; the row shows their statistics."""
    row, layout = case.row, case.layout
    if layout is None:
        ours, theirs = (one.shapes().flat[0] for one in (case.target, case.golden))
        text = Message("shape.shards", target=str(list(ours)), golden=str(list(theirs)))
        return Measurement(None, Reason(Kind.SHAPE, text))
    if case.saved:
        return _measure_arrays(case, row, layout)
    ours, theirs = statistics.merge(case.target, layout.target), statistics.merge(case.golden, layout.golden)
    row.target, row.golden = ours[0], theirs[0]
    reduced = any(one in REDUCED for way in (layout.target, layout.golden) for one in way.placements)
    if reduced and any(item.get("Norm") is None for item in (ours[0], theirs[0])):
        return Measurement(None, ADDED_UP)
    pairs = [(one, other) for one in ours for other in theirs if other is theirs[0] or other != theirs[0]]
    found = [_of_statistics(row, one, other, layout.factor) for one, other in pairs]
    worst = max(range(len(found)), key=lambda place: found[place].distance or 0.0)
    row.target, row.golden = pairs[worst]
    return found[worst]


def _of_statistics(row: Row, ours: dict[str, Any], theirs: dict[str, Any], factor: float) -> Measurement:
    scaled = dict(ours)
    for key in statistics.KEYS:
        if factor != 1.0 and isinstance(scaled.get(key), (int, float)):
            scaled[key] = scaled[key] * factor
    trial = Row(row.match, row.slot, row.golden_slot, scaled, theirs)
    return from_records(trial)


def _measure_arrays(case: Case, row: Row, layout: Layout) -> Measurement:
    loaded = load(case.target), load(case.golden)
    for one in loaded:
        if isinstance(one, Reason):
            return Measurement(None, one)
    ours = assemble(loaded[0], layout.target)  # type: ignore[arg-type]
    theirs = assemble(loaded[1], layout.golden)  # type: ignore[arg-type]
    goldens = [theirs[0], *(one for one in theirs[1:] if not np.array_equal(one, theirs[0]))]
    worst: Optional[Measurement] = None
    for array, golden in itertools.product(ours, goldens):
        array = reorder(array, layout.orders)
        if layout.factor != 1.0:
            array = array * layout.factor
        try:
            found = from_files((compare_arrays(array, golden), NO_REASON))
        except NotComparable as error:
            found = Measurement(None, error.reason)
        if worst is None or (found.distance or 0.0) > (worst.distance or 0.0):
            worst = found
            row.target = statistics.of_array(case.target.first, array)
            row.golden = statistics.of_array(case.golden.first, golden)
    assert worst is not None
    return worst
