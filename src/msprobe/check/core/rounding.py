"""Decides whether a difference is only rounding: of the inputs, or of a sum in another order."""

from __future__ import annotations

from typing import Optional

import numpy as np

from msprobe.check.core.measure import FORMATS, Array, Format, spacing_at

_ORDER_OF_SUMS = 1e-5
"""How much a result may change, relative to its largest element, if threads add its terms in another order."""


def same_but_for_rounding(
    device: Array, golden: Array, moved: list[Array], form: Optional[Format], incoming: float = 0.0
) -> bool:
    """Whether the difference is no larger than the effect of input rounding on the golden result.

    `moved` are golden results for inputs changed by at most one unit in the last place. No algorithm in this number
    format can be expected to be closer. Two units of the usual size of the tensor are allowed in addition, and in
    float32 and wider eight units of the size of the `incoming` gradients: a value that cancels to exactly zero does not
    change with the inputs, but is computed with rounding. Integers (an index, a rank) may differ where they also differ
    between golden results.
    """
    with np.errstate(all="ignore"):
        if form is None:
            wrong = device != golden
            flipped = np.logical_or.reduce([one != golden for one in moved])
            unexplained = np.count_nonzero(wrong & ~flipped)
            return bool(unexplained <= 0.1 * np.count_nonzero(wrong))
        own, right = device.astype(np.float64), golden.astype(np.float64)
        finite = np.isfinite(own) & np.isfinite(right)
        if np.any(~finite & ~((own == right) | (np.isnan(own) & np.isnan(right)))):
            return False
        noise = np.maximum.reduce([np.abs(one.astype(np.float64) - right) for one in moved])
        error, unit = np.abs(own - right), spacing_at(np.abs(right), form)
        error, noise, unit = error[finite], noise[finite], unit[finite]
        noise[~np.isfinite(noise)] = 0.0
        if not error.size:
            return True
        usual = np.sqrt(np.mean(np.square(right[finite])))
        bound = 16.0 * noise + 2.0 * unit + 2.0 * form.epsilon * usual
        if form.mantissa >= FORMATS["float32"].mantissa:
            bound += 8.0 * form.epsilon * incoming
        beyond = np.count_nonzero(error > bound) / error.size
        return bool(beyond <= 0.01 and np.linalg.norm(error) <= np.linalg.norm(bound))


def same_but_for_sums(one: Array, other: Array, scale: float) -> bool:
    """Whether two results of one call agree except for the order in which threads add the terms. `scale` is the size of
    the terms, if they may cancel."""
    if other.dtype.kind not in "fc":
        return bool(np.array_equal(one, other))
    largest = float(np.max(np.abs(other), where=np.isfinite(other), initial=scale))
    return bool(np.allclose(one, other, rtol=0.0, atol=_ORDER_OF_SUMS * largest, equal_nan=True))
