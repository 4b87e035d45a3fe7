"""The norm of a tensor that is spread over ranks, computed from the norms of its parts, without a collective."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from msprobe.watch.reading.run import Run, Series
from msprobe.watch.store import is_absent


def global_norms(run: Run) -> Iterator[tuple[int, str, str, float]]:
    """Step, kind, name and norm of each tensor that is spread over ranks; ranks with the same part count once."""
    tables = [rank.table() for rank in run.ranks]
    parts: dict[tuple[str, str], dict[str, tuple[int, Series]]] = {}
    for number, rank in enumerate(run.ranks):
        for one in rank.series():
            if one.target.shard and "norm" in one.statistics:
                parts.setdefault((one.target.kind, one.target.name), {}).setdefault(one.target.shard, (number, one))
    if not parts:
        return
    steps = sorted(set.intersection(*(set(found) for found, _, _ in tables)))
    places = [{step: place for place, step in enumerate(found)} for found, _, _ in tables]
    for (kind, name), shards in parts.items():
        for step in steps:
            norms = []
            for number, one in shards.values():
                numbers = tables[number][2][places[number][step]]
                column = one.first + one.statistics.index("norm")
                if column < len(numbers) and not is_absent(numbers[column : column + 1])[0]:
                    norms.append(numbers[column])
            if len(norms) == len(shards):
                yield step, kind, name, float(np.sqrt(np.square(np.array(norms)).sum()))
