"""Rules about the loss: one number per step, with any sign and any scale."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Optional

from msprobe.watch.alarms.history import SETTLED, WINDOW

SCALES = 10
NOTHING = 0.01
"""A jump smaller than this part of the early loss is ignored: a loss near zero moves by large factors."""
LEARNT = 0.05
"""Below this part of the early loss nearly every sample is right, and a single wrong one is a jump: it must reach the
early loss. The drift rule sees what lasts."""
_HALF = 32


class LossRules:
    """Remembers the last losses and checks each new one."""

    def __init__(self, spike: Optional[float], drift: Optional[float]) -> None:
        self._spike, self._drift = spike, drift
        self._recent: list[float] = []
        self._best = math.inf
        self._early: Optional[float] = None
        self._good_until = -1
        self._quiet = 0
        self._is_nan = False
        self._drifted = False

    def look(self, step: int, loss: float, names_nan: bool) -> Iterator[tuple[str, int, str, float, float]]:
        """Yields the rule, the step at which it began, the sentence, the value and the usual value."""
        if not math.isfinite(loss):
            if names_nan and not self._is_nan:
                usual = _median(self._recent) if self._recent else math.nan
                before = f"; it was about {usual:.4g}" if self._recent else ""
                yield "nan", step, f"is {loss}{before}", loss, usual
            self._is_nan = True
            return
        self._is_nan = False
        if len(self._recent) >= SETTLED:
            if self._early is None:
                self._early = abs(_median(self._recent))
            yield from self._jump(step, loss)
            yield from self._rise(step, loss)
        self._recent.append(loss)
        del self._recent[:-WINDOW]
        self._quiet -= 1

    def _jump(self, step: int, loss: float) -> Iterator[tuple[str, int, str, float, float]]:
        if self._spike is None:
            return
        positive = min(self._recent) > 0 and loss > 0
        values = [math.log(one) for one in self._recent] if positive else self._recent
        median, distance = _scatter(values)
        scale = max(1.4826 * distance, 1e-3 if positive else 1e-12)
        least = math.log(self._spike) if positive else 0.0
        value = math.log(loss) if positive else loss
        rest = max(values) + least / 2
        usual, early = math.exp(median) if positive else median, self._early or 0.0
        if value - median <= max(least, SCALES * scale) or value <= rest:
            return
        if positive and usual < LEARNT * early and loss < early:
            return
        if self._quiet <= 0 and loss - usual > NOTHING * early:
            times = f", {loss / usual:.3g} times its usual {usual:.4g}" if positive else f"; usual is {usual:.4g}"
            yield "loss_spike", step, f"jumped to {loss:.4g}{times}", loss, usual
        self._quiet = 50

    def _rise(self, step: int, loss: float) -> Iterator[tuple[str, int, str, float, float]]:
        """The median of the last losses stays above its best value."""
        recent = self._recent[-_HALF:]
        if self._drift is None or len(recent) < _HALF:
            return
        median, distance = _scatter(recent)
        scale = 1.4826 * distance
        if loss <= self._best + max(0.1 * abs(self._best), scale):
            self._good_until = step
        if median < self._best:
            self._best = median
        risen = median - self._best > max((self._drift - 1) * abs(self._best), 6 * scale)
        if risen and not self._drifted:
            began = min(self._good_until + 1, step) if self._good_until >= 0 else step
            yield "loss_drift", began, f"rises: about {median:.4g} now, it was {self._best:.4g}", median, self._best
        self._drifted = risen


def _median(values: list[float]) -> float:
    """numpy is slower for so few numbers."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else 0.5 * (ordered[half - 1] + ordered[half])


def _scatter(values: list[float]) -> tuple[float, float]:
    """The median, and the median distance to it."""
    median = _median(values)
    return median, _median([abs(value - median) for value in values])
