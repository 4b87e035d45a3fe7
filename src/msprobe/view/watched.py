"""A watched run, or two: alarms, the matrix of targets by steps, and curves.

Each request opens the databases again: a monitor may be writing to them, and a SQLite connection belongs to one thread.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import numpy as np

from msprobe.dump.plural import count
from msprobe.messages import translations
from msprobe.watch.reading.compare import compare
from msprobe.watch.reading.run import RankRun, Run
from msprobe.watch.store import is_absent
from msprobe.watch.targets import label_of

MOST_COLUMNS = 400
MOST_POINTS = 4000
MOST_ALARMS = 500
Array = np.ndarray[Any, Any]


def is_watched(path: Path) -> bool:
    return path.is_dir() and any(path.glob("watch*.sqlite"))


class Watched:
    def __init__(self, target: Path, golden: Optional[Path]) -> None:
        self.target, self.golden = target, golden

    def answer(self) -> tuple[str, str, list[tuple[str, str]], list[str]]:
        """Verdict, sentence, facts and notes."""
        with _opened(self.target) as run:
            alarms = run.alarms()
            steps = run.ranks[0].steps()
            facts = [("steps", f"{steps[0]} to {steps[-1]}" if steps else "none yet"), ("ranks", str(len(run.ranks)))]
        if self.golden is not None:
            found = compare(self.target, self.golden)
            words = found.in_words().splitlines()
            return ("differs" if found.parts is not None else "same"), words[0], facts, words[1:]
        if not alarms:
            return "clean", "", facts, []
        first = alarms[0]
        facts = [("where", f"step {first.step}, rank {first.rank or 0}"), ("target", first.target), *facts]
        if len(alarms) > 1:
            facts.append(("then", count(len(alarms) - 1, "more alarm")))
        return "found", first.sentence, facts, []

    def is_living(self) -> bool:
        """Whether a monitor still writes to one of the runs."""
        for path in (self.target, self.golden):
            if path is not None:
                with _opened(path) as run:
                    if any(rank.is_living(time.time()) for rank in run.ranks):
                        return True
        return False

    def trends(self) -> dict[str, Any]:
        """What can be drawn: targets, statistics, ranks, and the alarms."""
        with _opened(self.target) as run:
            series = run.ranks[0].series()
            statistics = dict.fromkeys(name for one in series for name in one.statistics)
            alarms = run.alarms()[:MOST_ALARMS]
            return {
                "targets": [{"kind": one.target.kind, "name": one.target.name, "label": one.target.label,
                             "statistics": one.statistics} for one in series],
                "statistics": list(statistics),
                "ranks": [rank.rank for rank in run.ranks],
                "alarms": [{"step": one.step, "rank": one.rank or 0, "rule": one.rule, "target": one.target,
                            "sentence": one.sentence} for one in alarms],
                "chinese": translations(one.sentence for one in alarms),
            }  # fmt: skip

    def matrix(self, statistic: str, rank_number: int) -> dict[str, Any]:
        """Targets by steps: at most MOST_COLUMNS columns, each with the largest magnitude in its span of steps."""
        with _opened(self.target) as run:
            rank = run.ranks[min(max(rank_number, 0), len(run.ranks) - 1)]
            steps, _, table = rank.table()
            numbered = [(one, one.first + one.statistics.index(statistic)) for one in rank.series()
                        if statistic in one.statistics]  # fmt: skip
        chosen = [(one, column) for one, column in numbered if column < table.shape[1]]  # others have no number yet
        values = table[:, [column for _, column in chosen]]
        absent = is_absent(np.ascontiguousarray(values))
        spans = np.array_split(np.arange(len(steps)), min(len(steps), MOST_COLUMNS)) if steps else []
        columns = [_strongest(values[span], absent[span]) for span in spans]
        rows = [list(row) for row in zip(*columns)] if columns else [[] for _ in chosen]
        labels = [label_of(one.target.kind, one.target.name) for one, _ in chosen]
        return {"labels": labels, "steps": [steps[int(span[0])] for span in spans], "values": rows}

    def curve(self, kind: str, name: str, statistic: str) -> list[dict[str, Any]]:
        """One curve for each rank of each run."""
        lines = []
        for side, path in (("target", self.target), ("golden", self.golden)):
            if path is None:
                continue
            with _opened(path) as run:
                for rank in run.ranks:
                    lines.append({"side": side, "rank": rank.rank or 0, **_points(rank, kind, name, statistic)})
        return lines


def _points(rank: RankRun, kind: str, name: str, statistic: str) -> dict[str, Any]:
    steps, values = rank.curve(kind, name, statistic)
    every = max(1, len(steps) // MOST_POINTS)
    return {"steps": steps[::every].tolist(), "values": values[::every].tolist()}


def _strongest(block: Array, absent: Array) -> list[Optional[float]]:
    """The value with the largest magnitude in each column; NaN if one is NaN, None if there is no number."""
    strength = np.where(np.isnan(block), np.inf, np.abs(block))
    place = np.argmax(np.where(absent, -1.0, strength), axis=0)
    picked = block[place, np.arange(block.shape[1])].astype(np.float32).tolist()
    return [None if none else value for value, none in zip(picked, absent.all(axis=0))]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Run]:
    run = Run(path)
    try:
        yield run
    finally:
        run.close()
