"""Inference with and without a cache: one run gives the model the newest token, the other one the whole sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from msprobe.compare.calls import FORWARD, Call
from msprobe.compare.judge.effects import results
from msprobe.compare.judge.explain_items import Judgements, covered
from msprobe.compare.measure.distance import count, epsilon
from msprobe.compare.reasons import BENIGN
from msprobe.compare.rows import NOT_COMPARED, PASS, Group, Row, is_tensor

_WHY = "the runs give the model other parts of the sequence, and all that is computed from its results agrees"


def explain_sequence_parts(groups: Sequence[Group], explained: Judgements) -> Judgements:
    """New judgements, by the row's id, for a step without backward: what differs is inside of outermost modules that
    are given tensors of other shapes, and what is computed outside of modules, from their results, agrees."""
    parents = {call.name: call.parent for match, _ in groups for call in (match.target, match.golden) if call}
    parted = {match.call.name: place for place, (match, rows) in enumerate(groups) if _is_parted(match.call, rows)}
    if not parted:
        return {}
    found: Judgements = {}
    seen = -1
    for place, (match, rows) in enumerate(groups):
        inside = _outermost(match.call, parents) in parted
        open_rows = [row for row in rows if _is_open(row, explained)]
        bad = [row for row in open_rows if row.verdict != NOT_COMPARED]
        if any(row.slot.startswith("parameters.") for row in bad) or (
            bad and not inside and not _has_other_shape(rows)
        ):
            return {}
        if not inside and match.call.parent is None and any(_tells(row) for row in results(rows)):
            seen = place
        why = covered(_WHY)
        found.update((id(row), why) for row in open_rows)
    return found if seen > max(parted.values()) else {}


def _is_parted(call: Call, rows: Sequence[Row]) -> bool:
    is_outermost = call.kind == "module" and call.parent is None and call.direction == FORWARD
    return is_outermost and any(row.is_input and _is_of_other_shape(row) for row in rows)


def _outermost(call: Call, parents: dict[str, Optional[str]]) -> str:
    name = call.name
    while (parent := parents.get(name)) is not None:
        name = parent
    return name


def _is_open(row: Row, explained: Judgements) -> bool:
    return row.verdict != PASS and row.why.kind not in BENIGN and id(row) not in explained


def _has_other_shape(rows: Sequence[Row]) -> bool:
    return any(_is_of_other_shape(row) for row in results(rows))


def _is_of_other_shape(row: Row) -> bool:
    """Whether or not one side can be broadcast."""
    target, golden = row.target, row.golden
    return bool(target and golden and is_tensor(target) and is_tensor(golden) and target["shape"] != golden["shape"])


def _tells(row: Row) -> bool:
    """A tensor of several numbers (the scores of the next token) that agrees."""
    if row.verdict != PASS or row.golden is None or not is_tensor(row.golden):
        return False
    return count(row.golden) > 1 and epsilon(row.golden) > 0.0
