"""Averages over parts: runs that cut the batch into other numbers of parts divide their sums by other numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from msprobe.compare.calls import FORWARD, Match
from msprobe.compare.reasons import Kind, Reason
from msprobe.compare.rows import ERROR, NOT_COMPARED, PASS, WARNING, Group, Judgement, Row, is_tensor

_SCALES = ("div", "div_", "mul", "mul_", "true_divide", "true_divide_")
_OWN_PARTS = Reason(Kind.COVERED, "each run scales by the number of its own parts; the results agree")


def cover_averages(groups: Sequence[Group], found: dict[int, Judgement]) -> None:
    """Adds the judgements of what a scaling was given, where only its result can be the same in both runs."""
    for match, rows in groups:
        if not is_scaling(match):
            continue
        if not _has_other_number(match, rows):
            continue
        results = [row for row in rows if not row.is_input and is_tensor(row.golden)]
        if results and all(row.verdict == PASS for row in results):
            for row in rows:
                if row.is_input and row.verdict in (WARNING, ERROR):
                    found[id(row)] = Judgement(NOT_COMPARED, 0.0, _OWN_PARTS)


def is_scaling(match: Match) -> bool:
    return match.call.direction == FORWARD and match.call.key.rpartition(".")[2] in _SCALES


def _has_other_number(match: Match, rows: Sequence[Row]) -> bool:
    if match.target is None or match.golden is None:
        return False
    numbers = [(_number(row.target), _number(row.golden)) for row in rows if row.is_input]
    return any(ours is not None and theirs is not None and ours != theirs for ours, theirs in numbers)


def _number(item: Optional[dict[str, object]]) -> Optional[float]:
    value = item.get("value") if item is not None and not is_tensor(item) else None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
