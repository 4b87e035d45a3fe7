"""Whether two tensors have the same numbers in a different order.

Maximum, minimum, mean and norm do not show it. `Order` does, if both dumps have it: it is a sum of the elements with
weights that look random (docs/kernel.md). So its difference is about as large as the norm of the difference of the
tensors: rounding changes it by about epsilon times the norm, a permutation by about the norm.
"""

from __future__ import annotations

from typing import Optional

from msprobe.compare.measure import distance
from msprobe.compare.measure.rows import SAME_STATISTICS
from msprobe.compare.rows import Item, Row, is_tensor

ROUNDING = 32.0
"""How many times the rounding of its elements the Order may be off. The rounding is half an epsilon, or the largest
difference of a statistic: an extreme is one element, so that its error may be a few times smaller than most."""
FAR = 0.1
"""How far off Order is at least, relative to the norm, if elements have different places."""
EXACT = 1e-9
"""The same for tensors with equal statistics: any rounding of an element would show in them."""


def is_reordered(row: Row) -> bool:
    """Whether Order proves that elements with the same statistics are in different places."""
    limit, away = _limit(row), _away(row)
    return limit is not None and away is not None and away > limit


def is_in_order(row: Row) -> bool:
    """Whether Order shows that the elements are the same, but for rounding. A mask hides all other elements."""
    if distance.is_masked(row.target or {}) or distance.is_masked(row.golden or {}):
        return False
    limit, away = _limit(row), _away(row)
    return limit is not None and away is not None and away <= limit


def _limit(row: Row) -> Optional[float]:
    """How far off Order may be by rounding; None if the other statistics differ."""
    if row.distance is None or row.distance > ROUNDING * _epsilon(row):
        return None
    return ROUNDING * max(0.5 * _epsilon(row), row.distance) if row.distance > SAME_STATISTICS else EXACT


def has_same_order(row: Row) -> bool:
    """Whether Order and the other statistics are equal: then so are the elements."""
    away = _away(row)
    return away is not None and away <= SAME_STATISTICS and row.distance is not None and row.distance <= SAME_STATISTICS


def _epsilon(row: Row) -> float:
    return max(distance.epsilon(row.target or {}), distance.epsilon(row.golden or {}), EXACT)


def _away(row: Row) -> Optional[float]:
    """The difference of the Orders, relative to the norm; None if it is not known."""
    return None if row.measured is not None or row.absent else order_distance(row.target, row.golden)


def order_distance(target: Item, golden: Item) -> Optional[float]:
    """The difference of the Orders of two tensors of the same shape, relative to the norm; None if it is not known."""
    if target is None or golden is None or not is_tensor(target) or not is_tensor(golden):
        return None
    if target["shape"] != golden["shape"]:
        return None
    orders = distance.number(target.get("Order")), distance.number(golden.get("Order"))
    norms = distance.number(target.get("Norm")), distance.number(golden.get("Norm"))
    if orders[0] is None or orders[1] is None or not norms[0] or not norms[1]:
        return None
    return abs(orders[0] - orders[1]) / max(norms[0], norms[1])


def is_other_order(row: Row) -> bool:
    """Whether Order shows that the elements have different places, whatever the statistics say."""
    return (order_distance(row.target, row.golden) or 0.0) > FAR
