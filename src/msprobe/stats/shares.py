"""How much of a difference each of several causes explains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional


def shares(wrong: float, right: float, after: Sequence[float]) -> list[Optional[float]]:
    """The share of each cause in the difference of a number. `after` has the number after each further cause was
    removed. A share is negative if removing the cause made the number worse; None if the number does not differ."""
    total = right - wrong
    before = [wrong, *after]
    return [(now - then) / total if total else None for then, now in zip(before, after)]
