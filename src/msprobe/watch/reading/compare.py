"""Compares two watched runs: the first difference, and where curves diverge beyond their own noise.

Noise is the change of a curve from one step to the next. Two curves diverge where the mean of their distance over a few
steps is larger than the noise explains, and larger than two percent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np

from msprobe.dump.errors import DumpError
from msprobe.dump.plural import count
from msprobe.dump.strict_json import strict
from msprobe.watch.reading.run import Array, RankRun, Run
from msprobe.watch.store import is_absent
from msprobe.watch.targets import RATIO, VALUE, order_of

ROUNDING = 1e-6
LEAST = 0.02
SCALES = 6.0
SMOOTH = 8
_COMPARED = ("norm", VALUE, RATIO, "nan", "inf")


@dataclass(frozen=True)
class Place:
    """A step and a curve, with both values."""

    step: int
    rank: int
    target: str
    statistic: str
    a: float
    b: float

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "a": strict(self.a), "b": strict(self.b)}

    def in_words(self) -> str:
        return (
            f"step {self.step}, rank {self.rank}, {self.target} {self.statistic}: {self.a:.6g} in A, {self.b:.6g} in B"
        )


@dataclass(frozen=True)
class Comparison:
    """`differs`: the first numbers that differ by more than rounding; `parts`: the first beyond the noise."""

    curves: int
    steps: int
    differs: Optional[Place]
    parts: Optional[Place]
    parted: int

    def as_json(self) -> dict[str, Any]:
        places = {"differs": self.differs, "parts": self.parts}
        shown = {name: None if place is None else place.as_json() for name, place in places.items()}
        return {"curves": self.curves, "steps": self.steps, **shown, "parted": self.parted}

    def in_words(self) -> str:
        compared = f"{count(self.curves, 'curve')} over {count(self.steps, 'common step')}"
        if self.differs is None:
            return f"Both runs are the same: {compared}."
        lines = [f"First difference: {self.differs.in_words()}"]
        if self.parts is None:
            lines.append(f"No curve diverges beyond its noise: {compared}.")
        else:
            lines.append(f"First difference beyond noise: {self.parts.in_words()}")
            lines.append(f"{self.parted} of {compared} {'diverges' if self.parted == 1 else 'diverge'}.")
        return "\n".join(lines)


def compare(a: Path, b: Path) -> Comparison:
    first, second = Run(a), Run(b)
    try:
        return _compare(first, second)
    finally:
        first.close()
        second.close()


def _compare(first: Run, second: Run) -> Comparison:
    others = {rank.rank or 0: rank for rank in second.ranks}
    curves = steps = 0
    differs: list[tuple[Any, Place]] = []
    parts: list[tuple[Any, Place]] = []
    for rank in first.ranks:
        other = others.get(rank.rank or 0)
        if other is None:
            continue
        for order, label, statistic, at, x, y in _pairs(rank, other):
            curves, steps = curves + 1, max(steps, len(at))
            for places, found in ((differs, _first_difference(x, y)), (parts, _first_parting(x, y))):
                if found is not None:
                    place = Place(int(at[found]), rank.rank or 0, label, statistic, float(x[found]), float(y[found]))
                    places.append(((place.step, order, place.rank), place))
    if not curves:
        raise DumpError("the two runs have no target with common steps: were they watched with the same settings?")
    earliest = [min(places, key=lambda item: item[0], default=(None, None))[1] for places in (differs, parts)]
    return Comparison(curves, steps, earliest[0], earliest[1], len(parts))


def _pairs(rank: RankRun, other: RankRun) -> Iterator[tuple[Any, str, str, Array, Array, Array]]:
    """Every curve that both runs have, at the steps that both have."""
    (steps, _, table), (other_steps, _, other_table) = rank.table(), other.table()
    shared = sorted(set(steps) & set(other_steps))
    if not shared:
        return
    mine, theirs = (
        table[[{step: i for i, step in enumerate(found)}[s] for s in shared]]
        for table, found in ((table, steps), (other_table, other_steps))
    )
    known = {(one.target.kind, one.target.name): one for one in other.series()}
    at = np.array(shared)
    for one in rank.series():
        match = known.get((one.target.kind, one.target.name))
        for offset, statistic in enumerate(one.statistics):
            if match is None or statistic not in match.statistics or statistic not in _COMPARED:
                continue
            column, opposite = one.first + offset, match.first + match.statistics.index(statistic)
            if column >= mine.shape[1] or opposite >= theirs.shape[1]:
                continue
            x, y = np.ascontiguousarray(mine[:, column]), np.ascontiguousarray(theirs[:, opposite])
            there = ~is_absent(x) & ~is_absent(y)
            if there.any():
                order = order_of(one.target.kind, one.target.name, one.target.position)
                yield order, one.target.label, statistic, at[there], x[there], y[there]


def _distance(x: Array, y: Array) -> Array:
    """The relative distance: 0 if both are equal (NaN equals NaN), infinite if only one is finite."""
    with np.errstate(all="ignore"):
        size = np.maximum(np.abs(x), np.abs(y))
        distance = np.where(size > 0, np.abs(x - y) / size, 0.0)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    distance = np.where(same, 0.0, distance)
    return np.where(np.isnan(distance), np.inf, distance)


def _first_difference(x: Array, y: Array) -> Optional[int]:
    found = np.flatnonzero(_distance(x, y) > ROUNDING)
    return int(found[0]) if len(found) else None


def _first_parting(x: Array, y: Array) -> Optional[int]:
    distance = _distance(x, y)
    broken = np.flatnonzero(np.isinf(distance))
    if len(x) < 2 * SMOOTH:
        return int(broken[0]) if len(broken) else None
    with np.errstate(all="ignore"):
        size = np.maximum(np.abs(x), np.abs(y))
        signed = np.where(distance == 0, 0.0, (x - y) / size)
        signed[~np.isfinite(signed)] = 0.0
        scatter = [np.median(np.abs(np.diff(curve)) / np.maximum(np.abs(curve[1:]), 1e-300)) for curve in (x, y)]
    noise = 1.4826 * float(np.fmax(*scatter)) / np.sqrt(2)
    noise = 0.0 if np.isnan(noise) else noise
    limit = max(LEAST, SCALES * noise / np.sqrt(SMOOTH))
    mean = np.convolve(signed, np.ones(SMOOTH) / SMOOTH, "valid")
    beyond = np.flatnonzero(np.abs(mean) > limit)
    found = [int(broken[0])] if len(broken) else []
    if len(beyond):
        window = slice(int(beyond[0]), int(beyond[0]) + SMOOTH)
        distances = np.abs(signed[window])
        large = np.flatnonzero(distances > max(limit, 3 * np.sqrt(2) * noise))
        found.append(int(beyond[0]) + int(large[0] if len(large) else np.argmax(distances)))
    return min(found) if found else None
