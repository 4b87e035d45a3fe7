"""The part of a monitor without a framework: checks the figures of a step for alarms, stores and forwards them.

A frontend passes `Target`s and their figures. This module decides what is written, in which columns, and what an alarm
starts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, Optional, Protocol

import numpy as np

from msprobe.collect import notices
from msprobe.watch.alarms.alarm import Alarm
from msprobe.watch.alarms.detector import Detector
from msprobe.watch.alarms.frame import Frame, Rows, frame_of
from msprobe.watch.settings import WatchSettings
from msprobe.watch.step_figures import StepFigures
from msprobe.watch.store import ABSENT, Store, file_name, is_absent
from msprobe.watch.targets import ENCODED, NORM, RATIO_COLUMN, SCALAR, STATISTICS, VALUE, Target, general
from msprobe.watch.writers import LiveWriters

_NOTHING = math.nan
INITIAL = -1
"""The step number of the weights before the first step."""


class Dumper(Protocol):
    """What an alarm can start: a dump of the next steps."""

    def alarmed(self, step: int) -> None: ...


Callback = Callable[[Alarm], None]


def put_updates(found: StepFigures, rows: list[int], changes: Any, weights: Any) -> None:
    """Stores the figures of updates: the norm, and in the column of the mean its ratio to the weight's norm."""
    if not rows:
        return
    figures = np.full((len(rows), len(STATISTICS) + 1), _NOTHING)
    with np.errstate(all="ignore"):
        ratios = np.where(changes == 0, 0.0, changes / weights)
    figures[:, NORM], figures[:, RATIO_COLUMN], figures[:, -1] = changes, ratios, 1
    found.reserve(max(rows) + 1)[rows] = figures


class Recording:
    """Records the run of one rank."""

    def __init__(self, settings: WatchSettings, rank: Optional[int], facts: Mapping[str, Any], start: int) -> None:
        self.settings = settings
        self.rank = rank
        self.rows = Rows()
        self.callbacks: list[Callback] = []
        self.dumper: Optional[Dumper] = None
        self.trainable: frozenset[str] = frozenset()
        path = settings.dump_path / file_name(rank)
        meta = {"rank": rank, "every": settings.every, "alarms": dict(settings.alarms), **facts}
        largest = int(settings.max_megabytes * 1e6)
        self.store = Store(path, meta, largest, keep_before=start if start > 0 else None)
        self.alarms = 0
        self._detector = Detector(settings.alarms)
        self._writers = LiveWriters(settings, rank)
        self._default = tuple((STATISTICS.index(name), name) for name in settings.statistics)
        self._row_at: Any = np.empty(0, np.int64)
        self._statistic_at: Any = np.empty(0, np.int64)
        self._names: list[str] = []
        self._column_at: Any = np.empty(0, np.int64)
        self._scalar_columns: dict[str, int] = {}

    def row(self, target: Target) -> int:
        """The row of a target; a new target gets a new row."""
        found = self.rows.find(target.kind, target.name)
        if found is not None:
            return found
        self.rows.add(target)
        return len(self.rows) - 1

    def take(
        self,
        step: int,
        found: StepFigures,
        scalars: Mapping[str, float],
        skipped: bool = False,
        idle: Iterable[str] = (),
        stale: str = "",
    ) -> list[Alarm]:
        """Processes one watched step: rules, storage, writers, callbacks. Returns the alarms."""
        frame = frame_of(
            step,
            self.rows,
            found,
            scalars=scalars,
            skipped=skipped,
            idle=frozenset(idle),
            stale=stale,
            trainable=self.trainable,
            every=self.settings.every,
        )
        alarms = [] if step == INITIAL else self._detector.look(frame)
        numbers = self._numbers(frame, scalars)
        self.store.write(step, numbers, alarms)
        if step != INITIAL:
            self._writers.write(step, self._tags(frame, scalars) if self._writers else {})
        self.raise_alarms(step, alarms)
        return alarms

    def raise_alarms(self, step: int, alarms: Sequence[Alarm]) -> None:
        if not alarms:
            return
        self.alarms += len(alarms)
        at = "" if self.rank is None else f"rank {self.rank}: "
        for rule in dict.fromkeys(alarm.rule for alarm in alarms):
            notices.warn(at + next(alarm.sentence for alarm in alarms if alarm.rule == rule))
        for callback in self.callbacks:
            for alarm in alarms:
                callback(alarm)
        if self.dumper is not None:
            self.dumper.alarmed(step)

    def _numbers(self, frame: Frame, scalars: Mapping[str, float]) -> Any:
        if len(self._row_at) == 0 or int(self._row_at[-1]) != len(self.rows) - 1:
            self._lay_out()
        missing = [name for name in scalars if name not in self._scalar_columns]
        if missing:
            columns = self.store.add([(Target(SCALAR, name), (VALUE,)) for name in missing])
            self._scalar_columns.update(zip(missing, columns))
        numbers = np.repeat(ABSENT, self.store.columns)
        if len(self._row_at):
            there = frame.present[self._row_at]
            numbers[self._column_at[there]] = frame.figures[self._row_at[there], self._statistic_at[there]]
        for name, value in scalars.items():
            numbers[self._scalar_columns[name]] = value
        return numbers

    def _lay_out(self) -> None:
        """Which figure of which row goes into which column."""
        targets = self.rows.targets
        chosen = [ENCODED.get(general(target.kind), self._default) for target in targets]
        firsts = self.store.add((target, [name for _, name in each]) for target, each in zip(targets, chosen))
        places = [
            (row, statistic, first + offset)
            for row, (first, each) in enumerate(zip(firsts, chosen))
            for offset, (statistic, _) in enumerate(each)
        ]
        self._names = [name for each in chosen for _, name in each]
        table = np.array(places, np.int64).reshape(-1, 3)
        self._row_at, self._statistic_at, self._column_at = table[:, 0], table[:, 1], table[:, 2]

    def _tags(self, frame: Frame, scalars: Mapping[str, float]) -> dict[str, float]:
        tags = dict(scalars)
        numbers = frame.figures[self._row_at, self._statistic_at]
        there = frame.present[self._row_at] & ~is_absent(numbers)
        for place in np.flatnonzero(there).tolist():
            label = self.rows.targets[self._row_at[place]].label
            tags[f"{label}/{self._names[place]}"] = float(numbers[place])
        return tags

    def close(self) -> None:
        self._writers.close()
        self.store.close()
