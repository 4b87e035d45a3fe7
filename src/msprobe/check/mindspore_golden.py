"""Whether MindSpore's CPU computes an API in raised precision, by finding out: `mindspore_formulas` stand in where not.

Some kernels have no float64 form, and some take float64 and compute in float32 inside. The second kind is found by
trying: with inputs that fill the mantissa, an answer whose every element fits into a float32 was computed in one.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from msprobe.check.framework import Results

# Outputs that the CPU's kernel leaves as it found the memory: they are not judged.
UNWRITTEN = {"BatchNorm": (1, 2)}


class Widths:
    """What this process has learnt of the kernels, by title."""

    def __init__(self) -> None:
        self._wide: set[str] = set()
        self.narrow: set[str] = set()

    def is_wide(self, title: str, results: Results, nudged: Callable[[], Results]) -> bool:
        """Whether a golden in float64 is one. `nudged` is asked only where the first answer leaves it open."""
        if title in self._wide or not _could_be_narrow(results):
            return True
        if _could_be_narrow(nudged()):
            self.narrow.add(title)
            return False
        self._wide.add(title)
        return True


def _could_be_narrow(results: Results) -> bool:
    """Whether some float64 result has nothing but float32 numbers in it that are no integers."""
    floats = [one for one in (*results.outputs, *results.gradients) if one is not None and one.dtype == np.float64]
    return any(_fits(one) for one in floats)


def _fits(array: Any) -> bool:
    with np.errstate(all="ignore"):
        finite = array[np.isfinite(array)]
        return bool(np.array_equal(finite, finite.astype(np.float32)) and not np.array_equal(finite, np.rint(finite)))
