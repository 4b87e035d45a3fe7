"""Runs all rules on the frame of a step and returns the alarms, in the order in which a step produces them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Callable, Optional

from msprobe.messages import Message
from msprobe.watch.alarms import health_rules, optimizer_rules, rules, weight_rules
from msprobe.watch.alarms.alarm import Alarm
from msprobe.watch.alarms.frame import Frame
from msprobe.watch.alarms.history import History
from msprobe.watch.alarms.loss_rules import LossRules
from msprobe.watch.alarms.rules import DEFAULTS, Check, Hit
from msprobe.watch.targets import GRAD, LOSS, SCALAR, SCALE, WEIGHT, format_of, is_state, order_of

MOST_A_RULE = 20
"""How many alarms of one rule are kept at one step; the first says how many more there are."""

_MAKERS: dict[str, Callable[[float], Check]] = {
    "nan": rules.NotFinite,
    "spike": rules.Spike,
    "drift": rules.Drift,
    "vanishing": rules.Vanishing,
    "zero": rules.Zero,
    "dead": rules.Dead,
    "frozen": weight_rules.Frozen,
    "weight_decay": weight_rules.WeightDecay,
    "saturation": rules.make_saturation,
    "underflow": rules.make_underflow,
    "scale_jump": health_rules.ScaleJump,
    "noise_floor": health_rules.NoiseFloor,
    "logit_growth": health_rules.LogitGrowth,
    "massive_activation": health_rules.MassiveActivation,
    "update_large": optimizer_rules.UpdateLarge,
    "update_small": optimizer_rules.UpdateSmall,
    "clipped": optimizer_rules.Clipped,
    "stale": optimizer_rules.Stale,
    "state_decay": optimizer_rules.StateDecay,
}


def threshold(settings: Mapping[str, Any], rule: str) -> Optional[float]:
    """The threshold of a rule; None if the rule is off."""
    given = settings.get(rule, True)
    if given is False:
        return None
    return float(DEFAULTS[rule] if given is True else given)


class Detector:
    """Checks every watched step of one rank."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        limits = {name: threshold(settings, name) for name in DEFAULTS}
        self._checks = [make(limit) for name, make in _MAKERS.items() if (limit := limits[name]) is not None]
        self._names_nan = limits["nan"] is not None
        self._loss = LossRules(limits["loss_spike"], limits["loss_drift"])
        self._scale = health_rules.LossScale(limits["loss_scale"])
        self._history = History()

    def look(self, frame: Frame) -> list[Alarm]:
        history = self._history
        history.grow(len(frame.rows))
        alarms: list[Alarm] = []
        for check in self._checks:
            hits = sorted(check(frame, history), key=lambda hit: _order(frame, hit))
            alarms += [
                _alarm(frame, history, hit, len(hits) - 1 if place == 0 else 0)
                for place, hit in enumerate(hits[:MOST_A_RULE])
            ]
        alarms += self._of_scalars(frame)
        history.add(frame.step, frame.logs())
        return sorted(alarms, key=lambda alarm: alarm.order)

    def _of_scalars(self, frame: Frame) -> Iterator[Alarm]:
        loss = frame.scalars.get(LOSS)
        if loss is not None:
            for rule, began, what, value, usual in self._loss.look(frame.step, loss, self._names_nan):
                sentence = Message("alarm.at", step=began, target=Message("target.loss"), what=what)
                yield Alarm(began, rule, SCALAR, LOSS, sentence, value, usual)
        for rule, began, what, value, usual in self._scale.look(frame):
            sentence = Message("alarm.from", step=began, target=Message("target.loss_scale"), what=what)
            yield Alarm(began, rule, SCALAR, SCALE, sentence, value, usual)


def _order(frame: Frame, hit: Hit) -> tuple[int, int, int]:
    if hit.row < 0:
        return hit.began, -1, 0
    target = frame.rows.targets[hit.row]
    return (hit.began, *order_of(target.kind, target.name, target.position))


_KINDS = {
    "grad": "target.grad",
    "grad_local": "target.grad_local",
    "grad_before_clip": "target.grad_before_clip",
    "update": "target.update",
    "input": "target.input",
    "output": "target.output",
    "input_grad": "target.input_grad",
    "output_grad": "target.output_grad",
    "attention_logits": "target.attention_logits",
    "outliers": "target.output",
}


def in_words(kind: str, name: str) -> str:
    """A target as part of a sentence."""
    if is_state(kind):
        return Message("target.state", state=kind[len("state.") :], name=name)
    form = format_of(kind)
    if form:
        module, _, role = name.rpartition(".")
        if role == "weight":
            return Message("target.in_format", target=f"{module}.weight", form=form)
        return Message("target.in_format", target=_of(_KINDS[role], module), form=form)
    return _of("" if kind == WEIGHT else _KINDS[kind], name)


def _of(id: str, name: str) -> str:
    of = name or Message("target.model")
    return Message(id, name=of) if id else of


def _alarm(frame: Frame, history: History, hit: Hit, more: int) -> Alarm:
    what = Message("alarm.and_more", what=hit.sentence, number=more) if more else hit.sentence
    if hit.row < 0:
        sentence = Message("alarm.from", step=hit.began, target=Message("target.gradients"), what=what)
        return Alarm(hit.began, hit.rule, GRAD, "*", sentence, hit.value, hit.usual)
    target = frame.rows.targets[hit.row]
    id = "alarm.at" if hit.began == frame.step else "alarm.from"
    sentence = Message(id, step=hit.began, target=in_words(target.kind, target.name), what=what)
    around = history.around(hit.row)
    norm = float(frame.figures[hit.row, 0])
    return Alarm(
        hit.began,
        hit.rule,
        target.kind,
        target.name,
        sentence,
        hit.value,
        hit.usual,
        (*around, (frame.step, norm)),
        target.position,
    )
