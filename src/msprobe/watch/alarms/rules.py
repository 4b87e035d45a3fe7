"""The alarm rules: each compares a frame with the usual values and yields what is wrong.

A rule has one threshold, which the configuration can change; False switches it off. A rule whose condition must hold
for a while gives the step at which the condition began, not the step at which it was certain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np

from msprobe.messages import Message
from msprobe.watch.alarms.frame import Frame
from msprobe.watch.alarms.history import Array, History, Onset, Streak, extended, middle
from msprobe.watch.targets import GRADIENT_KINDS, INF, MAX, NAN, NORM, SATURATION, UNDERFLOW, ZERO, format_of

DEFAULTS: dict[str, Any] = {
    "nan": True,
    "spike": 10.0,
    "drift": 1000.0,
    "vanishing": 1e4,
    "zero": 20,
    "dead": 0.9,
    "frozen": 20,
    "update_large": 0.5,
    "update_small": 1e-3,
    "weight_decay": 2.0,
    "state_decay": 5e-3,
    "clipped": 1e-5,
    "stale": 5,
    "saturation": 0.01,
    "underflow": 0.5,
    "scale_jump": 32.0,
    "noise_floor": math.sqrt(3),
    "logit_growth": 100.0,
    "massive_activation": 1000.0,
    "loss_scale": 1.0,
    "loss_spike": 2.0,
    "loss_drift": 1.5,
    "ranks": 1e-5,
}
"""Rules and their thresholds; docs/watch.md explains each number."""


def without_any() -> dict[str, bool]:
    return dict.fromkeys(DEFAULTS, False)


@dataclass(frozen=True)
class Hit:
    """A rule and the row at which it fired; row -1 means all gradients together."""

    rule: str
    row: int
    began: int
    sentence: Message
    value: float
    usual: float = math.nan


Check = Callable[[Frame, History], Iterator[Hit]]


def _g(value: float) -> str:
    return f"{value:.4g}"


def _rows(mask: Array) -> Iterator[int]:
    return iter(np.flatnonzero(mask).tolist()) if mask.any() else iter(())


def _count_bad(nan: float, inf: float) -> Message:
    """`3 NaN and 1 infinity`."""
    if not inf:
        return Message("count.nan", nan=int(nan))
    infinities = Message("count.infinity", number=int(inf))
    return Message("count.both", nan=int(nan), infinities=infinities) if nan else infinities


class NotFinite:
    """NaN or infinity. Masks have -inf, so only NaN and +inf count in module inputs and outputs."""

    def __init__(self, threshold: float) -> None:
        self._onset = Onset()

    def __call__(self, frame: Frame, history: History) -> Iterator[Hit]:
        nan, inf = frame.column(NAN), frame.column(INF)
        module = frame.rows.mask("module")
        bad = (nan > 0) | ((inf > 0) & (~module | (frame.column(MAX) == np.inf)))
        if frame.skipped:
            bad &= ~frame.rows.mask("any gradient")
        for row in _rows(self._onset.of(bad)):
            usual = 10 ** history.median[row]
            bad_ones = _count_bad(nan[row], inf[row])
            sentence = Message("alarm.nan", bad=bad_ones)
            if usual == usual:
                sentence = Message("alarm.nan_usual", bad=bad_ones, usual=_g(usual))
            yield Hit("nan", row, frame.step, sentence, float(nan[row] + inf[row]), usual)


class Spike:
    """A norm far above all earlier values, measured by its own scatter.

    Once a model has learnt its data, gradients are tiny, and each hard sample makes them jump: such a norm must reach
    100 times its highest usual value. A gradient that is only rounding errors jumps too, and is harmless.

    A gradient can be a sum, as that of an embedding that is also the head: a steady part hides how much the other part
    scatters, until that part outgrows it. So a jump is no spike if a gradient of the same kind, as large in this step,
    jumps at least as much and has done so before.
    """

    SCALES = 10
    NOTHING = 1e-6
    AS_LARGE = 0.5

    def __init__(self, threshold: float) -> None:
        self._least = math.log10(threshold)
        self._onset = Onset()
        self._jumped = np.empty(0)  # the largest jump of each row that was no spike

    def __call__(self, frame: Frame, history: History) -> Iterator[Hit]:
        logs = frame.logs()
        above = logs - history.median
        high = above > self._least
        if not high.any():  # the usual case, at little cost
            self._onset.of(high)
            return
        least = np.where(frame.rows.mask("second moment"), 2 * self._least, self._least)  # it has squares
        limit = np.maximum(least, self.SCALES * history.scale)
        holds = (above > limit) & (logs > history.top + self._least / 2) & history.settled
        holds &= frame.rows.mask("spiking") & ~(logs < history.base - 1)  # far below early steps it is harmless
        holds &= ~(history.learnt & (logs < history.peak + 2 * least))
        if frame.skipped:
            holds &= ~frame.rows.mask("any gradient")
        if holds.any():
            gradient = frame.rows.mask("any gradient")
            largest = np.nanmax(np.where(gradient, logs, np.nan), initial=-np.inf)
            holds &= ~gradient | (logs > largest + math.log10(self.NOTHING))
        self._jumped = extended(self._jumped, len(logs), np.nan)
        for row in np.flatnonzero(holds):
            holds[row] = not self._is_shared(frame, int(row), above, holds)
        self._jumped = np.where(high & ~holds & history.settled, np.fmax(self._jumped, above), self._jumped)
        for row in _rows(self._onset.of(holds)):
            norm, usual = 10 ** logs[row], 10 ** history.median[row]
            sentence = Message("alarm.spike", norm=_g(norm), times=_g(norm / usual), usual=_g(usual))
            yield Hit("spike", row, frame.step, sentence, norm, usual)

    def _is_shared(self, frame: Frame, row: int, above: Array, holds: Array) -> bool:
        """Whether the jump of a gradient is also that of one for which it is usual."""
        kind = frame.rows.targets[row].kind
        if kind not in GRADIENT_KINDS:
            return False
        with np.errstate(invalid="ignore"):
            usual = ~holds & (above >= above[row]) & (above <= self._jumped)
            usual &= frame.column(NORM) >= self.AS_LARGE * frame.figures[row, NORM]
        return any(frame.rows.targets[other].kind == kind for other in _rows(usual))


class Drift:
    """The usual norm itself has moved far away from its early value.

    A gradient that begins tiny and catches up with the others is healthy: the norm must stand out from its kind, or
    the kind must have grown with it.
    """

    STANDS_OUT = 10.0

    def __init__(self, threshold: float) -> None:
        self._limit = math.log10(threshold)
        self._onset = Onset()

    def __call__(self, frame: Frame, history: History) -> Iterator[Hit]:
        holds = (history.median - history.base > self._limit) & frame.present
        holds &= ~frame.rows.mask("update") & ~frame.rows.mask("state") & ~frame.rows.mask("health")
        for row in _rows(self._onset.of(holds)):
            if not self._matters(frame, history, row):
                continue
            now, base = 10 ** history.median[row], 10 ** history.base[row]
            level = 0.75 * history.median[row] + 0.25 * history.base[row]
            began = max(_after(history, row, frame), _crossed(history.last(row), level))
            sentence = Message("alarm.drift", norm=_g(now), times=_g(now / base), early=_g(base))
            yield Hit("drift", row, began, sentence, now, base)

    def _matters(self, frame: Frame, history: History, row: int) -> bool:
        kind = frame.rows.targets[row].kind
        same = [other for other, target in enumerate(frame.rows.targets) if target.kind == kind]
        grown = (history.median - history.base)[same]
        sizes = (history.median - frame.rows.root_logs())[same]
        mine = sizes[same.index(row)]
        usual = (float(middle(values[None])[0]) for values in (grown, sizes))
        return next(usual) > self._limit / 2 or mine - next(usual) > math.log10(self.STANDS_OUT)


class Vanishing:
    """A gradient that shrinks while the others do not, or whose elements are far smaller than those of others; or all
    gradients that fall within one step and stay there."""

    APART = 1e-6
    FALL = math.log10(30)

    def __init__(self, threshold: float) -> None:
        self._limit = math.log10(threshold)
        self._streak = Streak()
        self._before = np.empty(0)
        self._level = np.empty(0)
        self._fallen = 0
        self._fell_at = 0

    def __call__(self, frame: Frame, history: History) -> Iterator[Hit]:
        gradient = frame.rows.mask("gradient") & frame.rows.mask("matrix")
        logs = frame.logs()
        drop = history.base - logs
        known = gradient & frame.present & ~np.isnan(logs)
        if not known.any() or frame.skipped:
            return
        yield from self._all_fall(frame, history, known)
        size = logs - frame.rows.root_logs()
        sizes = size[known]
        if not (drop[known] > self._limit).any() and not sizes.max() - sizes.min() > -math.log10(self.APART):
            self._streak.update(frame.step, np.zeros(len(known), bool), known)  # the usual case, at little cost
            return
        others_drop, others_size = (float(middle(values[None, known])[0]) for values in (drop, size))
        alone = (drop > self._limit) & (drop - others_drop > self._limit - 1)
        apart = size - others_size < math.log10(self.APART)
        holds = known & (alone | apart)
        self._streak.update(frame.step, holds, known)
        for row in _rows(self._streak.reaches(frame.steps_needed(20), holds)):
            norm = 10 ** logs[row]
            if apart[row]:
                usual = float(10 ** (others_size - size[row]) * norm)
                sentence = Message("alarm.vanishing_apart", norm=_g(norm), times=_g(usual / norm))
            else:
                usual = 10 ** history.base[row]
                sentence = Message("alarm.vanishing", norm=_g(norm), times=_g(usual / norm), early=_g(usual))
            yield Hit("vanishing", row, int(self._streak.began[row]), sentence, norm, usual)

    def _all_fall(self, frame: Frame, history: History, known: Array) -> Iterator[Hit]:
        """If a training converges fast, gradients fall step by step. A fall from one outlier to the usual value does
        not count."""
        logs, before = frame.logs(), extended(self._before, len(known), np.nan)
        self._before = logs
        if not self._fallen:
            falls = (before - logs)[known & history.settled]
            if not (falls > self.FALL).any() or not float(middle(falls[None])[0]) > self.FALL:
                return
            known = known & history.settled
            self._level, self._fell_at = history.median.copy(), frame.step
        fall = float(middle((extended(self._level, len(known), np.nan) - logs)[None, known])[0])
        self._fallen = self._fallen + 1 if fall > self.FALL / 2 else 0
        if self._fallen == frame.steps_needed(20):
            sentence = Message("alarm.vanishing_all", times=_g(10**-fall))
            yield Hit("vanishing", -1, self._fell_at, sentence, 10**-fall, 1.0)


class Zero:
    """A gradient or an output that is exactly zero everywhere for many steps."""

    def __init__(self, threshold: float) -> None:
        self._steps = int(threshold)
        self._streak = Streak()

    def __call__(self, frame: Frame, history: History) -> Iterator[Hit]:
        kinds = frame.rows.mask("gradient") | frame.rows.mask("output")
        known = frame.present & kinds
        if frame.skipped:
            return
        holds = known & (frame.column(ZERO) == 1)
        self._streak.update(frame.step, holds, known)
        needed = frame.steps_needed(self._steps)
        for row in _rows(self._streak.reaches(needed, holds)):
            usual = 10 ** history.median[row]
            began = int(self._streak.began[row])
            yield Hit("zero", row, began, Message("alarm.zero", step=began, steps=needed), 0.0, usual)


class Dead:
    """Most of a gradient has become exactly zero: units that no longer learn. In a stack of matrices, one of them."""

    def __init__(self, threshold: float) -> None:
        self._share = threshold
        self._streak = Streak()
        self._usual = np.empty(0)

    def __call__(self, frame: Frame, history: History) -> Iterator[Hit]:
        share = frame.column(ZERO)
        known = frame.present & frame.rows.mask("gradient") & (not frame.skipped)
        self._usual = extended(self._usual, len(share), np.nan)
        early = known & (history.count < 20)
        self._usual[early] = np.fmax(self._usual[early], share[early])
        parts = frame.rows.parts()
        holds = known & (share >= self._share * parts) & (share < 1) & (self._usual < 0.5 * parts)
        self._streak.update(frame.step, holds, known)
        for row in _rows(self._streak.reaches(frame.steps_needed(20), holds)):
            value, usual = float(share[row]), float(self._usual[row])
            sentence = Message("alarm.dead", percent=f"{100 * value:.3g}%", early=f"{100 * usual:.3g}%")
            yield Hit("dead", row, int(self._streak.began[row]), sentence, value, usual)


def _crossed(values: Sequence[tuple[int, float]], level: float) -> int:
    """The first step from which all values are above a level; -1 if it came before these values."""
    for place in range(len(values) - 1, -1, -1):
        if values[place][1] < level:
            return values[min(place + 1, len(values) - 1)][0]
    return -1


_OUTSIDE = {
    "underflow": ("alarm.underflow", "alarm.underflow_dtype"),
    "saturation": ("alarm.saturation", "alarm.saturation_dtype"),
}
"""The sentence for a target that names its format, and for one that does not."""


class Share:
    """Too many elements outside the range of the low-precision dtype."""

    def __init__(self, name: str, statistic: int, steps: int, threshold: float) -> None:
        self._name, self._statistic, self._steps, self._share = name, statistic, steps, threshold
        self._streak = Streak()

    def __call__(self, frame: Frame, history: History) -> Iterator[Hit]:
        share = frame.column(self._statistic)
        known = frame.present & ~np.isnan(share) & ~frame.rows.mask("state") & ~frame.rows.mask("weight")
        if self._statistic == SATURATION:
            known &= frame.rows.mask("cast")  # a scale of this step's own maximum leaves nothing far outside
        holds = known & (share > self._share)
        self._streak.update(frame.step, holds, known)
        needed = frame.steps_needed(self._steps) if self._steps > 1 else 1
        for row in _rows(self._streak.reaches(needed, holds)):
            with_format, without = _OUTSIDE[self._name]
            id = with_format if format_of(frame.rows.targets[row].kind) else without
            sentence = Message(id, percent=f"{100 * share[row]:.3g}%")
            yield Hit(self._name, row, int(self._streak.began[row]), sentence, float(share[row]), self._share)


def _after(history: History, row: int, frame: Frame) -> int:
    """The first watched step after the last one that was still normal."""
    last = int(history.normal_until[row])
    return frame.step if last < 0 else min(last + frame.every, frame.step)


def weight_norm(frame: Frame) -> float:
    mask = frame.rows.mask("weight") & frame.present
    return float(np.sqrt(np.square(frame.column(NORM)[mask]).sum()))


def make_underflow(threshold: float) -> Check:
    return Share("underflow", UNDERFLOW, 20, threshold)


def make_saturation(threshold: float) -> Check:
    return Share("saturation", SATURATION, 1, threshold)
