"""Rows that pair values which do not belong together: the calls were matched by their names, or for want of a better
counterpart. The differences in such rows have no size."""

from __future__ import annotations

from collections.abc import Sequence

from msprobe.compare.calls import FORWARD, Match
from msprobe.compare.flow.graph import Graph
from msprobe.compare.flow.settle import FEW, is_evidence
from msprobe.compare.measure.distance import count, epsilon, scale, value_key
from msprobe.compare.measure.order import is_other_order, order_distance
from msprobe.compare.rows import ERROR, WARNING, Group, Row, is_tensor

_BAD = (WARNING, ERROR)
SAME_RESULT = 1 / 50
"""How far apart, relative to their inputs, the results of two calls may be that are given something different."""
SHOWN = 300.0
"""How much larger than the rounding of a result the difference of an operand is, if the result would show it."""
_WEAK = frozenset(["renamed", "position"])
"""How calls are matched that have different names and no equal values."""


def moved_rows(groups: Sequence[Group]) -> set[int]:
    """The rows that differ, and whose values occur elsewhere in the other run: they were not changed, but have
    different partners (experts in a different order). One value is enough if the calls take different arguments (one
    call against two)."""
    bad = [row for _, rows in groups for row in rows if row.judgement.verdict == ERROR and is_tensor(row.golden)]
    unlike = {id(match) for match, rows in groups if any(row.absent for row in rows)}
    if not bad:
        return set()
    known: tuple[set[object], set[object]] = set(), set()
    for _, rows in groups:
        for row in rows:
            for side, item in zip(known, (row.target, row.golden)):
                side.add(value_key(item) if is_tensor(item) and count(item or {}) >= FEW else None)
    ours, theirs = known
    return {
        id(row)
        for row in bad
        if (a := value_key(row.target)) is not None
        and (b := value_key(row.golden)) is not None
        and a != b
        and ((a in theirs and b in ours) or (id(row.match) in unlike and (a in theirs or b in ours)))
    }


def mispaired_rows(groups: Sequence[Group], graphs: tuple[Graph, Graph]) -> set[int]:
    """The rows of calls that were matched for want of a better counterpart, if the value of one run was compared
    elsewhere and agrees there: it is not the one that the row pairs it with."""
    return {
        id(row)
        for match, rows in groups
        if match.how in _WEAK and match.call.direction == FORWARD
        for row in rows
        if row.judgement.verdict == ERROR and any(_agrees_elsewhere(row, graph) for graph in graphs)
    }


def _agrees_elsewhere(row: Row, graph: Graph) -> bool:
    value = graph.of_row.get(id(row)) if graph.has_identity else None
    while value is not None:
        if any(is_evidence(one) and one.match.how not in _WEAK for one in value.rows if one is not row):
            return True
        whole = value.source
        value = whole if whole is not None and value_key(whole.item) == value_key(value.item) else None
    return False


def compensated_rows(groups: Sequence[Group]) -> set[int]:
    """The operands of a call that differ, where its result agrees though it would show the difference of each: what one
    lacks the other has (a sum in a different order)."""
    found: set[int] = set()
    for match, rows in groups:
        if match.how == "unmatched" or match.call.direction != FORWARD or match.call.kind != "api":
            continue
        tensors = [row for row in rows if is_tensor(row.target) and is_tensor(row.golden)]
        bad = [row for row in tensors if row.is_input and row.judgement.verdict == ERROR and row.distance]
        results = [row for row in tensors if not row.is_input]
        if len(bad) < 2 or not results or not all(map(is_evidence, results)):
            continue
        rounding = max(scale(row.golden or {}) * max(row.distance or 0.0, epsilon(row.golden or {})) for row in results)
        if all(scale(row.golden or {}) * (row.distance or 0.0) >= SHOWN * rounding for row in bad):
            found.update(map(id, bad))
    return found


def has_nothing_in_common(match: Match, rows: Sequence[Row]) -> bool:
    """Whether two matched calls of the forward share no tensor: one of them may compute something else, that happens to
    have the same name and shape, so that the differences between them have no size. A result that passes only because
    much noise is expected does not show that they belong together."""
    if match.how == "unmatched" or match.call.direction != FORWARD or match.call.kind != "api":
        return False
    both = [row for row in rows if is_tensor(row.target) and is_tensor(row.golden)]
    inputs = [row for row in both if row.is_input]
    if not all(map(_is_apart, inputs)) or not (inputs or match.how == "fused"):
        return False
    size = max(map(apart, inputs), default=0.0)
    return all(_is_apart(row) or apart(row) > SAME_RESULT * size for row in both if not row.is_input)


def _is_apart(row: Row) -> bool:
    return row.judgement.verdict in _BAD or is_other_order(row)


def apart(row: Row) -> float:
    """How far apart two tensors are, by their statistics or by the places of their elements."""
    return max(row.distance or 0.0, order_distance(row.target, row.golden) or 0.0)
