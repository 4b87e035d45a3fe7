"""One rank and step: read, align, pair, measure. Runs in this process, in a pool, or on a Ray worker alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Optional

from msprobe.compare.align.plan import plan
from msprobe.compare.align.translate import Translation
from msprobe.compare.calls import calls_of
from msprobe.compare.inputs import Pair, Source
from msprobe.compare.measure.rows import files_of, from_files, from_records, measure_files
from msprobe.compare.measure.shards import measure_shards
from msprobe.compare.merge import Merge, merge_rows, shard_files
from msprobe.compare.outline import outline_of, troubles_of
from msprobe.compare.pairing import Pairing
from msprobe.compare.reasons import Kind, Reason
from msprobe.compare.rows import Group, Measurement
from msprobe.dump.errors import DumpError

Mapper = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]


class Task(NamedTuple):
    """Everything that a worker needs to know; with `merge` the pair is the first rank of each group."""

    pair: Pair[Source]
    mode: str
    translation: Translation
    merge: Optional[Merge] = None

    @property
    def sides(self) -> Pair[tuple[Source, ...]]:
        """All ranks that are read."""
        if self.merge is not None:
            return Pair(self.merge.target, self.merge.golden)
        return Pair((self.pair.target,), (self.pair.golden,))


class Outcome(NamedTuple):
    """What a worker found. `groups` is None where the unit is equal on both sides and a unit with the same `outline`
    was measured before, and where it could not be read: `error` says why.

    `unfinished` and `troubles` are sentences about the files that were read."""

    groups: Optional[list[Group]]
    outline: Optional[bytes] = None
    error: Optional[DumpError] = None
    unfinished: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()


_measured: set[bytes] = set()
"""The outlines of the units that this process has measured and found to agree in every row."""


def in_turn(work: Callable[[Any], Any], things: Sequence[Any]) -> Iterator[Any]:
    return map(work, things)


def attempt(task: Task, mapper: Mapper = in_turn) -> Outcome:
    """`run`, unless the unit is known to be equal; an error costs this unit only, the others are still compared."""
    unfinished: list[str] = []
    troubles: list[str] = []
    try:
        outline = _outline(task)
        known = outline in _measured
        for source in (*task.sides.target, *task.sides.golden):
            # A copy forgets what it read: a thousand equal ranks must not stay in memory.
            _look_at(replace(source) if known else source, unfinished, troubles)
        groups = None if known else run(task, mapper)
    except DumpError as error:
        return Outcome(None, None, error, tuple(unfinished), tuple(troubles))
    if groups is not None and outline is not None:
        if all(row.distance == 0.0 for _, rows in groups for row in rows):
            _measured.add(outline)
        else:
            outline = None
    return Outcome(groups, outline, None, tuple(unfinished), tuple(troubles))


def _outline(task: Task) -> Optional[bytes]:
    """Only where equal names mean equal calls."""
    return outline_of(task.pair) if task.merge is None and task.translation.plain else None


def _look_at(source: Source, unfinished: list[str], troubles: list[str]) -> None:
    if source.unfinished:
        unfinished.append(f"{source.path} is unfinished (the run crashed, or still writes): compared as far as it got")
    troubles += [f"{source.path}: {trouble}" for trouble in troubles_of(source)]


def run(task: Task, mapper: Mapper = in_turn) -> list[Group]:
    """The measured rows of one unit, by call, in execution order; verdicts come later."""
    target, golden = task.pair.target, task.pair.golden
    translation = task.translation
    if target.head.get("framework") != golden.head.get("framework"):
        translation = translation.between_frameworks()
    matches = plan(
        calls_of({**target.records, **target.debug}, target.construct),
        calls_of({**golden.records, **golden.debug}, golden.construct),
        task.mode,
        translation,
    )
    pairing = Pairing(translation)
    groups = [(match, pairing.rows(match)) for match in matches]
    if task.merge is not None:
        return _run_merged(groups, task.merge, mapper)
    waiting = []
    for _, rows in groups:
        for row in rows:
            row.measurement = from_records(row)
            files = files_of(row, target, golden)
            if isinstance(files, Reason):
                row.measurement = Measurement(None, files)
            elif files is not None:
                waiting.append((row, files))
    if waiting:
        for (row, _), measured in zip(waiting, mapper(measure_files, [files for _, files in waiting])):
            row.measurement = from_files(measured)
    return groups


def _run_merged(groups: list[Group], merge: Merge, mapper: Mapper) -> list[Group]:
    merged = merge_rows(groups, merge)
    waiting = []
    for _, found in merged:
        for row, shards, obstacle in found:
            row.measurement = Measurement(None, obstacle) if obstacle else from_records(row)
            files = shard_files(shards, row.merged) if shards is not None else None
            if files is not None:
                waiting.append((row, files))
            elif row.merged == "sum":
                text = "partial sums can only be added up from saved tensors"
                row.measurement = Measurement(None, Reason(Kind.KIND, text))
    for (row, _), measured in zip(waiting, mapper(measure_shards, [files for _, files in waiting])):
        row.measurement = from_files(measured)
    return [(match, [one.row for one in found]) for match, found in merged]
