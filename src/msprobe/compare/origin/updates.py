"""The update of a parameter differs: which one, and by what factor. The settings of the optimizer may explain it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Optional

from msprobe.compare.excuses import change_of_mean, same_changes
from msprobe.compare.operators import UPDATE
from msprobe.compare.origin.structure import candidate
from msprobe.compare.origin.trace import Trace, bad_rows
from msprobe.compare.origin.wording import Candidate
from msprobe.compare.rows import Row

_EXACT = 1e-2
"""How far a factor may be from the same factor of a different statistic."""


def updates_agree(trace: Trace) -> bool:
    """Whether the update of every parameter was compared and agrees."""
    rows = [row for _, rows in _updates(trace) for row in rows]
    if not rows or not same_changes(trace.groups):
        return False
    return not bad_rows(rows) and not any(row.absent and row.excuse is None for row in rows)


def _updates(trace: Trace) -> Iterator[tuple[int, Sequence[Row]]]:
    for index, (match, rows) in enumerate(trace.groups):
        if match.call.key.startswith(UPDATE):
            yield index, rows


def blame_update(trace: Trace, evidence: Sequence[str] = ()) -> Optional[Candidate]:
    """The first parameter whose update differs, though it was the same before. None if there is none."""
    for index, rows in _updates(trace):
        named = {row.slot.rpartition(".")[2]: row for row in rows}
        after, before, gradient = (named.get(key) for key in ("after", "before", "gradient"))
        if after is None or after not in bad_rows(rows) or (before is not None and before in bad_rows(rows)):
            continue
        name = trace.groups[index][0].call.key.removeprefix(UPDATE)
        if gradient is not None and gradient in bad_rows(rows):
            said = f"the optimizer uses a different gradient of {name}, though the gradients of the backward agree"
            return replace(candidate("update", index, gradient, trace, tuple(evidence)), said=said)
        said = f"the update of {name} differs for the same gradient{_by_factor(before, after)}"
        return replace(candidate("update", index, after, trace, tuple(evidence)), said=said)
    return None


def _by_factor(before: Optional[Row], after: Row) -> str:
    """A mean is linear: its change shows the factor of an update."""
    if before is None:
        return ""
    ours, theirs = (change_of_mean(before.target, after.target), change_of_mean(before.golden, after.golden))
    if ours is None or not theirs:
        return ""
    factor = ours / theirs
    if not math.isfinite(factor) or math.isclose(factor, 1.0, rel_tol=_EXACT):
        return ""
    return f": it is {factor:.3g} times as large"
