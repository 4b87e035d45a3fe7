"""A watched run, read from its databases: targets, curves and alarms of every rank."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np

from msprobe.dump.errors import DumpError
from msprobe.dump.items import read_number
from msprobe.dump.nearby import is_dump
from msprobe.messages import read_message
from msprobe.watch.alarms.alarm import Alarm
from msprobe.watch.reading.database import NUMBER, NUMBER_OR_NULL, Database, Kind
from msprobe.watch.store import ABSENT_BITS, ENDED, FORMAT, is_absent
from msprobe.watch.targets import ALL_STATISTICS, Target, is_kind, label_of

Array = np.ndarray[Any, Any]
_NAME = re.compile(r"watch(?:_rank(\d{1,9}))?\.sqlite\Z")
_MOST_COLUMNS = 1 << 24
_SMALL_TABLE = 1 << 23
_FILLED = 16
"""In a large table at least one of this many cells must have a number; otherwise the file is damaged."""
_STATISTICS = frozenset(ALL_STATISTICS)
_LAST_STEPS, _PAUSES, _PATIENCE = 20, 20, 120.0
"""A run lives if its last step is younger than 120 seconds, or than 20 times what its last 20 steps took each."""
_PAIRS = ([int, float], [int, int])
_LONGEST = 10_000
"""Characters of an argument of a message."""


@dataclass(frozen=True)
class Series:
    """Where the numbers of one target are in the block of a step."""

    target: Target
    first: int
    statistics: tuple[str, ...]


class RankRun:
    """One database, opened for reading; a monitor may write to it at the same time."""

    def __init__(self, path: Path, rank: Optional[int]) -> None:
        self.path, self.rank = path, rank
        self._database = Database(path)
        rows = self._rows("SELECT key, value FROM meta", (), (str, str))
        self.meta: Mapping[str, Any] = {key: self._database.parse(value, object) for key, value in rows}
        if self.meta.get("format") != FORMAT:
            raise DumpError(f"{path} has format {self.meta.get('format')!r}; this msprobe reads format {FORMAT}.")
        rules = self.meta.get("alarms", {})
        if not isinstance(rules, dict) or not all(isinstance(value, NUMBER) for value in rules.values()):
            raise self._database.damaged("the alarm settings are not valid")

    def _rows(self, query: str, arguments: tuple[Any, ...], kinds: Sequence[Kind]) -> list[tuple[Any, ...]]:
        return self._database.rows(query, arguments, kinds)

    def series(self) -> list[Series]:
        found: list[Series] = []
        query = "SELECT kind, name, position, shape, dtype, shard, first, statistics FROM targets ORDER BY id"
        kinds = (str, str, int, str, str, str, int, str)
        for kind, name, position, shape, dtype, shard, first, statistics in self._rows(query, (), kinds):
            self._check_kind(kind)
            dims = self._database.parse(shape, list)
            names = tuple(statistics.split(","))
            if not 0 <= first < _MOST_COLUMNS or not _STATISTICS.issuperset(names):
                raise self._database.damaged("a target has unknown statistics")
            if found and first < found[-1].first + len(found[-1].statistics):
                raise self._database.damaged("two targets share a column")
            if not all(isinstance(dim, int) for dim in dims):
                raise self._database.damaged("a target has an invalid shape")
            found.append(Series(Target(kind, name, position, tuple(dims), dtype, shard), first, names))
        return found

    def steps(self) -> list[int]:
        return [step for (step,) in self._rows("SELECT step FROM steps WHERE step >= 0 ORDER BY step", (), (int,))]

    def is_living(self, now: float) -> bool:
        """Whether a monitor still writes: it has not ended, and the last step is not much older than steps take."""
        if ENDED in self.meta:
            return False
        rows = self._rows("SELECT time FROM steps ORDER BY step DESC LIMIT ?", (_LAST_STEPS,), (NUMBER,))
        times = [time for (time,) in rows]
        if not times:
            return now - self.path.stat().st_mtime < _PATIENCE
        pause = (times[0] - times[-1]) / max(len(times) - 1, 1)
        return bool(now - times[0] < max(_PATIENCE, _PAUSES * pause))

    def table(self, from_step: int = 0) -> tuple[list[int], Array, Array]:
        """Steps, times, and all numbers: one row per step, one column per number. An absent number has ABSENT_BITS."""
        query = "SELECT step, time, numbers FROM steps WHERE step >= ? ORDER BY step"
        rows = self._rows(query, (from_step,), (int, NUMBER, bytes))
        width = max((len(numbers) // 8 for _, _, numbers in rows), default=0)
        there = sum(len(numbers) // 8 for _, _, numbers in rows)
        if width > _MOST_COLUMNS or (len(rows) * width > _SMALL_TABLE and len(rows) * width > _FILLED * there):
            raise self._database.damaged(f"a step has {width} numbers")
        table = np.full((len(rows), width), ABSENT_BITS, np.uint64).view(np.float64)
        for place, (_, _, numbers) in enumerate(rows):
            table[place, : len(numbers) // 8] = _floats(numbers)
        return [row[0] for row in rows], np.array([row[1] for row in rows], np.float64), table

    def curve(self, kind: str, name: str, statistic: str) -> tuple[Array, Array]:
        """Steps and values of one number."""
        for one in self.series():
            if (one.target.kind, one.target.name) != (kind, name) or statistic not in one.statistics:
                continue
            column = one.first + one.statistics.index(statistic)
            cut = "SELECT step, substr(numbers, ?, 8) FROM steps WHERE step >= 0 AND length(numbers) >= ?"
            rows = self._rows(f"{cut} ORDER BY step", (8 * column + 1, 8 * column + 8), (int, bytes))
            values = np.frombuffer(b"".join(part for _, part in rows))
            there = ~is_absent(values)
            return np.array([step for step, _ in rows], np.int64)[there], values[there]
        return np.empty(0, np.int64), np.empty(0)

    def initial(self) -> Optional[Array]:
        """The numbers before the first step."""
        for (numbers,) in self._rows("SELECT numbers FROM steps WHERE step = -1", (), (bytes,)):
            return _floats(numbers)
        return None

    def alarms(self, after: int = 0) -> list[tuple[int, Alarm]]:
        column = "message" if self._database.has_messages else "NULL"
        query = (
            f"SELECT id, step, rule, kind, name, position, sentence, {column}, value, usual, around, rank FROM alarms "
            "WHERE id > ? ORDER BY id"
        )
        numbers = (NUMBER_OR_NULL, NUMBER_OR_NULL)
        kinds = (int, int, str, str, str, int, str, (str, type(None)), *numbers, str, (int, type(None)))
        found = []
        for number, step, rule, kind, name, position, text, message, value, usual, around, rank in self._rows(
            query, (after,), kinds
        ):
            self._check_kind(kind)
            said = self._sentence(text, message)
            figures = (math.nan if value is None else value, math.nan if usual is None else usual)
            whose = rank if rank is not None else self.rank or 0
            found.append((number, Alarm(step, rule, kind, name, said, *figures, self._around(around), position, whose)))
        return found

    def _sentence(self, text: str, message: Optional[str]) -> str:
        """The stored message, if this version knows it and it says what the text says."""
        if message is None:
            return text
        read = read_message(self._database.parse(message, dict), _LONGEST)
        return read if read is not None and read == text else text

    def _check_kind(self, kind: str) -> None:
        if not is_kind(kind):
            raise self._database.damaged("a target or an alarm has an unknown kind")

    def _around(self, text: str) -> tuple[tuple[int, float], ...]:
        pairs = self._database.parse(text, list)
        if not all(isinstance(pair, list) and [type(one) for one in pair] in _PAIRS for pair in pairs):
            raise self._database.damaged("an alarm has invalid neighbour values")
        return tuple((step, read_number(norm) or 0.0) for step, norm in pairs)

    def last_alarm(self) -> int:
        """The number of the last alarm; 0 if there is none."""
        return next(int(number or 0) for (number,) in self._rows("SELECT max(id) FROM alarms", (), (NUMBER_OR_NULL,)))

    def hold(self, still: bool) -> None:
        """While it is held, every query sees the file as it was at the first one."""
        self._database.hold(still)

    def close(self) -> None:
        self._database.close()


def _floats(numbers: bytes) -> Array:
    return np.frombuffer(numbers[: len(numbers) // 8 * 8])


class Run:
    """All ranks of a watched run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        if not directory.is_dir():
            raise DumpError(f"{directory} is not a directory; give the dump_path of a monitor.")
        self.ranks: list[RankRun] = []
        self.add_new_ranks()
        if not self.ranks:
            if is_dump(directory):
                raise DumpError(f"{directory} is a dump, not a watched run. Use: msprobe show {directory}")
            raise DumpError(f"{directory} has no watch*.sqlite; give the dump_path of a monitor.")

    def add_new_ranks(self) -> None:
        """Opens the files that exist now; a run that has just started may not have created all of them."""
        known = {rank.path.name for rank in self.ranks}
        matches = ((_NAME.match(path.name), path) for path in self.directory.iterdir() if path.name not in known)
        new = [RankRun(path, int(match[1]) if match[1] else None) for match, path in matches if match]
        self.ranks = sorted([*self.ranks, *new], key=lambda one: one.rank or 0)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """All queries inside see the same alarms and steps, even if a monitor writes at the same time."""
        for rank in self.ranks:
            rank.hold(True)
        try:
            yield
        finally:
            for rank in self.ranks:
                rank.hold(False)

    def alarms(self) -> list[Alarm]:
        """Alarms of all ranks in the order in which they began, including alarms about ranks that disagree."""
        from msprobe.watch.reading.timeline import in_order, rank_alarms

        stored = [alarm for rank in self.ranks for _, alarm in rank.alarms()]
        return in_order([*stored, *rank_alarms(self, {alarm.name for alarm in stored if alarm.rule == "ranks"})])

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()


def labels(series: list[Series]) -> dict[tuple[str, str], int]:
    """The column of each (target, statistic)."""
    return {
        (label_of(one.target.kind, one.target.name), statistic): one.first + offset
        for one in series
        for offset, statistic in enumerate(one.statistics)
    }
