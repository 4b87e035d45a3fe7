"""One rank and step: read, align, pair, measure. Runs in this process, in a pool, or on a Ray worker alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Optional, Union

from msprobe.compare.align.plan import plan
from msprobe.compare.align.translate import Translation
from msprobe.compare.calls import calls_of
from msprobe.compare.layout.unit import JoinedUnit, JoinTask, run_joined
from msprobe.compare.measure.rows import files_of, from_files, from_records, measure_files
from msprobe.compare.pairing import Pairing
from msprobe.compare.reasons import Reason
from msprobe.compare.rows import Group, Measurement
from msprobe.compare.sources import Pair, Source
from msprobe.dump.errors import DumpError

Mapper = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]


class Task(NamedTuple):
    """Everything that a worker needs to know; with `join` the ranks of a step are compared as one."""

    pair: Pair[Source]
    mode: str
    translation: Translation
    join: Optional[JoinTask] = None


def in_turn(work: Callable[[Any], Any], things: Sequence[Any]) -> Iterator[Any]:
    return map(work, things)


def attempt(task: Task, mapper: Mapper = in_turn) -> Union[list[Group], JoinedUnit, DumpError]:
    """`run`, or why this unit cannot be read: the others are compared all the same."""
    try:
        return run(task, mapper)
    except DumpError as error:
        return error


def run(task: Task, mapper: Mapper = in_turn) -> Union[list[Group], JoinedUnit]:
    """The measured rows of one unit, by call, in execution order; verdicts come later."""
    target, golden = task.pair.target, task.pair.golden
    translation = task.translation
    if target.head.get("framework") != golden.head.get("framework"):
        translation = translation.between_frameworks()
    if task.join is not None:
        return run_joined(task.join, task.mode, translation)
    matches = plan(
        calls_of({**target.records, **target.debug}, target.construct),
        calls_of({**golden.records, **golden.debug}, golden.construct),
        task.mode,
        translation,
    )
    pairing = Pairing(translation)
    groups = [(match, pairing.rows(match)) for match in matches]
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
