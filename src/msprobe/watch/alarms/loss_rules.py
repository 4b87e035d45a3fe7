"""Rules about the loss: one number per step, with any sign and any scale."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Optional

from msprobe.messages import Message
from msprobe.watch.alarms.history import SETTLED, WINDOW

SCALES = 10
NOTHING = 0.01
"""A jump smaller than this part of the early loss is ignored: a loss near zero moves by large factors."""
LEARNT = 0.05
"""Below this part of the early loss nearly every sample is right, and a single wrong one makes the loss jump. Such a
jump counts only if it also exceeds the early loss. The drift rule finds a rise that lasts."""
SMALLEST = 1e-8
"""The smallest loss that the rules use, as part of the early loss: zero has no logarithm."""
_HALF = 32
_SHORT = 16
_STAYS = 5
_STRONG = 3.0
"""A loss that is this many times its best has risen, even if it rises too fast to have a usual scatter."""

LossHit = tuple[str, int, Message, float, float]


class LossRules:
    """Remembers the last losses and checks each new one."""

    def __init__(self, spike: Optional[float], drift: Optional[float]) -> None:
        self._spike, self._drift = spike, drift
        self._recent: list[float] = []
        self._best = math.inf
        self._best_scale = 0.0
        self._higher: list[tuple[int, float]] = []  # losses above `_bar`, one after the other
        self._bar = self._usual = math.inf
        self._early: Optional[float] = None
        self._good_until = -1
        self._quiet = 0
        self._is_nan = False
        self._drifted = False

    def look(self, step: int, loss: float, names_nan: bool) -> Iterator[LossHit]:
        """Yields the rule, the step at which it began, the sentence, the value and the usual value."""
        if not math.isfinite(loss):
            if names_nan and not self._is_nan:
                usual = _median(self._recent) if self._recent else math.nan
                sentence = Message("alarm.loss_nan", loss=str(loss))
                if self._recent:
                    sentence = Message("alarm.loss_nan_usual", loss=str(loss), usual=f"{usual:.4g}")
                yield "nan", step, sentence, loss, usual
            self._is_nan = True
            return
        self._is_nan = False
        if len(self._recent) >= SETTLED:
            if self._early is None:
                self._early = abs(_median(self._recent))
            yield from self._jump(step, loss)
            yield from self._stay(step, loss)
            yield from self._rise(step, loss)
        self._recent.append(loss)
        del self._recent[:-WINDOW]
        self._quiet -= 1

    def _jump(self, step: int, loss: float) -> Iterator[LossHit]:
        if self._spike is None:
            return
        floor = SMALLEST * (self._early or 0.0)
        positive = min(self._recent) >= 0 and loss > floor > 0
        values = [math.log(max(one, floor)) for one in self._recent] if positive else self._recent
        median, distance = _scatter(values)
        scale = max(1.4826 * distance, 1e-3 if positive else 1e-12)
        least = math.log(self._spike) if positive else 0.0
        value = math.log(loss) if positive else loss
        rest = max(values) + least / 2
        usual, early = math.exp(median) if positive else median, self._early or 0.0
        if value - median <= max(least, SCALES * scale) or value <= rest:
            return
        if positive and usual < LEARNT * early and loss < self._spike * early:
            return
        if self._quiet <= 0 and loss - usual > NOTHING * early:
            sentence = Message("alarm.loss_jump", loss=f"{loss:.4g}", usual=f"{usual:.4g}")
            if positive:
                times = f"{loss / usual:.3g}"
                sentence = Message("alarm.loss_spike", loss=f"{loss:.4g}", times=times, usual=f"{usual:.4g}")
            yield "loss_spike", step, sentence, loss, usual
        self._quiet = 50

    def _stay(self, step: int, loss: float) -> Iterator[LossHit]:
        """A falling loss jumps back and stays there. The median is still that of older, higher losses, so this compares
        with the last few. One value above them may be chance; five in a row are not."""
        if self._spike is None or self._quiet > 0:
            self._higher.clear()
            return
        if not self._higher:
            recent = self._recent[-_SHORT:]
            self._usual, self._bar = _median(recent), max(recent) * math.sqrt(self._spike)
            learnt = self._usual < LEARNT * (self._early or 0.0)
            if min(recent) <= 0 or loss < self._spike * self._usual or (learnt and loss < (self._early or 0.0)):
                return
        if loss <= self._bar:
            self._higher.clear()
            return
        self._higher.append((step, loss))
        if len(self._higher) == _STAYS:
            began, first = self._higher[0]
            times, usual = f"{first / self._usual:.3g}", f"{self._usual:.4g}"
            sentence = Message("alarm.loss_stays", loss=f"{first:.4g}", times=times, usual=usual)
            yield "loss_spike", began, sentence, first, self._usual
            self._quiet = 50

    def _rise(self, step: int, loss: float) -> Iterator[LossHit]:
        """The median of the last losses stays above its best value."""
        recent = self._recent[-_HALF:]
        if self._drift is None or len(recent) < _HALF:
            return
        median, distance = _scatter(recent)
        scale = 1.4826 * distance
        if median < self._best:
            self._best, self._best_scale = median, scale
        if loss <= self._best + max(0.1 * abs(self._best), min(scale, 2 * self._best_scale)):
            self._good_until = step
        above = median - self._best
        steps = _median([abs(one - two) for one, two in zip(recent, recent[1:])])  # the scatter, without the trend
        strong = above > max((_STRONG - 1) * abs(self._best), 6 * steps) and above > 0.25 * (self._early or 0.0)
        risen = strong or above > max((self._drift - 1) * abs(self._best), 6 * scale)
        if risen and not self._drifted:
            began = min(self._good_until + 1, step) if self._good_until >= 0 else step
            sentence = Message("alarm.loss_drift", loss=f"{median:.4g}", best=f"{self._best:.4g}")
            yield "loss_drift", began, sentence, median, self._best
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
