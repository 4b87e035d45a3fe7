"""Plain arguments of a call (an eps, a reduction, a flag) that explain why its result differs."""

from __future__ import annotations

from collections.abc import Sequence

from msprobe.compare.calls import Match
from msprobe.compare.rows import Row, is_tensor


def other_arguments(match: Match, inputs: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """Arguments with another value among the differing `inputs`. If there are none, no input tensor differs and both
    runs call the same API: the arguments that only one run passes (`scale=0.5`)."""
    both = [row for row in inputs if not is_tensor(row.golden) and row.golden is not None]
    if both or any(is_tensor(row.target) or is_tensor(row.golden) for row in inputs):
        return both
    target, golden = match.target, match.golden
    if target is None or golden is None or target.key != golden.key or target.kind != "api":
        return []
    return [row for row in rows if row.is_input and _is_given_once(row)]


def _is_given_once(row: Row) -> bool:
    sides = (row.target, row.golden)
    if any(is_tensor(item) for item in sides):
        return False
    values = [None if item is None else item.get("value") for item in sides]
    return (values[0] is None) != (values[1] is None)


def value_text(row: Row) -> str:
    """`0.5; the golden run gives none` for an argument that only one run passes."""
    ours, theirs = ((item or {}).get("value") for item in (row.target, row.golden))
    if theirs is None:
        return f"{ours!r}; the golden run gives none"
    return f"not given; in the golden run it is {theirs!r}"
