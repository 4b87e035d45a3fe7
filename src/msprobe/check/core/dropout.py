"""Checks dropout. Which elements it drops is random; how many it drops, and the values of the others, are not."""

from __future__ import annotations

from typing import Any

import numpy as np

from msprobe.check.core import judge
from msprobe.check.core.judge import ERROR, Verdict
from msprobe.check.core.measure import Format, Metrics, measure_floats
from msprobe.messages import Message

Array = np.ndarray[Any, Any]
_EACH = frozenset(("dropout", "dropout_", "native_dropout"))  # every element is drawn separately


def is_dropout(api: str) -> bool:
    """Whether an API is a dropout that writes zeros. Alpha dropout writes none, so there is nothing to count."""
    return "dropout" in api and "alpha" not in api


def share_of_zeros(flat: Array) -> float:
    return 1.0 - float(np.count_nonzero(flat)) / max(flat.size, 1)


def judge_share(api: str, flat: Array, golden: Array, rows: int) -> Verdict:
    """Whether about as many elements are zero as on the golden side. `rows` is the size of the first dimension."""
    draws = max(flat.size, 1) if api in _EACH else max(rows, 1)
    return judge.judge_dropout(share_of_zeros(flat), share_of_zeros(golden), draws)


def measure_kept(flat: Array, given: Array, golden: Array, form: Format) -> Metrics:
    """Compares the elements that were not dropped with the input times the factor of the golden side."""
    wide = given.astype(np.float64)
    used = (golden != 0) & (wide != 0)
    factor = float(np.median(golden[used] / wide[used])) if used.any() else 0.0
    expected = np.where(flat != 0, wide * factor, 0.0)
    rounding = 4 * form.epsilon * np.abs(expected)  # rounding of the factor and of the product, in the recorded dtype
    agrees = np.abs(flat - expected) <= rounding
    return measure_floats(flat, np.where(agrees, flat, expected).astype(flat.dtype), form)


def judge_mask(mask: Array, flat: Array, given: Array) -> Verdict:
    """Checks the mask of native_dropout: true where the result is not zero, false where a value became zero."""
    wrong = int(np.count_nonzero((flat != 0) & (mask == 0))) + int(np.count_nonzero((flat == 0) & (given * mask != 0)))
    return Verdict(ERROR, Message("check.mask", number=wrong)) if wrong else Verdict(judge.PASS)
