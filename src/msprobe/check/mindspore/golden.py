"""Whether MindSpore's CPU computes an API in raised precision, by finding out: `mindspore_formulas` stand in where not.

Some kernels have no float64 form, and some take float64 and compute in float32 inside. The second kind is found by
trying: with inputs that fill the mantissa, an answer whose every element fits into a float32 was computed in one.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from msprobe.check.core.framework import Results

DIRECTIONS = ("forward", "backward")
# Outputs that the CPU's kernel leaves as it found the memory: they are not judged.
UNWRITTEN = {"BatchNorm": (1, 2)}


class Widths:
    """What this process has learnt of the kernels, by kind of call and direction."""

    def __init__(self) -> None:
        self._is_wide: dict[tuple[str, str], bool] = {}

    def narrow(self, kind: str, results: Results, nudged: Callable[[], Results]) -> tuple[str, ...]:
        """In which directions a golden in float64 is none. `nudged` is asked where the first answer leaves it open."""
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
    """Whether some float64 result has nothing but float32 numbers in it, and not just integers."""
    made = results.outputs if direction == "forward" else results.gradients
    return any(_fits(one) for one in made if one is not None and one.dtype == np.float64)


def _fits(array: Any) -> bool:
    with np.errstate(all="ignore"):
        finite = array[np.isfinite(array)]
        return bool(np.array_equal(finite, finite.astype(np.float32)) and not np.array_equal(finite, np.rint(finite)))
