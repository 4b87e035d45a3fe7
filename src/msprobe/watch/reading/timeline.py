"""What began first, and where: the alarms of all ranks in one order, and weights that differ between ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Optional

from msprobe.watch.alarms.agreement import odd_rank, sentence
from msprobe.watch.alarms.alarm import Alarm
from msprobe.watch.alarms.detector import threshold
from msprobe.watch.targets import WEIGHT, order_of

if TYPE_CHECKING:
    from msprobe.watch.reading.run import RankRun, Run

_MOST = 20


def in_order(alarms: Iterable[Alarm]) -> list[Alarm]:
    """By step, then by place in it (forward by depth, loss, backward from end, optimizer, weights), then by rank."""
    return sorted(alarms, key=lambda one: (one.step, order_of(one.kind, one.name, one.position), one.rank or 0))


def rank_alarms(run: Run, known: set[str]) -> list[Alarm]:
    """Weights that were the same on all ranks before the first step and now differ.

    Parts of a tensor (DTensor), and weights that differed from the beginning, are not expected to agree.
    """
    limit = threshold(run.ranks[0].meta.get("alarms", {}), "ranks")
    if len(run.ranks) < 2 or limit is None:
        return []
    tables = [_weights(rank) for rank in run.ranks]
    shared = [name for name in tables[0] if all(name in table for table in tables)]
    numbers = [rank.rank or 0 for rank in run.ranks]
    steps, norms = _common_steps(run)
    alarms = []
    for name in shared:
        columns = [table[name][0] for table in tables]
        first = [_initial(rank, column) for rank, column in zip(run.ranks, columns)]
        if name in known or None in first or odd_rank(first, numbers, limit)[0] >= 0 or not first[0]:
            continue
        for place, step in enumerate(steps):
            rows = [of_rank[place] for of_rank in norms]
            if any(column >= len(row) for row, column in zip(rows, columns)):
                continue
            values = [row[column] for row, column in zip(rows, columns)]
            odd, value, middle = odd_rank(values, numbers, limit)
            if odd >= 0:
                others = [number for number in numbers if number != odd]
                text = sentence(step, name, odd, value, middle, others)
                position = tables[0][name][1]
                alarms.append(Alarm(step, "ranks", WEIGHT, name, text, value, middle, position=position, rank=odd))
                break
    return in_order(alarms)[:_MOST]


def _weights(rank: RankRun) -> dict[str, tuple[int, int]]:
    """The column of the norm, and the position, of every weight that this rank has completely."""
    found = {}
    for one in rank.series():
        if one.target.kind == WEIGHT and not one.target.shard and "norm" in one.statistics:
            found[one.target.name] = (one.first + one.statistics.index("norm"), one.target.position)
    return found


def _initial(rank: RankRun, column: int) -> Optional[float]:
    numbers = rank.initial()
    return float(numbers[column]) if numbers is not None and column < len(numbers) else None


def _common_steps(run: Run) -> tuple[list[int], list[list[Any]]]:
    """The steps that all ranks have, and for each rank the rows of these steps."""
    tables = [rank.table() for rank in run.ranks]
    shared = sorted(set.intersection(*(set(steps) for steps, _, _ in tables)))
    rows = []
    for steps, _, table in tables:
        place = {step: index for index, step in enumerate(steps)}
        rows.append([table[place[step]] for step in shared])
    return shared, rows
