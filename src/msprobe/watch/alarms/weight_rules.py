"""Rules about weights that stopped changing, and weights that shrink."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from msprobe.messages import Message
from msprobe.watch.alarms.frame import Frame
from msprobe.watch.alarms.history import History, Onset, Streak, extended, middle
from msprobe.watch.alarms.rules import Hit, _g, _rows
from msprobe.watch.targets import GRAD, MAX, MEAN, NORM


class Frozen:
    """A trainable weight that does not change at all while the learning rate is above zero.

    A vector with a gradient is ignored: the gradient of a bias before a normalization is only rounding.
    """

    def __init__(self, threshold: float) -> None:
        self._steps = int(threshold)
        self._streak = Streak()
        self._before = np.empty((0, 3))

    def __call__(self, frame: Frame, history: History) -> Iterator[Hit]:
        now = frame.figures[:, (NORM, MAX, MEAN)]
        known = frame.present & frame.rows.mask("weight") & (not frame.skipped)
        same = np.zeros(len(now), bool)
        same[: len(self._before)] = (now[: len(self._before)] == self._before).all(axis=1)
        self._before = now
        gradients = frame.rows.partner(GRAD)
        matrix = frame.rows.mask("matrix")
        for row in _rows(known & same):
            name = frame.rows.targets[row].name
            without = gradients[row] < 0 or not frame.present[gradients[row]]
            same[row] = name in frame.trainable and name not in frame.idle and (matrix[row] or without)
        self._streak.update(frame.step, same, known)
        needed = frame.steps_needed(self._steps)
        for row in _rows(self._streak.reaches(needed, same & known)):
            gradient = gradients[row]
            began = int(self._streak.began[row])
            alone = gradient < 0 or not frame.present[gradient]
            sentence = Message("alarm.frozen_no_gradient" if alone else "alarm.frozen", step=began, steps=needed)
            yield Hit("frozen", row, began, sentence, float(now[row, 0]), float(now[row, 0]))


class WeightDecay:
    """A matrix that shrinks by the given factor within 500 steps, and most others shrink too.

    One matrix alone may shrink in a healthy training; decay is the same for all.
    """

    WITHIN = 500
    NEAR = 0.02

    def __init__(self, threshold: float) -> None:
        self._limit = math.log10(threshold)
        self._onset = Onset()
        self._peak = np.empty(0)
        self._peak_at = np.empty(0, np.int64)
        self._near_at = np.empty(0, np.int64)

    def __call__(self, frame: Frame, history: History) -> Iterator[Hit]:
        logs = frame.logs()
        self._peak = extended(self._peak, len(logs), -np.inf)
        self._peak_at = extended(self._peak_at, len(logs), 0)
        self._near_at = extended(self._near_at, len(logs), 0)
        higher = (logs >= self._peak) | (frame.step - self._peak_at > self.WITHIN)
        self._peak[higher] = logs[higher]
        self._peak_at[higher] = frame.step
        self._near_at[logs >= self._peak - self.NEAR] = frame.step
        matrices = frame.rows.mask("weight") & frame.rows.mask("matrix") & frame.present
        fall = np.where(matrices, self._peak - logs, np.nan)
        if not matrices.any() or not float(middle(fall[None])[0]) > self._limit / 2:
            return
        holds = fall > self._limit
        for row in _rows(self._onset.of(holds)):
            norm, peak = 10 ** logs[row], 10 ** self._peak[row]
            last = int(self._near_at[row])
            values = [*history.last(row), (frame.step, float(logs[row]))]
            began = max(min(last + frame.every, frame.step), _steepened(values))
            sentence = Message("alarm.weight_decay", norm=_g(norm), before=_g(peak), step=last)
            yield Hit("weight_decay", row, began, sentence, norm, peak)


def _steepened(values: Sequence[tuple[int, float]], recent: int = 8) -> int:
    """The first step from which a curve has fallen as steeply as now; -1 if it came before these values."""
    falls = [before[1] - after[1] for before, after in zip(values, values[1:])]
    now = sum(falls[-recent:]) / max(len(falls[-recent:]), 1)
    for place in range(len(falls) - 1, -1, -1):
        if falls[place] < 0.5 * now:
            return values[min(place + 2, len(values) - 1)][0]
    return -1
