"""Rules about what the optimizer does: updates, clipping and its state."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from msprobe.messages import Message
from msprobe.watch.alarms.alarm import OUTSIDE
from msprobe.watch.alarms.frame import Frame
from msprobe.watch.alarms.history import SETTLED, Array, History, Onset, Streak, extended
from msprobe.watch.alarms.rules import Hit, _g, _rows, weight_norm
from msprobe.watch.targets import GRAD, GRAD_BEFORE_CLIP, LEARNING_RATE, MAX, MIN, NORM, RATIO_COLUMN, ZERO

_SHAPE = (NORM, MAX, MIN)
"""Figures that are all multiplied by the same factor if a tensor is."""


class UpdateLarge:
    """Matrices that change by a large part of their norm, or whose norm triples in one step."""

    STEPS = 5
    JUMP = 3.0
    UNEXPLAINED = 20.0
    """So many times the largest usual update: momentum adds up about ten gradients."""

    def __init__(self, threshold: float) -> None:
        self._limit = threshold
        self._streak = Streak()
        self._onset = Onset()
        self._before = np.empty(0)

    def __call__(self, frame: Frame, history: History) -> Iterator[Hit]:
        ratio = frame.column(RATIO_COLUMN)
        known = frame.present & frame.rows.mask("update") & frame.rows.mask("matrix") & (not frame.skipped)
        holds = known & (ratio > self._limit)
        self._streak.update(frame.step, holds, known)
        for row in _rows(self._streak.reaches(self.STEPS, holds)):
            began = int(self._streak.began[row])
            sentence = Message("alarm.update_large", percent=f"{100 * ratio[row]:.3g}%")
            yield Hit("update_large", row, began, sentence, float(ratio[row]), self._limit)
        yield from self._jumps(frame)

    def _jumps(self, frame: Frame) -> Iterator[Hit]:
        norms = frame.column(NORM)
        holds = np.zeros(len(norms), bool)
        old = self._before
        each = np.sqrt(np.maximum(frame.rows.elements(), 1))
        with np.errstate(all="ignore"):
            holds[: len(old)] = norms[: len(old)] / old > self.JUMP
            holds[: len(old)] &= old / each[: len(old)] > 1e-3  # a matrix that starts at zero can grow by any factor
        holds &= frame.rows.mask("weight") & frame.rows.mask("matrix") & frame.present
        for row in _rows(self._onset.of(holds)):
            before, now = float(old[row]), float(norms[row])
            if now - before > self.UNEXPLAINED * _largest_update(frame, row):
                sentence = Message("alarm.weight_outside", before=_g(before), norm=_g(now))
                yield Hit(OUTSIDE, row, frame.step, sentence, now, before)
            else:
                sentence = Message("alarm.weight_jump", before=_g(before), norm=_g(now))
                yield Hit("update_large", row, frame.step, sentence, now, before)
        self._before = norms.copy()


def _largest_update(frame: Frame, row: int) -> float:
    """About the largest norm by which an optimizer changes a weight in one step: the learning rate times the gradient,
    or times one per element (Adam). Infinity if one of them is not known."""
    name = frame.rows.targets[row].name
    norms = [
        float(frame.column(NORM)[other])
        for other, target in enumerate(frame.rows.targets)
        if (target.kind, target.name) == (GRAD, name) and frame.present[other]
    ]
    rate = frame.scalars.get(LEARNING_RATE, np.inf)
    if not norms or not np.isfinite(rate):
        return np.inf
    return rate * max(norms[0], float(np.sqrt(frame.rows.elements()[row])))


class UpdateSmall:
    """Updates that have become much smaller than the learning rate and the gradient explain."""

    def __init__(self, threshold: float) -> None:
        self._limit = np.log10(threshold)
        self._streak = Streak()
        self._usual = History()

    def __call__(self, frame: Frame, history: History) -> Iterator[Hit]:
        rate = frame.scalars.get(LEARNING_RATE, np.nan)
        update = frame.rows.mask("update")
        if not update.any() or not rate > 0 or frame.skipped:
            return
        rows = np.flatnonzero(update)  # from here on, arrays have these rows only; new ones come at the end
        ratios = frame.column(RATIO_COLUMN)[rows]
        with np.errstate(all="ignore"):
            scaled = np.log10(ratios / rate)
        self._usual.grow(len(rows))
        known = frame.present[rows] & frame.rows.mask("matrix")[rows] & ~np.isnan(self._usual.base)
        holds = known & (scaled - self._usual.base < self._limit) & np.isfinite(scaled)
        gradient = frame.rows.partner(GRAD)[rows]
        holds &= ~(history.learnt[gradient] & (gradient >= 0))
        self._streak.update(frame.step, holds, known)
        self._usual.add(frame.step, np.where(np.isfinite(scaled), scaled, np.nan))
        for place in _rows(self._streak.reaches(frame.steps_needed(20), holds)):
            ratio, usual = float(ratios[place]), float(10 ** self._usual.base[place] * rate)
            sentence = Message("alarm.update_small", ratio=_g(ratio), usual=_g(usual))
            yield Hit("update_small", int(rows[place]), int(self._streak.began[place]), sentence, ratio, usual)


class Clipped:
    """Gradients that are clipped to almost nothing."""

    SAME = 1e-4
    LEFT = 1e-3

    def __init__(self, threshold: float) -> None:
        self._limit = threshold
        self._length = 0
        self._began = 0
        self._before = np.nan

    def __call__(self, frame: Frame, history: History) -> Iterator[Hit]:
        norms = frame.column(NORM)
        mask = frame.rows.mask("gradient") & frame.present
        if not mask.any() or frame.skipped:
            return
        total = float(np.sqrt(np.square(norms[mask]).sum()))
        partner = frame.rows.partner(GRAD_BEFORE_CLIP)[mask]
        share = np.nan
        if (partner >= 0).all():
            before = float(np.sqrt(np.square(norms[partner]).sum()))
            share = total / before if before else np.nan
            if _is_power_of_two(share):  # a gradient scaler that the monitor does not know
                share = np.nan
        same = abs(total - self._before) <= self.SAME * total
        weights = weight_norm(frame)
        holds = total > 0 and (share < self.LEFT or (same and weights > 0 and total < self._limit * weights))
        self._length = self._length + 1 if holds else 0
        if self._length == 1:
            self._began = frame.step if share < self.LEFT else max(frame.step - frame.every, 0)
        self._before = total
        if self._length == frame.steps_needed(20):
            sentence = Message("alarm.clipped_before", norm=_g(total), times=_g(share))
            if share != share:
                sentence = Message("alarm.clipped", norm=_g(total), times=_g(total / weights))
            yield Hit("clipped", -1, self._began, sentence, total, share)


class Stale:
    """Gradients that are not set to zero: each backward pass adds to those of earlier steps."""

    def __init__(self, threshold: float) -> None:
        self._steps = int(threshold)
        self._length = 0
        self._began = 0

    def __call__(self, frame: Frame, history: History) -> Iterator[Hit]:
        self._length = self._length + 1 if frame.stale else 0
        if self._length == 1:
            self._began = frame.step
        row = frame.rows.find(GRAD, frame.stale)
        if self._length == self._steps and row is not None:
            norm = float(frame.column(NORM)[row])
            yield Hit("stale", row, self._began, Message("alarm.stale"), norm)


def _is_power_of_two(share: float) -> bool:
    exponent = np.log2(share) if 0 < share < np.inf else np.nan
    return bool(abs(exponent - np.round(exponent)) < 1e-4)


class StateDecay:
    """Optimizer state that becomes zero while gradients do not; a second moment far below the squared gradients; or
    first moments that were reset, so that they contain only the gradient of this step."""

    PATIENCE = 500
    EQUAL = 5e-3
    SEEN = 0.1  # a first moment that was smaller than this part of its norm now would not show in it

    def __init__(self, threshold: float) -> None:
        self._limit = threshold
        self._streak = Streak()
        self._was_fine = np.empty(0, bool)
        self._was_new = True
        self._earlier = np.empty(0)

    def __call__(self, frame: Frame, history: History) -> Iterator[Hit]:
        state = frame.rows.mask("state")
        if not state.any() or frame.skipped:
            return
        yield from self._resets(frame, history)
        gradient = frame.rows.partner(GRAD)
        known = state & frame.present & (gradient >= 0)
        known[known] &= frame.present[gradient[known]]
        norms, zero = frame.column(NORM), frame.column(ZERO)
        square = np.where(known, norms[gradient] ** 2, np.nan)
        with np.errstate(all="ignore"):
            share = norms * np.sqrt(np.maximum(frame.rows.elements(), 1)) / square
        small = frame.rows.mask("second moment") & (share < self._limit) & (square > 0)
        empty = (zero > 0.95) & (np.where(known, zero[gradient], 1) < 0.5)
        fine = self._remember(known & ~small & ~empty) | (history.count >= self.PATIENCE)
        holds = known & (small | empty) & fine
        self._streak.update(frame.step, holds, known)
        for row in _rows(self._streak.reaches(frame.steps_needed(20), holds)):
            began = int(self._streak.began[row])
            if empty[row]:
                sentence = Message("alarm.state_zero", percent=f"{100 * zero[row]:.3g}%")
            else:
                sentence = Message("alarm.state_decay", norm=_g(norms[row]), times=_g(share[row]))
            yield Hit("state_decay", row, began, sentence, float(norms[row]), float(share[row]))

    def _resets(self, frame: Frame, history: History) -> Iterator[Hit]:
        gradient = frame.rows.partner(GRAD)
        known = frame.rows.mask("first moment") & frame.rows.mask("matrix") & frame.present & (gradient >= 0)
        norms, earlier = frame.column(NORM), extended(self._earlier, len(known), np.nan)
        self._earlier = norms.copy()
        rows = np.flatnonzero(known & (history.count >= SETTLED) & (earlier > self.SEEN * norms))
        if not len(rows):
            return
        with np.errstate(all="ignore"):
            ratios = frame.figures[rows][:, _SHAPE] / frame.figures[gradient[rows]][:, _SHAPE]
            same = np.ptp(ratios, axis=1) < self.EQUAL * np.abs(ratios[:, 0])
        is_new = bool(same.sum() > 0.5 * known.sum())
        for place in _rows(same if is_new and not self._was_new else np.zeros(0, bool)):
            share = float(ratios[place, 0])
            sentence = Message("alarm.state_reset", times=_g(share))
            yield Hit("state_decay", int(rows[place]), frame.step, sentence, float(norms[rows[place]]), share)
        self._was_new = is_new

    def _remember(self, fine: Array) -> Array:
        """Which states have reached their normal value: they begin at zero and need a while."""
        self._was_fine = extended(self._was_fine, len(fine), False) | fine
        return self._was_fine
