"""Compares one rank in one step: read, align, pair, measure. It runs in this process, in a pool, or on a Ray worker."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

from msprobe.compare.align.plan import plan
from msprobe.compare.align.translate import Translation
from msprobe.compare.calls import calls_of
from msprobe.compare.derived import in_both, match_updates, take_updates, with_results
from msprobe.compare.layout.unit import JoinedUnit, JoinTask, run_joined
from msprobe.compare.measure.rows import Files, Measured, files_of, from_files, from_records, measure_files
from msprobe.compare.outline import outline_of, troubles_of
from msprobe.compare.pairing import Pairing
from msprobe.compare.reasons import Reason
from msprobe.compare.rows import Group, Measurement, Row
from msprobe.compare.sources import Pair, Source
from msprobe.dump.errors import DumpError
from msprobe.messages import Message

Mapper = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]


class Task(NamedTuple):
    """Everything that a worker needs to know; with `join` the ranks of a step are compared as one."""

    pair: Pair[Source]
    mode: str
    translation: Translation
    join: Optional[JoinTask] = None

    @property
    def sides(self) -> Pair[tuple[Source, ...]]:
        """All ranks that are read."""
        if self.join is not None:
            return Pair(self.join.target, self.join.golden)
        return Pair((self.pair.target,), (self.pair.golden,))


class Outcome(NamedTuple):
    """The result of a worker. `measured` is None in two cases: the unit is equal on both sides and a unit with the same
    `outline` was measured before; or the unit could not be read, and `error` says why.

    `unfinished` and `troubles` are sentences about the files that were read."""

    measured: Union[list[Group], JoinedUnit, None]
    outline: Optional[bytes] = None
    error: Optional[DumpError] = None
    unfinished: tuple[Message, ...] = ()
    troubles: tuple[Message, ...] = ()


_measured: set[bytes] = set()
"""The outlines of the units that this process has measured and found to agree in every row."""


def in_turn(work: Callable[[Any], Any], things: Sequence[Any]) -> Iterator[Any]:
    return map(work, things)


def attempt(task: Task, mapper: Mapper = in_turn) -> Outcome:
    """Calls `run`, unless the unit is known to be equal. After an error the other units are still compared."""
    unfinished: list[Message] = []
    troubles: list[Message] = []
    try:
        outline = _outline(task)
        known = outline in _measured
        for source in (*task.sides.target, *task.sides.golden):
            # A copy forgets what it read: a thousand equal ranks must not stay in memory.
            _look_at(replace(source) if known else source, unfinished, troubles)
        measured = None if known else run(task, mapper)
    except DumpError as error:
        return Outcome(None, None, error, tuple(unfinished), tuple(troubles))
    if isinstance(measured, list) and outline is not None:
        if all(row.distance == 0.0 for _, rows in measured for row in rows):
            _measured.add(outline)
        else:
            outline = None
    return Outcome(measured, outline, None, tuple(unfinished), tuple(troubles))


def _outline(task: Task) -> Optional[bytes]:
    """None unless equal names mean equal calls."""
    return outline_of(task.pair) if task.join is None and task.translation.plain else None


def _look_at(source: Source, unfinished: list[Message], troubles: list[Message]) -> None:
    if source.unfinished:
        unfinished.append(Message("note.unfinished", path=str(source.path)))
    troubles += [Message("note.trouble", path=str(source.path), trouble=trouble) for trouble in troubles_of(source)]


def flow_troubles(source: Source) -> list[Message]:
    """What is damaged of the flow of values, which is read only where it is needed."""
    found = getattr(source, "flow_trouble", None)
    return [] if found is None else [Message("note.trouble", path=str(source.path), trouble=found)]


def run(task: Task, mapper: Mapper = in_turn) -> Union[list[Group], JoinedUnit]:
    """The measured rows of one unit, by call, in execution order; verdicts come later."""
    return run_pair(task, mapper) if task.join is None else run_joined(task.join, task.mode, _translation(task))


def _translation(task: Task) -> Translation:
    frameworks = (source.head.get("framework") for source in (task.pair.target, task.pair.golden))
    return task.translation if len(set(frameworks)) == 1 else task.translation.between_frameworks()


def _records(source: Source) -> dict[str, Any]:
    return {**with_results(source.records, getattr(source, "training", [])), **source.debug}


def run_pair(task: Task, mapper: Mapper = in_turn) -> list[Group]:
    """The measured rows of one rank of each side."""
    target, golden = task.pair.target, task.pair.golden
    translation = _translation(task)
    ours, theirs = _records(target), _records(golden)
    in_both(ours, theirs)
    calls, others = calls_of(ours, target.construct), calls_of(theirs, golden.construct)
    named, given = take_updates(calls), take_updates(others)
    matches = [*plan(calls, others, task.mode, translation), *match_updates(named, given)]
    pairing = Pairing(translation)
    groups = [(match, pairing.rows(match)) for match in matches]
    waiting = []
    for _, rows in groups:
        for row in rows:
            row.measurement = from_records(row)
            if not row.target or "data_name" not in row.target:
                continue
            files = files_of(row, target, golden)
            if isinstance(files, Reason):
                row.measurement = Measurement(None, files)
            elif files is not None:
                waiting.append((row, files))
    for row, measured in _measure_distinct(waiting, mapper):
        row.measurement = from_files(measured)
    return groups


def _measure_distinct(waiting: Sequence[tuple[Row, Files]], mapper: Mapper) -> Iterator[tuple[Row, Measured]]:
    """Measures each pair of files once, also under several names: a tensor that many calls use is one file with links.
    The reason of a pair that cannot be compared names its files, so it belongs to one row only."""
    same: dict[Any, list[tuple[Row, Files]]] = {}
    for row, files in waiting:
        same.setdefault(tuple(map(_identity, files)), []).append((row, files))
    distinct = [members[0][1] for members in same.values()]
    for members, measured in zip(same.values(), mapper(measure_files, distinct) if distinct else ()):
        yield members[0][0], measured
        for row, files in members[1:]:
            yield row, measured if measured[0] is not None else measure_files(files)


def _identity(path: Path) -> Any:
    """The same for all names of one regular file in one directory."""
    try:
        found = path.lstat()
    except (OSError, ValueError):
        return path
    return (path.parent, path.suffix, found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else path
