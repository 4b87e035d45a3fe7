"""Outliers of a tensor, and what a low-precision format does to it, as rows of a step: for both frameworks."""

from __future__ import annotations

import math
from typing import Any, Optional

import numpy as np

from msprobe.stats.damage import measure_damage, worst_of
from msprobe.stats.formats import BY_NAME
from msprobe.watch.step_figures import StepFigures
from msprobe.watch.targets import Figures

SAMPLE = 4096
_NOTHING = math.nan


def sample_step(elements: int) -> int:
    """The distance between the elements of a sample. It shares no factor with the number of elements, so that a sample
    has elements of all channels."""
    step = -(-elements // SAMPLE)
    while math.gcd(step, elements) > 1:
        step += 1
    return step


def put_outliers(found: StepFigures, row: int, largest: float, median: float) -> None:
    """`median` is that of the nonzero magnitudes. Two calls in one step: the one with the larger ratio counts."""
    ratio = largest / median if median else 1.0
    before = found.get(row)
    if before is None or not ratio <= before.norm:
        found[row] = Figures(ratio, largest, median, *[_NOTHING] * 6)


def put_damage(values: Any, form: str, weight: bool, found: StepFigures, row: int) -> None:
    """Measures an array in a format. The orientation that loses most counts; calls in one step are combined."""
    damages = measure_damage(values, BY_NAME[form], weight)
    if not damages:
        return
    worst = worst_of(damages)
    with np.errstate(all="ignore"):
        norm, largest = float(np.linalg.norm(values.ravel())), float(np.abs(values).max())
    rows = values.shape[0] if weight or values.ndim < 2 else values.size // values.shape[-1]
    now = Figures(
        norm, largest, worst.snr, worst.scale_range, _NOTHING, _NOTHING, rows, worst.underflow, worst.saturated
    )
    found[row] = _combine(found.get(row), now)


def _combine(first: Optional[Figures], second: Figures) -> Figures:
    """Two calls of one module in a step, as one matrix with the rows of both."""
    if first is None:
        return second
    parts = [one.zero / (first.zero + second.zero) for one in (first, second)]
    noise = sum((one.norm * 10 ** (-one.min / 20)) ** 2 for one in (first, second))
    energy = first.norm**2 + second.norm**2
    return Figures(
        math.sqrt(energy),
        max(first.max, second.max),
        10 * math.log10(energy / noise) if noise and energy else min(first.min, second.min),
        max(first.mean, second.mean),
        _NOTHING,
        _NOTHING,
        first.zero + second.zero,
        parts[0] * first.underflow + parts[1] * second.underflow,
        parts[0] * first.saturation + parts[1] * second.saturation,
    )
