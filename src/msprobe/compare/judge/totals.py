"""Running totals of a training loop (a sum of losses for the log): if one run starts them again, training does not
differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Optional

from msprobe.compare.align.translate import operation_of
from msprobe.compare.calls import FORWARD, Match
from msprobe.compare.measure.distance import count, epsilon, number, value_key
from msprobe.compare.reasons import Kind, Reason
from msprobe.compare.rows import ERROR, NOT_COMPARED, PASS, WARNING, Group, Item, Judgement, Row, is_tensor

_SAME_ADDED = 1e-5
"""How far off the added number may be, relative to the total."""


def explain_totals(groups: Sequence[Group]) -> dict[int, Judgement]:
    """New judgements by the id of the row, for numbers outside all modules to which both runs add the same, and which
    no recorded call uses."""
    found: dict[int, Judgement] = {}
    for place, (match, rows) in enumerate(groups):
        if not _may_be_total(match):
            continue
        bad = [row for row in rows if row.verdict in (WARNING, ERROR)]
        if bad and _is_total(rows, bad) and not _is_used(place, bad[-1], groups):
            why = "a running total that begins at another value; both runs add the same to it, and nothing uses it"
            found.update((id(row), Judgement(NOT_COMPARED, 0.0, Reason(Kind.COVERED, why))) for row in bad)
    return found


def _may_be_total(match: Match) -> bool:
    call = match.call
    return call.parent is None and call.kind == "api" and call.direction == FORWARD and operation_of(call.key) == "add"


def _is_total(rows: Sequence[Row], bad: Sequence[Row]) -> bool:
    if [row.slot for row in bad] != ["input.0", "output.0"] or not all(_is_number(row) for row in bad):
        return False
    before, after = bad
    ours, theirs = _added(before.target, after.target), _added(before.golden, after.golden)
    if ours is None or theirs is None or any(row.verdict != PASS for row in rows if row not in bad):
        return False
    size = max(abs(number((item or {}).get("Max")) or 0.0) for row in bad for item in (row.target, row.golden))
    return math.isclose(ours, theirs, rel_tol=0.0, abs_tol=_SAME_ADDED * size)


def _is_number(row: Row) -> bool:
    """A float tensor of one element, without a gradient."""
    items = (row.target, row.golden)
    return all(item and is_tensor(item) and count(item) == 1 and epsilon(item) for item in items) and not any(
        item and item.get("requires_grad") for item in items
    )


def _added(before: Item, after: Item) -> Optional[float]:
    start, end = (number((item or {}).get("Max")) for item in (before, after))
    return None if start is None or end is None else end - start


def _is_used(place: int, result: Row, groups: Sequence[Group]) -> bool:
    """Whether a later call uses the total, in either run."""
    ours, theirs = value_key(result.target), value_key(result.golden)
    return any(
        row.is_input and (value_key(row.target) == ours or value_key(row.golden) == theirs)
        for _, rows in groups[place + 1 :]
        for row in rows
    )
