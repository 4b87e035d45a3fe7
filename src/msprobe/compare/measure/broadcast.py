"""Compares tensors of different shapes, if one can be broadcast to the other."""

from __future__ import annotations

import math
from typing import Any, Optional

from msprobe.compare.measure.distance import count, number, of_statistics
from msprobe.compare.reasons import Kind, Reason
from msprobe.compare.rows import EQUAL, Measurement
from msprobe.messages import Message


def of_broadcast(target: dict[str, Any], golden: dict[str, Any]) -> Optional[Measurement]:
    """Two inputs of different shapes, of which one can be broadcast to the other; None if it cannot.

    Repeating a tensor changes neither its extremes nor its mean, and its norm by the root of the number of copies.
    """
    small, large = sorted((target, golden), key=count)
    if not broadcasts(small["shape"], large["shape"]) or not count(small):
        return None
    norm = number(small.get("Norm"))
    if norm is None or not math.isfinite(norm):
        return None
    wide = {**small, "shape": large["shape"], "Norm": norm * math.sqrt(count(large) / count(small))}
    found = of_statistics(wide, large) if small is target else of_statistics(large, wide)
    if found.distance is None:
        return None
    if found.distance < 1e-6:
        return EQUAL
    shapes = {"target": str(target["shape"]), "golden": str(golden["shape"])}
    why = Message("values.of_shapes", why=found.reason.message, **shapes)
    return Measurement(found.distance, Reason(Kind.VALUES, why), found.average)


def broadcasts(small: list[int], large: list[int]) -> bool:
    """Whether a tensor of the first shape can be broadcast to the second."""
    padded = [1] * (len(large) - len(small)) + small
    return len(padded) == len(large) and all(a in (1, b) for a, b in zip(padded, large))
