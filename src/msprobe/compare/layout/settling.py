"""Decides from all rows of a step how gradients are scaled, and the layout of rows that no layout explains."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Optional

from msprobe.compare.calls import GRADS
from msprobe.compare.layout.case import Case, Layout, Views, reorder
from msprobe.compare.layout.fitting import EXPLAINED, fit
from msprobe.compare.layout.search import SAMPLE, Factors, Memory, factor_of, known_orders, pairs_of
from msprobe.compare.layout.ways import REDUCED, R, Way
from msprobe.compare.phases import Phase

MULTIPLE = 1e-3
"""A tensor is a multiple of another one if the remaining error is smaller than this."""


def settle_backward(cases: Sequence[Case], names: Iterable[tuple[str, str, int]]) -> dict[tuple[str, str], float]:
    """How the gradients are scaled: a rank with a part of the batch has the gradients of that part's average loss.

    `names` are the dimensions of both sides with their sizes. The scaling that explains most of the first backward rows
    wins. They include gradients of parameters: only these show whether both runs split the batch or neither does.
    """
    backward = [case for case in cases if case.phase is Phase.BACKWARD]
    of_calls = [case for case in backward if case.row.match.call.direction != GRADS]
    of_weights = [case for case in backward if case.row.match.call.direction == GRADS]
    owned = [case for case in of_calls[SAMPLE:] if any(case.owned)]
    sample = [*of_calls[:SAMPLE], *of_weights[: SAMPLE // 3], *owned[: SAMPLE // 3]]
    trials = [(case, views := Views(case), _ways_without_copies(case, views)) for case in sample]
    dimensions = [(side, name, size) for side, name, size in names if size > 1]
    best: tuple[int, int, dict[tuple[str, str], float]] = (-1, 0, {})
    for chosen in itertools.product((False, True), repeat=len(dimensions)):
        factors = {(side, name): 1.0 / size for (side, name, size), use in zip(dimensions, chosen) if use}
        explained = sum(_is_explained(case, views, pairs, factors) for case, views, pairs in trials)
        if (explained, -sum(chosen)) > best[:2]:
            best = (explained, -sum(chosen), factors)
    return best[2]


def _ways_without_copies(case: Case, views: Views) -> list[tuple[Way, Way]]:
    """The ways of a case, without those that sum or concatenate copies: they would hide a factor."""
    pairs = pairs_of(case)
    copied = [
        {axis for axis, size in enumerate(shards.sizes) if size > 1 and views.is_copied(golden, axis)}
        for golden, shards in ((False, case.target), (True, case.golden))
    ]
    kept = [
        pair for pair in pairs if all(way.placements[axis] == R for way, axes in zip(pair, copied) for axis in axes)
    ]
    return kept or pairs


def _is_explained(case: Case, views: Views, pairs: Sequence[tuple[Way, Way]], factors: Factors) -> bool:
    if views.obstacle:
        return False
    layouts = (
        Layout(ours, theirs, factor_of(case, ours, theirs, factors), orders)
        for ours, theirs in pairs
        for orders in known_orders(case, ours)
    )
    return any(views.error(layout) <= EXPLAINED for layout in layouts)


def agree_with_kind(cases: Sequence[Case], memory: Memory) -> None:
    """An unexplained row takes the layout that explains it except for a factor, else that of the same row in other
    layers. (In the optimizer, the same row is a different parameter each time.)"""
    for case in cases:
        if case.explained or case.layout is None or case.recorded:
            continue
        views = Views(case)
        scaled = _but_for_a_factor(case, views)
        for layout in [scaled] if scaled is not None else memory.expected(case):
            error = views.error(layout)
            if math.isfinite(error):
                case.layout, case.error = layout, error


def _but_for_a_factor(case: Case, views: Views) -> Optional[Layout]:
    if not case.saved or views.obstacle:
        return None
    for ours, theirs in pairs_of(case):
        if any(one in REDUCED for one in (*ours.placements, *theirs.placements)):
            continue
        made, golden = views.of(False, ours), views.of(True, theirs)
        for orders in known_orders(case, ours) if made and golden else ():
            ordered = [reorder(one, orders) for one in made]
            if all(fit(one, other).error < MULTIPLE for one in ordered for other in golden):
                return Layout(ours, theirs, case.layout.factor if case.layout is not None else 1.0, orders)
    return None
