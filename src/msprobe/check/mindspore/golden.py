"""Finds out whether MindSpore's CPU computes an API in higher precision. If not, formulas.py replaces it.

Some kernels have no float64 version. Others accept float64 and compute in float32 inside. A trial finds these: the
inputs fill the mantissa, and if every element of the result fits into a float32, the kernel computed in float32.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from msprobe.check.core.framework import Results

DIRECTIONS = ("forward", "backward")
# Outputs that the CPU kernel does not write: they are not judged.
UNWRITTEN = {"BatchNorm": (1, 2)}


class KernelPrecision:
    """What this process knows about the kernels, by kind of call and direction."""

    def __init__(self) -> None:
        self._is_wide: dict[tuple[str, str], bool] = {}

    def find_narrow(self, kind: str, results: Results, nudged: Callable[[], Results]) -> tuple[str, ...]:
        """The directions in which a golden in float64 is not better than float32. `nudged` runs again with other
        inputs, if the first result does not decide it."""
        again: list[Results] = []
        found = []
        for direction in DIRECTIONS:
            known = self._is_wide.get((kind, direction))
            if known is None and _could_be_narrow(results, direction):
                again = again or [nudged()]
                known = self._is_wide[kind, direction] = not _could_be_narrow(again[0], direction)
            if known is False:
                found.append(direction)
        return tuple(found)


def _could_be_narrow(results: Results, direction: str) -> bool:
    """Whether some float64 result has only float32 numbers, and not only integers."""
    made = results.outputs if direction == "forward" else results.gradients
    return any(_fits(one) for one in made if one is not None and one.dtype == np.float64)


def _fits(array: Any) -> bool:
    with np.errstate(all="ignore"):
        finite = array[np.isfinite(array)]
        return bool(np.array_equal(finite, finite.astype(np.float32)) and not np.array_equal(finite, np.rint(finite)))
