"""A watched run as its databases hold it: targets, curves and alarms of every rank."""

from __future__ import annotations

import contextlib
import json
import math
import re
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np

from msprobe.dump.errors import DumpError
from msprobe.watch.alarms.alarm import Alarm
from msprobe.watch.store import ABSENT_BITS, FORMAT, is_absent
from msprobe.watch.targets import Target, label_of

Array = np.ndarray[Any, Any]
_NAME = re.compile(r"watch(?:_rank(\d{1,9}))?\.sqlite\Z")
_MOST_COLUMNS = 1 << 24


@dataclass(frozen=True)
class Series:
    """Where the numbers of one target stand in a step's block."""

    target: Target
    first: int
    statistics: tuple[str, ...]


class RankRun:
    """One database, opened for reading; a monitor may write to it meanwhile."""

    def __init__(self, path: Path, rank: Optional[int]) -> None:
        self.path, self.rank = path, rank
        try:
            self._database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
            self.meta: Mapping[str, Any] = {
                key: json.loads(value) for key, value in self._rows("SELECT key, value FROM meta")
            }
        except (sqlite3.Error, ValueError) as error:
            raise DumpError(f"{path} cannot be read as the database of a watched run: {error}.") from None
        if self.meta.get("format") != FORMAT:
            raise DumpError(f"{path} has format {self.meta.get('format')}; this msprobe reads format {FORMAT}.")

    def _rows(self, query: str, arguments: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        return iter(self._database.execute(query, arguments).fetchall())

    def series(self) -> list[Series]:
        found = []
        query = "SELECT kind, name, position, shape, dtype, shard, first, statistics FROM targets ORDER BY id"
        for kind, name, position, shape, dtype, shard, first, statistics in self._rows(query):
            target = Target(kind, name, position, tuple(json.loads(shape)), dtype, shard)
            found.append(Series(target, first, tuple(statistics.split(","))))
        return found

    def steps(self) -> list[int]:
        return [step for (step,) in self._rows("SELECT step FROM steps WHERE step >= 0 ORDER BY step")]

    def table(self, from_step: int = 0) -> tuple[list[int], Array, Array]:
        """Steps, times, and all numbers: a row a step, a column a number; what is absent has ABSENT_BITS."""
        query = "SELECT step, time, numbers FROM steps WHERE step >= ? ORDER BY step"
        rows = list(self._rows(query, (from_step,)))
        width = max((len(numbers) // 8 for _, _, numbers in rows), default=0)
        if width > _MOST_COLUMNS:
            raise DumpError(f"{self.path} has a step of {width} numbers: the file is damaged.")
        table = np.full((len(rows), width), ABSENT_BITS, np.uint64).view(np.float64)
        for place, (_, _, numbers) in enumerate(rows):
            table[place, : len(numbers) // 8] = np.frombuffer(numbers[: len(numbers) // 8 * 8])
        return [row[0] for row in rows], np.array([row[1] for row in rows]), table

    def curve(self, kind: str, name: str, statistic: str) -> tuple[Array, Array]:
        """Steps and values of one number."""
        query = "SELECT first, statistics FROM targets WHERE kind = ? AND name = ?"
        for first, statistics in self._rows(query, (kind, name)):
            names = statistics.split(",")
            if statistic in names:
                column = first + names.index(statistic)
                cut = "SELECT step, substr(numbers, ?, 8) FROM steps WHERE step >= 0 AND length(numbers) >= ?"
                rows = list(self._rows(f"{cut} ORDER BY step", (8 * column + 1, 8 * column + 8)))
                values = np.frombuffer(b"".join(part for _, part in rows))
                there = ~is_absent(values)
                return np.array([step for step, _ in rows], np.int64)[there], values[there]
        return np.empty(0, np.int64), np.empty(0)

    def initial(self) -> Optional[Array]:
        """The numbers before the first step."""
        for (numbers,) in self._rows("SELECT numbers FROM steps WHERE step = -1"):
            return np.frombuffer(numbers)
        return None

    def alarms(self, after: int = 0) -> list[tuple[int, Alarm]]:
        query = (
            "SELECT id, step, rule, kind, name, position, sentence, value, usual, around, rank FROM alarms "
            "WHERE id > ? ORDER BY id"
        )
        found = []
        for number, step, rule, kind, name, position, text, value, usual, around, rank in self._rows(query, (after,)):
            pairs = tuple((int(at), float(norm)) for at, norm in json.loads(around))
            numbers = (math.nan if value is None else value, math.nan if usual is None else usual)
            whose = rank if rank is not None else self.rank or 0
            found.append((number, Alarm(step, rule, kind, name, text, *numbers, pairs, position, whose)))
        return found

    def last_alarm(self) -> int:
        """The number of the last alarm, 0 without any."""
        return next(int(number or 0) for (number,) in self._rows("SELECT max(id) FROM alarms"))

    def hold(self, still: bool) -> None:
        """While it is held, every query sees the file as it was at the first one."""
        self._database.execute("BEGIN" if still else "COMMIT")

    def close(self) -> None:
        self._database.close()


class Run:
    """All ranks of a watched run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        if not directory.is_dir():
            raise DumpError(f"{directory} is not a directory; give the dump_path of a monitor.")
        self.ranks: list[RankRun] = []
        self.add_new_ranks()
        if not self.ranks:
            raise DumpError(f"{directory} holds no watch*.sqlite; give the dump_path of a monitor.")

    def add_new_ranks(self) -> None:
        """Opens the files that are there by now; a run that begins has not all of them at once."""
        known = {rank.path.name for rank in self.ranks}
        matches = ((_NAME.match(path.name), path) for path in self.directory.iterdir() if path.name not in known)
        new = [RankRun(path, int(match[1]) if match[1] else None) for match, path in matches if match]
        self.ranks = sorted([*self.ranks, *new], key=lambda one: one.rank or 0)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """All queries inside see the same alarms and steps, whatever a monitor writes meanwhile."""
        for rank in self.ranks:
            rank.hold(True)
        try:
            yield
        finally:
            for rank in self.ranks:
                rank.hold(False)

    def alarms(self) -> list[Alarm]:
        """Alarms of all ranks, those about ranks that disagree included, in the order in which they began."""
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
