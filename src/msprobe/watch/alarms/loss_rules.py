"""Rules about the loss: one number a step, which may have any sign and any scale."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Optional

import numpy as np

from msprobe.watch.alarms.history import SETTLED, WINDOW

SCALES = 10
_HALF = 32


class LossRules:
    """Remembers the last losses and says what is wrong with the one that comes."""

    def __init__(self, spike: Optional[float], drift: Optional[float]) -> None:
        self._spike, self._drift = spike, drift
        self._recent: list[float] = []
        self._best = math.inf
        self._good_until = -1
        self._quiet = 0
        self._is_nan = False
        self._drifted = False

    def look(self, step: int, loss: float, names_nan: bool) -> Iterator[tuple[str, int, str, float, float]]:
        """Yields rule, step at which it began, sentence, value and usual value."""
        if not math.isfinite(loss):
            if names_nan and not self._is_nan:
                usual = float(np.median(self._recent)) if self._recent else math.nan
                before = f"; it was about {usual:.4g}" if self._recent else ""
                yield "nan", step, f"is {loss}{before}", loss, usual
            self._is_nan = True
            return
        self._is_nan = False
        if len(self._recent) >= SETTLED:
            yield from self._jump(step, loss)
            yield from self._rise(step, loss)
        self._recent.append(loss)
        del self._recent[:-WINDOW]
        self._quiet -= 1

    def _jump(self, step: int, loss: float) -> Iterator[tuple[str, int, str, float, float]]:
        if self._spike is None:
            return
        values = np.array(self._recent)
        positive = bool((values > 0).all() and loss > 0)
        if positive:
            values = np.log(values)
        median = float(np.median(values))
        scale = max(1.4826 * float(np.median(np.abs(values - median))), 1e-3 if positive else 1e-12)
        least = math.log(self._spike) if positive else 0.0
        value = math.log(loss) if positive else loss
        rest = float(values.max()) + least / 2
        if value - median > max(least, SCALES * scale) and value > rest:
            usual = math.exp(median) if positive else median
            if self._quiet <= 0:
                times = f", {loss / usual:.3g} times its usual {usual:.4g}" if positive else f"; usual is {usual:.4g}"
                yield "loss_spike", step, f"jumped to {loss:.4g}{times}", loss, usual
            self._quiet = 50

    def _rise(self, step: int, loss: float) -> Iterator[tuple[str, int, str, float, float]]:
        """The median of the last losses stays above the best that it was."""
        recent = self._recent[-_HALF:]
        if self._drift is None or len(recent) < _HALF:
            return
        median = float(np.median(recent))
        scale = 1.4826 * float(np.median(np.abs(np.array(recent) - median)))
        if loss <= self._best + max(0.1 * abs(self._best), scale):
            self._good_until = step
        if median < self._best:
            self._best = median
        risen = median - self._best > max((self._drift - 1) * abs(self._best), 6 * scale)
        if risen and not self._drifted:
            began = min(self._good_until + 1, step) if self._good_until >= 0 else step
            yield "loss_drift", began, f"rises: about {median:.4g} now, it was {self._best:.4g}", median, self._best
        self._drifted = risen
