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
from msprobe.messages import Message

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
        return Verdict(ERROR, Message("check.special", special=found.special, elements=found.elements))
    if not found.mismatches:
        return Verdict(PASS)
    if found.cosine <= 0.99 or math.isnan(found.cosine):
        return Verdict(ERROR, Message("check.direction", cosine=f"{found.cosine:.4g}", size=_size(found)))
    if found.max_abs < 0.001:
        if found.relative_l2 <= _GROSS[dtype in _LOW]:
            return Verdict(PASS)
        return Verdict(ERROR, Message("check.small", share=f"{found.relative_l2:.2g}"))
    hundredth, thousandth, ten_thousandth = found.shares
    if dtype in _LOW:
        if hundredth <= 0.99:
            return Verdict(ERROR, _off(hundredth, "1%", found))
        if thousandth <= 0.999:
            return Verdict(WARNING, _off(thousandth, "0.1%", found))
        return Verdict(PASS)
    if thousandth <= 0.999:
        return Verdict(ERROR, _off(thousandth, "0.1%", found))
    if ten_thousandth <= 0.9999:
        return Verdict(WARNING, _off(ten_thousandth, "0.01%", found))
    return Verdict(PASS)


def _off(within: float, limit: str, found: Metrics) -> Message:
    return Message("check.off", share=f"{1 - within:.2%}", limit=limit, size=_size(found))


def judge_others(found: Metrics) -> Verdict:
    if not found.mismatches:
        return Verdict(PASS)
    return Verdict(ERROR, Message("values.elements", different=found.mismatches, elements=found.elements))


def judge_dropout(share: float, golden_share: float, draws: int) -> Verdict:
    """Which elements dropout zeroes is random; how many is not. Five standard deviations of two draws are allowed."""
    both = (share + golden_share) / 2
    allowed = 5.0 * math.sqrt(max(2 * both * (1 - both), 0.0) / max(draws, 1)) + 2.0 / max(draws, 1)
    if abs(share - golden_share) <= allowed:
        return Verdict(PASS, Message("check.zeros_agree"))
    return Verdict(ERROR, Message("check.zeros", share=f"{share:.1%}", golden=f"{golden_share:.1%}"))


def _size(found: Metrics) -> Message:
    error = f"{found.max_abs:.3g}"
    if found.max_rel < 1e6:
        return Message("check.error_of_value", error=error, share=f"{found.max_rel:.3g}")
    return Message("check.error", error=error)
