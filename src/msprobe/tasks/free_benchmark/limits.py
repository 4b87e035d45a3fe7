"""How much the results of a correct function may differ: by dtype, by the change and by stage.

docs/free_benchmark.md says how the limits were measured. The limits of mindstudio-probe are used where correct networks
stay below them. They do not if an input in half precision changes by one spacing: a correct matrix product in bfloat16
then changes by several.
"""

from __future__ import annotations

import math

from msprobe.stats import dtypes
from msprobe.tasks.free_benchmark.perturbation import NO_CHANGE, NOISY, RAISING

_LIMITS = {"float16": 1.002, "bfloat16": 1.004}
_OTHERS = 1.0002
_HALVES = ("float16", "bfloat16")
# By how many spacings a half-precision result may change if the input changes by one spacing.
_SPACINGS = {
    ("add_noise", "forward"): 2,
    ("add_noise", "backward"): 3,
    ("bit_noise", "forward"): 10,
    ("bit_noise", "backward"): 24,
}
# Values below this share of the largest value of an output are compared as if they were this large: a value that
# cancels to nearly zero has no relative precision.
_FLOOR = {"float16": 2.0**-8, "bfloat16": 2.0**-5}
_FLOOR_OTHERS = 2.0**-9
_NOISY_FLOOR = {"float16": 2.0**-3, "bfloat16": 2.0**-3}
_NOISY_FLOOR_OTHERS = 2.0**-5


def coarser(one: str, other: str) -> str:
    """The dtype with fewer digits."""
    rows = [dtypes.BY_NAME.get(name) for name in (one, other)]
    if any(row is None or row.kind != dtypes.FLOAT for row in rows):
        return one
    return min(one, other, key=lambda name: dtypes.BY_NAME[name].mantissa)


def limit_of(dtype: str, mode: str, stage: str) -> float:
    """The largest ratio that is not a finding, for an output judged by this dtype."""
    mode = _judged_as(mode, stage)
    if mode == NO_CHANGE:
        return 1.0
    limit = _LIMITS.get(dtype, _OTHERS)
    if mode not in NOISY or dtype not in _HALVES:
        return limit
    return max(limit, 1.0 + _SPACINGS[mode, stage] * 2.0 ** -dtypes.BY_NAME[dtype].mantissa)


def floor_of(dtype: str, mode: str, stage: str, largest: float, summed: float = 0.0) -> float:
    """The floor: smaller values count as this large; positive.

    `largest` is the largest value of the output; `summed` is the size of a sum over an incoming gradient if nothing
    cancels.
    """
    mode = _judged_as(mode, stage)
    if mode == NO_CHANGE or not 0 < largest < math.inf:
        return 2.0**-126
    share = _FLOOR.get(dtype, _FLOOR_OTHERS)
    if mode in NOISY:
        share = _NOISY_FLOOR.get(dtype, _NOISY_FLOOR_OTHERS)
    row = dtypes.BY_NAME.get(dtype)
    smallest = (row.smallest_normal if row is not None else None) or 0.0
    return max(share * largest, share * summed if math.isfinite(summed) else 0.0, smallest, 2.0**-126)


def _judged_as(mode: str, stage: str) -> str:
    """The mode to judge by: a forward call rounds what it saves for its backward, which is noise in any mode."""
    return "bit_noise" if stage == "backward" and mode in RAISING else mode
