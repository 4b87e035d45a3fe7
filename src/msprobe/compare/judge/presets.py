"""The limits of two versions of mindstudio-probe, for users who must report by them. They ignore dtype and noise: with
bf16 against fp32 every row fails, and a wrong scale may pass everywhere. The default is our own judge.
"""

from __future__ import annotations

import math
from typing import Protocol

from msprobe.compare.measure.distance import number
from msprobe.compare.reasons import NO_REASON, Kind, Reason
from msprobe.compare.rows import ERROR, PASS, WARNING, Row
from msprobe.messages import Message


class Preset(Protocol):
    def judge(self, row: Row) -> tuple[str, float, Reason]:
        """(verdict, tolerance, reason) of a row that differs."""


def _relative_errors(row: Row) -> list[float]:
    errors = []
    for key in ("Max", "Min", "Mean", "Norm"):
        ours = number((row.target or {}).get(key))
        theirs = number((row.golden or {}).get(key))
        if ours is not None and theirs is not None and ours != theirs:
            errors.append(abs(ours - theirs) / abs(theirs) if theirs else math.inf)
    return errors


def _said(id: str, **args: str) -> Reason:
    return Reason(Kind.VALUES, Message(id, **args))


class Generation83:
    """Tensor: cosine below 0.99 with an absolute error over 0.001, cosine below 0.9, or an absolute error over 1.
    Statistics: a relative error over 0.5 is a warning. Checksums and plain values: equal or not."""

    def judge(self, row: Row) -> tuple[str, float, Reason]:
        found = row.measured
        if found is not None:
            low, large = found.cosine, found.max_abs
            if found.special:
                return ERROR, 0.0, NO_REASON
            if (low < 0.99 and large > 0.001) or low < 0.9 or large > 1:
                return ERROR, 0.0, _said("values.cosine_and_error", cosine=f"{low:.4g}", error=f"{large:.4g}")
            return PASS, 0.0, NO_REASON
        errors = _relative_errors(row)
        if not errors:
            return ERROR, 0.0, NO_REASON
        if max(errors) > 0.5 or row.distance == math.inf:
            return WARNING, 0.5, _said("values.relative_error", error=f"{max(errors):.3g}", limit="0.5")
        return PASS, 0.5, NO_REASON


class Generation26:
    """The same measures with three grades: a relative error of an output over 0.5 is an error, over 0.1 a warning."""

    def judge(self, row: Row) -> tuple[str, float, Reason]:
        found = row.measured
        if found is not None:
            if found.special or found.one_thousandth < 0.6:
                within = _said("values.within_thousandth", share=f"{found.one_thousandth:.1%}")
                return ERROR, 0.0, NO_REASON if found.special else within
            if found.cosine < 0.99:
                return WARNING, 0.0, _said("values.cosine")
            return PASS, 0.0, NO_REASON
        errors = _relative_errors(row)
        worst = max(errors, default=math.inf)
        if worst > 0.5:
            over = _said("values.relative_error", error=f"{worst:.3g}", limit="0.5")
            return ERROR, 0.5, over if errors else NO_REASON
        if worst > 0.1:
            return WARNING, 0.1, _said("values.relative_error", error=f"{worst:.3g}", limit="0.1")
        return PASS, 0.1, NO_REASON


PRESETS: dict[str, Preset] = {"8.3": Generation83(), "26": Generation26()}
