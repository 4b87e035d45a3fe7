"""What began first, and where: the alarms of all ranks in one order, and weights that differ between ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from msprobe.watch.alarms.agreement import odd_rank, sentence
from msprobe.watch.alarms.alarm import Alarm
from msprobe.watch.alarms.detector import threshold
from msprobe.watch.targets import GRAD, WEIGHT

if TYPE_CHECKING:
    from msprobe.watch.reading.run import RankRun, Run

_MOST = 20
_ENOUGH = 3
"""In this many steps the gradients of all ranks must be equal; once may be chance."""
_EQUAL = 1e-7


def in_order(alarms: Iterable[Alarm]) -> list[Alarm]:
    """By step, then by place in it, then by rank."""
    return sorted(alarms, key=lambda one: (one.order, one.rank or 0))


def rank_alarms(run: Run, known: set[str]) -> list[Alarm]:
    """Weights that should be the same on all ranks and are not.

    Parts of a tensor (DTensor) are not expected to agree. Weights that differed before the first step are expected to
    agree only if their gradients do: otherwise each rank may have a part of the model.
    """
    limit = threshold(run.ranks[0].meta.get("alarms", {}), "ranks")
    if len(run.ranks) < 2 or limit is None:
        return []
    weights, gradients = ([_norms(rank, kind) for rank in run.ranks] for kind in (WEIGHT, GRAD))
    shared = [name for name in weights[0] if all(name in table for table in weights)]
    numbers = [rank.rank or 0 for rank in run.ranks]
    steps, rows = _common_steps(run)
    alarms = []
    for name in shared:
        columns = [table[name][0] for table in weights]
        first = [_initial(rank, column) for rank, column in zip(run.ranks, columns)]
        if name in known or None in first:
            continue
        began_apart = odd_rank(first, numbers, limit)[0] >= 0
        if began_apart and not _gradients_agree(name, gradients, rows):
            continue
        if not began_apart and not first[0]:
            continue
        for step, values in zip(steps, _values(rows, columns)):
            odd, value, middle = odd_rank(values, numbers, limit) if values else (-1, 0.0, 0.0)
            if odd >= 0:
                others = [number for number in numbers if number != odd]
                text = sentence(step, name, odd, value, middle, others, began_apart)
                position = weights[0][name][1]
                alarms.append(Alarm(step, "ranks", WEIGHT, name, text, value, middle, position=position, rank=odd))
                break
    return in_order(alarms)[:_MOST]


def _gradients_agree(name: str, gradients: list[dict[str, tuple[int, int]]], rows: list[list[Any]]) -> bool:
    """Whether all ranks use the same gradient of a weight, and so should have the same weight."""
    if not all(name in table for table in gradients):
        return False
    found = [values for values in _values(rows, [table[name][0] for table in gradients]) if values and any(values)]
    return len(found) >= _ENOUGH and all(np.ptp(values) <= _EQUAL * max(values) for values in found[:_ENOUGH])


def _values(rows: list[list[Any]], columns: list[int]) -> Iterator[list[float]]:
    """For each step one number of every rank; an empty list if a rank does not have it."""
    for of_step in zip(*rows):
        there = all(column < len(row) for row, column in zip(of_step, columns))
        yield [float(row[column]) for row, column in zip(of_step, columns)] if there else []


def _norms(rank: RankRun, kind: str) -> dict[str, tuple[int, int]]:
    """The column of the norm, and the position, of every tensor of a kind that this rank has completely."""
    found = {}
    for one in rank.series():
        if one.target.kind == kind and not one.target.shard and "norm" in one.statistics:
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
