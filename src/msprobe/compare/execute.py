"""One rank and step: read, align, pair, measure. Runs in this process, in a pool, or on a Ray worker alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from msprobe.compare.align import plan
from msprobe.compare.calls import calls_of
from msprobe.compare.inputs import Pair
from msprobe.compare.measure import apply, files_of, from_records, measure_files
from msprobe.compare.rows import rows_of
from msprobe.compare.trace import Group
from msprobe.compare.translate import Translation
from msprobe.dump.reader import RankDump

Mapper = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]


class Task(NamedTuple):
    """Everything that a worker needs to know."""

    pair: Pair[RankDump]
    mode: str
    translation: Translation


def in_turn(work: Callable[[Any], Any], things: Sequence[Any]) -> Iterator[Any]:
    return map(work, things)


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
    groups = [(match, rows_of(match, translation)) for match in matches]
    waiting = []
    for _, rows in groups:
        for row in rows:
            from_records(row)
            files = files_of(row, target, golden)
            if files is not None:
                waiting.append((row, files))
    if waiting:
        for (row, _), (metrics, reason) in zip(waiting, mapper(measure_files, [files for _, files in waiting])):
            apply(row, metrics, reason)
    return groups
