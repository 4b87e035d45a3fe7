"""Rules about low-precision health: attention logits, massive activations, scales and noise of quantised tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import numpy as np

from msprobe.messages import Message
from msprobe.watch.alarms.frame import Frame, Rows
from msprobe.watch.alarms.history import SETTLED, Array, History, Onset, Streak, extended
from msprobe.watch.alarms.loss_rules import LossHit
from msprobe.watch.alarms.rules import Hit, _g, _rows
from msprobe.watch.targets import (
    BOUND_COLUMN,
    GRAD_LOCAL,
    GRADIENT_ROLE,
    INPUT_ROLE,
    MAX,
    MEDIAN_COLUMN,
    NORM,
    ROWS_COLUMN,
    SCALE,
    SNR_COLUMN,
    WEIGHT_ROLE,
    format_of,
)


class LogitGrowth:
    """The largest attention logit of a head is large, and has grown: its softmax soon sees one token only.

    A trained model may have large logits from the start, and those are no alarm.
    """

    GROWN = 4.0
    EARLY = 3
    """So many values are early ones."""
    STAYS = 2

    def __init__(self, threshold: float) -> None:
        self._limit = threshold
        self._streak = Streak()
        self._exact = np.empty(0, bool)  # heads with an exact maximum at some step
        self._count = np.empty(0, np.int64)
        self._early = np.empty(0)

    def __call__(self, frame: Frame, history: History) -> Iterator[Hit]:
        heads = frame.rows.mask("logits") & frame.present
        if not heads.any():
            return
        rows, exact = len(heads), frame.column(MAX)
        self._exact = extended(self._exact, rows, False) | (heads & ~np.isnan(exact))
        self._count, self._early = extended(self._count, rows, 0), extended(self._early, rows, 0.0)
        value = np.where(self._exact, exact, frame.column(BOUND_COLUMN))
        known = heads & ~np.isnan(value)
        young = known & (self._count < self.EARLY)
        self._early[young] = np.fmax(self._early[young], value[young])
        self._count[known] += 1
        holds = known & ~young & (value > self._limit) & (value > self.GROWN * self._early)
        self._streak.update(frame.step, holds, known)
        for row in _rows(self._streak.reaches(self.STAYS, holds)):
            now, early = float(value[row]), float(self._early[row])
            id = "alarm.logit_growth" if self._exact[row] else "alarm.logit_bound"
            sentence = Message(id, logit=_g(now), early=_g(early))
            yield Hit("logit_growth", row, int(self._streak.began[row]), sentence, now, early)


class MassiveActivation:
    """A few activations are far above all others of their tensor, and were not at first.

    Low-precision blocks with one of them lose their other elements. Pretrained models may have them from the start.
    """

    LEAST = 100.0
    """Sun et al. 2024 (arXiv 2402.17762) count magnitudes above 100 and about 1,000 times the median."""
    STAYS = 5

    def __init__(self, threshold: float) -> None:
        self._ratio = threshold
        self._streak = Streak()
        self._usual = np.empty(0, bool)  # it had them in early steps
        self._count = np.empty(0, np.int64)

    def __call__(self, frame: Frame, history: History) -> Iterator[Hit]:
        known = frame.rows.mask("outliers") & frame.present
        if not known.any():
            return
        ratio, largest = frame.column(NORM), frame.column(MAX)
        self._usual, self._count = extended(self._usual, len(known), False), extended(self._count, len(known), 0)
        massive = known & (ratio > self._ratio) & (largest > self.LEAST)
        young = known & (self._count < self.STAYS)
        self._usual |= massive & young
        self._count[known] += 1
        holds = massive & ~self._usual
        self._streak.update(frame.step, holds, known)
        for row in _rows(self._streak.reaches(frame.steps_needed(self.STAYS), holds)):
            now, median = float(largest[row]), float(frame.column(MEDIAN_COLUMN)[row])
            sentence = Message("alarm.massive", largest=_g(now), times=_g(ratio[row]), median=_g(median))
            yield Hit("massive_activation", row, int(self._streak.began[row]), sentence, float(ratio[row]), self._ratio)


class ScaleJump:
    """The largest magnitude of a quantised tensor, and so its scale, jumps far above all before it.

    A scale that follows earlier steps (delayed scaling) saturates in such a step.
    """

    def __init__(self, threshold: float) -> None:
        self._factor = threshold
        self._onset = Onset()
        self._most = np.empty(0)
        self._count = np.empty(0, np.int64)

    def __call__(self, frame: Frame, history: History) -> Iterator[Hit]:
        known = frame.rows.mask("quantised") & frame.present
        if not known.any():
            return
        if frame.skipped:
            known &= ~frame.rows.mask("quantised gradient")
        now = frame.column(MAX)
        self._most, self._count = extended(self._most, len(now), 0.0), extended(self._count, len(now), 0)
        holds = known & (self._count >= SETTLED) & (self._most > 0) & (now > self._factor * self._most)
        for row in _rows(self._onset.of(holds)):
            most = float(self._most[row])
            sentence = Message("alarm.scale_jump", largest=_g(now[row]), times=_g(now[row] / most))
            yield Hit("scale_jump", row, frame.step, sentence, float(now[row]), most)
        finite = known & np.isfinite(now)
        self._most[finite] = np.maximum(self._most[finite], now[finite])
        self._count[known] += 1


class NoiseFloor:
    """The gradient of a weight is below so many times the noise that quantising its two factors adds to it.

    Chmiel et al. 2025 (arXiv 2505.19115): below about sqrt(3) times the noise, quantised training becomes less
    effective. The gradient is a product of the gradient of the output and the input. Rounding errors are independent of
    each other, so an error of norm e in one factor adds e times the norm of the other over the square root of the
    number of rows.
    """

    STAYS = 3

    def __init__(self, threshold: float) -> None:
        self._factor = threshold
        self._streak = Streak()
        self._rows = 0
        self._places: Array = np.empty((0, 3), np.int64)

    def __call__(self, frame: Frame, history: History) -> Iterator[Hit]:
        if len(frame.rows) != self._rows:
            self._rows, self._places = len(frame.rows), _products(frame.rows)
        places = self._places[frame.present[self._places].all(axis=1)] if len(self._places) else self._places
        if not len(places) or frame.skipped:
            return
        weight, input_, gradient = places.T
        norms, snr = frame.column(NORM), frame.column(SNR_COLUMN)
        error = 10 ** (-snr / 20)
        count = np.maximum(frame.column(ROWS_COLUMN)[input_], 1)
        noise = norms[input_] * norms[gradient] * np.hypot(error[input_], error[gradient]) / np.sqrt(count)
        holds, known = np.zeros(self._rows, bool), np.zeros(self._rows, bool)
        known[gradient] = True
        holds[gradient] = (norms[weight] < self._factor * noise) & np.isfinite(noise)
        self._streak.update(frame.step, holds, known)
        reached = self._streak.reaches(self.STAYS, holds)
        for place in np.flatnonzero(reached[gradient]).tolist():
            row, of_weight, of_noise = int(gradient[place]), float(norms[weight[place]]), float(noise[place])
            factor = f"{self._factor:.3g}"
            sentence = Message("alarm.noise_floor", norm=_g(of_weight), noise=_g(of_noise), factor=factor)
            yield Hit("noise_floor", row, int(self._streak.began[row]), sentence, of_weight, of_noise)


def _products(rows: Rows) -> Array:
    """For each module and format: the rows of the weight's gradient, of the input and of the output's gradient."""
    found = []
    for place, target in enumerate(rows.targets):
        module, _, role = target.name.rpartition(".")
        if not format_of(target.kind) or role != GRADIENT_ROLE:
            continue
        input_ = rows.find(target.kind, f"{module}.{INPUT_ROLE}" if module else INPUT_ROLE)
        weight = rows.find(GRAD_LOCAL, f"{module}.{WEIGHT_ROLE}" if module else WEIGHT_ROLE)
        if input_ is not None and weight is not None:
            found.append((weight, input_, place))
    return np.array(found, np.int64).reshape(-1, 3)


class LossScale:
    """The scale of a gradient scaler collapses: gradients overflow at every scale, and steps are skipped.

    A scaler begins with a large scale and halves it until the gradients fit: this is usual in the first steps.
    """

    FALL = 2.0**8
    WITHIN = 64

    def __init__(self, threshold: Optional[float]) -> None:
        self._least = threshold
        self._recent: list[tuple[int, float]] = []
        self._seen = 0
        self._quiet = False

    def look(self, frame: Frame) -> Iterator[LossHit]:
        """Yields the rule, the step at which it began, the sentence, the value and the usual value."""
        scale = frame.scalars.get(SCALE)
        if self._least is None or scale is None:
            return
        settled = self._recent[max(0, SETTLED - self._seen + len(self._recent)) :]
        most = max((one for _, one in settled), default=scale)
        collapsed = scale < self._least or scale <= most / self.FALL
        if collapsed and not self._quiet:
            usual = max([scale, *(one for _, one in self._recent)])
            after = [step for step, one in self._recent if one == usual][-1:] or [frame.step - frame.every]
            began = after[0] + frame.every
            sentence = Message("alarm.loss_scale", scale=_g(scale), before=_g(usual))
            yield "loss_scale", began, sentence, scale, usual
        self._quiet = collapsed
        self._seen += 1
        self._recent.append((frame.step, scale))
        del self._recent[: -self.WITHIN]
