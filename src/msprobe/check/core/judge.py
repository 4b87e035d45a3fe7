"""Turns metrics into a verdict with its reason: the rules of mindstudio-probe with two corrections.

1. A result passes if it differs no more than rounding of the inputs explains, no matter what the metrics say: the
cosine of two sums that cancel to zero means nothing.

2. "Largest absolute error below 0.001" alone is not enough for a tensor with values that small: gradients often are,
and a gradient twice too large would pass.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from msprobe.check.core.measure import Metrics

PASS, WARNING, ERROR, SKIP = "pass", "warning", "error", "SKIP"
SEVERITY = {PASS: 0, SKIP: 1, WARNING: 2, ERROR: 3}
_LOW = frozenset(("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"))
_GROSS = {True: 0.02, False: 0.001}


class Verdict(NamedTuple):
    status: str
    reason: str = ""


def worst(statuses: list[str]) -> str:
    return max(statuses, key=SEVERITY.__getitem__, default=SKIP)


def judge_floats(found: Metrics, dtype: str) -> Verdict:
    """The verdict on one float output, from its metrics alone."""
    if found.special:
        return Verdict(ERROR, f"{found.special} of {found.elements} elements are NaN or infinite on one side only")
    if not found.mismatches:
        return Verdict(PASS)
    if found.cosine <= 0.99 or math.isnan(found.cosine):
        return Verdict(ERROR, f"it has another direction: cosine {found.cosine:.4g}, {_size(found)}")
    if found.max_abs < 0.001:
        if found.relative_l2 <= _GROSS[dtype in _LOW]:
            return Verdict(PASS)
        return Verdict(ERROR, f"its values are small and wrong by {found.relative_l2:.2g} of their size")
    hundredth, thousandth, ten_thousandth = found.shares
    if dtype in _LOW:
        if hundredth <= 0.99:
            return Verdict(ERROR, f"{1 - hundredth:.2%} of the elements are off by 1% or more, {_size(found)}")
        if thousandth <= 0.999:
            return Verdict(WARNING, f"{1 - thousandth:.2%} of the elements are off by 0.1% or more, {_size(found)}")
        return Verdict(PASS)
    if thousandth <= 0.999:
        return Verdict(ERROR, f"{1 - thousandth:.2%} of the elements are off by 0.1% or more, {_size(found)}")
    if ten_thousandth <= 0.9999:
        return Verdict(WARNING, f"{1 - ten_thousandth:.2%} of the elements are off by 0.01% or more, {_size(found)}")
    return Verdict(PASS)


def judge_others(found: Metrics) -> Verdict:
    if not found.mismatches:
        return Verdict(PASS)
    return Verdict(ERROR, f"{found.mismatches} of {found.elements} elements differ")


def judge_dropout(share: float, golden_share: float, draws: int) -> Verdict:
    """Which elements dropout zeroes is random; how many is not. Five standard deviations of two draws are allowed."""
    both = (share + golden_share) / 2
    allowed = 5.0 * math.sqrt(max(2 * both * (1 - both), 0.0) / max(draws, 1)) + 2.0 / max(draws, 1)
    if abs(share - golden_share) <= allowed:
        return Verdict(PASS, "random: the share of zeros agrees")
    return Verdict(ERROR, f"{share:.1%} of the elements are zero, {golden_share:.1%} on the golden side")


def _size(found: Metrics) -> str:
    of_value = f" ({found.max_rel:.3g} of the value)" if found.max_rel < 1e6 else ""
    return f"largest error {found.max_abs:.3g}{of_value}"
