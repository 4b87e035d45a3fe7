"""How much of a difference each of several causes explains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Optional


def shares(wrong: float, right: float, after: Sequence[float]) -> list[Optional[float]]:
    """The share of each cause in the difference of a number. `after` has the number after each further cause was
    removed. A share is negative if removing the cause made the number worse; None if the number does not differ, or
    is not finite."""
    total = right - wrong
    if not total or not math.isfinite(total):
        return [None] * len(after)
    parts = [(now - then) / total for then, now in zip([wrong, *after], after)]
    return [part if math.isfinite(part) else None for part in parts]
