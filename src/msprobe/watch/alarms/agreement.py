"""Compares ranks: a weight that every rank has completely must stay the same on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from msprobe.messages import Message
from msprobe.watch.alarms.alarm import Alarm
from msprobe.watch.alarms.detector import threshold
from msprobe.watch.settings import WatchSettings
from msprobe.watch.targets import WEIGHT

MOST = 20


def odd_rank(values: Any, ranks: Sequence[int], limit: float) -> tuple[int, float, float]:
    """The rank that is farthest from the median of all ranks, its value and the median; rank -1 if all agree."""
    values = np.asarray(values, float)
    if np.isnan(values).any():
        bad = np.flatnonzero(np.isnan(values))
        if len(bad) == len(values):
            return -1, 0.0, 0.0
        good = float(np.nanmedian(values))
        return ranks[int(bad[0])], float("nan"), good
    middle = float(np.sort(values)[(len(values) - 1) // 2])
    distance = np.abs(values - middle)
    worst = int(np.argmax(distance))
    if distance[worst] <= limit * max(abs(middle), 1e-30):
        return -1, 0.0, 0.0
    return ranks[worst], float(values[worst]), middle


def sentence(
    step: int, name: str, rank: int, value: float, middle: float, others: Sequence[int], from_start: bool = False
) -> Message:
    whom = Message("ranks", number=1, listed=str(others[0]))
    if len(others) > 1:
        whom = Message("alarm.other_ranks", number=len(others))
    id = "alarm.ranks_from_start" if from_start else "alarm.ranks"
    return Message(id, step=step, name=name, norm=f"{value:.9g}", rank=rank, usual=f"{middle:.9g}", others=whom)


def compare_ranks(
    step: int,
    targets: Sequence[tuple[str, int]],
    table: Any,
    ranks: Sequence[int],
    known: set[str],
    settings: WatchSettings,
) -> list[Alarm]:
    """Alarms for weights (columns) that differ between ranks (rows). Skips those in `known` and adds the new ones."""
    limit = threshold(settings.alarms, "ranks")
    alarms: list[Alarm] = []
    if limit is None:
        return alarms
    for column, (name, position) in enumerate(targets):
        rank, value, middle = odd_rank(table[:, column], ranks, limit)
        if rank >= 0 and name not in known:
            known.add(name)
            text = sentence(step, name, rank, value, middle, [other for other in ranks if other != rank])
            alarms.append(Alarm(step, "ranks", WEIGHT, name, text, value, middle, position=position, rank=rank))
    return alarms[:MOST]
