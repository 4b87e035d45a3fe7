"""What the two training loops did differently: optimizers, clipping, loss scaling, clearing of gradients.

When collecting, msprobe writes what happened between start() and stop() to training.json. The answer names a difference
there directly ("AdamW: lr is 0.0011, not 0.001"), not the first call of the optimizer that shows it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from msprobe.compare.measure.distance import number
from msprobe.compare.origin.optimizer_steps import innermost_steps
from msprobe.compare.origin.parameter_groups import (
    UNIMPORTANT,
    are_divided_otherwise,
    listed,
    other_names,
    other_setting,
    settings_by_parameter,
    shown,
)
from msprobe.compare.origin.source import Lines, line_of
from msprobe.compare.phases import Phase
from msprobe.compare.reasons import SIDES
from msprobe.messages import Message

Event = Mapping[str, Any]

_SHOWN = {
    "zero_grad": ("backward",),
    "parts": ("backward",),
    "clipping": ("clip_grad_norm", "clip_grad_value"),
    "loss scale": ("scaler_step",),
    "schedule": (),
}
"""The events whose lines show a kind of difference; the others show in the step of the optimizer."""

_ROUNDED = 1e-4
"""How far apart the norms of all gradients may be in two runs and still count as the same."""
_HIDDEN = 0.05
"""How far apart these norms are at least, if the gradients before clipping differ by more than noise."""
_ORDER = ("lr", "betas", "eps", "weight_decay", "momentum")


class TrainingDifference(NamedTuple):
    """`phase` is where it acts, `after` the record (of the target) that it follows."""

    sentence: Message
    phase: Phase
    kind: str
    after: Optional[str] = None
    note_only: bool = False
    proven: bool = False
    """Whether the events alone show its effect, without records of calls."""
    lines: Lines = (None, None)
    """The lines of the two scripts that do it; None where a run does not."""


def training_differences(target: Sequence[Event], golden: Sequence[Event]) -> list[TrainingDifference]:
    """The differences in the order of the step; empty if a run has no such record."""
    if not target or not golden:
        return []
    found = [
        *_clearing(target, golden),
        *_clipping(target, golden),
        *_clipped_late(target, golden),
        *_scaling(target, golden),
        *_steps(target, golden),
        *_parts(target, golden),
    ]
    return [one._replace(lines=(_line(target, one.kind), _line(golden, one.kind))) for one in found]


def _line(events: Sequence[Event], kind: str) -> Optional[str]:
    shown = _of(events, *_SHOWN.get(kind, ("optimizer_step",)))
    place = shown[0].get("at") if shown else None
    return line_of(place) if isinstance(place, str) else None


def takes_other_parts(target: Sequence[Event], golden: Sequence[Event]) -> bool:
    """Whether the runs have different numbers of backward passes in the step."""
    ours, theirs = len(_of(target, "backward")), len(_of(golden, "backward"))
    return bool(ours and theirs and ours != theirs)


def _parts(target: Sequence[Event], golden: Sequence[Event]) -> Iterator[TrainingDifference]:
    if takes_other_parts(target, golden):
        ours, theirs = _of(target, "backward"), _of(golden, "backward")
        text = Message("training.parts", number=len(ours), golden=len(theirs))
        yield TrainingDifference(text, Phase.AFTER, "parts", _after(ours[-1]), note_only=True)


def _of(events: Sequence[Event], *kinds: str) -> list[Event]:
    return [event for event in events if isinstance(event, Mapping) and event.get("event") in kinds]


def _clearing(target: Sequence[Event], golden: Sequence[Event]) -> Iterator[TrainingDifference]:
    """A backward of the step adds to existing gradients, while the other run has none at that time, or, with several
    models, those of fewer parameters."""
    ours, theirs = _of(target, "backward"), _of(golden, "backward")
    if len(ours) != len(theirs):
        ours, theirs = ours[:1], theirs[:1]
    counts = [(a, a.get("with_gradient"), b.get("with_gradient")) for a, b in zip(ours, theirs)]
    if counts:  # zero_grad(set_to_none=False) of the step before: the first backward adds to zeros
        event, x, y = counts[0]
        counts[0] = event, 0 if _sets_to_zero(target) else x, 0 if _sets_to_zero(golden) else y
    known = [(a, x, y) for a, x, y in counts if isinstance(x, int) and isinstance(y, int) and x != y]
    cleared = [len(_of(events, "zero_grad")) for events in (target, golden)]
    known = [(a, x, y) for a, x, y in known if not (x and y) or (x > y) == (cleared[0] < cleared[1])]
    if not known:
        return
    event, held, usual = known[0]
    if held and usual:
        text = Message("training.other_cleared", number=held, golden=usual)
    elif held:
        text = Message("training.not_cleared", number=held)
    else:
        text = Message("training.cleared", number=usual)
    proven = same_total_norm(target, golden) is False
    yield TrainingDifference(text, Phase.BACKWARD, "zero_grad", _after(event), proven=proven)


def same_total_norm(target: Sequence[Event], golden: Sequence[Event]) -> Optional[bool]:
    """Whether clip_grad_norm_ found the same norm in both runs; None if one did not call it, or found infinity, NaN or
    zero."""
    ours, theirs = (_numbers(_of(events, "clip_grad_norm_end"), "total_norm") for events in (target, golden))
    if not ours or len(ours) != len(theirs) or not all(0.0 < norm < math.inf for norm in (*ours, *theirs)):
        return None
    return all(math.isclose(a, b, rel_tol=_ROUNDED) for a, b in zip(ours, theirs))


def _sets_to_zero(events: Sequence[Event]) -> bool:
    return any(event.get("set_to_none") is False for event in _of(events, "zero_grad"))


def _clipped_late(target: Sequence[Event], golden: Sequence[Event]) -> Iterator[TrainingDifference]:
    """One run clips before the optimizer's step, the other after it."""
    kinds = ("clip_grad_norm", "optimizer_step")
    order = [[str(event["event"]) for event in _of(events, *kinds)] for events in (target, golden)]
    late = any(event.get("late") for event in _of([*target, *golden], "optimizer_step"))  # noted when it ended
    if order[0] != order[1] and sorted(order[0]) == sorted(order[1]) == [*kinds] and not late:
        first = order[0][0] == "clip_grad_norm"
        clip, step = (_of(target, kind)[0] for kind in kinds)
        text = Message("training.clips_before" if first else "training.clips_after", optimizer=_type(step))
        yield TrainingDifference(text, Phase.AFTER, "clipping", _after(clip))


def _clipping(target: Sequence[Event], golden: Sequence[Event]) -> Iterator[TrainingDifference]:
    ours, theirs = _of(target, "clip_grad_norm_end"), _of(golden, "clip_grad_norm_end")
    if len(ours) != len(theirs):
        yield from _other_number(target, golden, "clip_grad_norm", "clip_grad_norm_")
    else:
        yield from _still_scaled(target, golden)
        yield from _other_norms(target, golden)
        starts = zip(_of(target, "clip_grad_norm"), _of(golden, "clip_grad_norm"))
        for (a, b), (start, other) in zip(zip(ours, theirs), starts):
            for events, key in (((a, b), "max_norm"), ((start, other), "norm_type")):
                yield from _other_value(*events, key, f"clip_grad_norm_: {key}", Phase.AFTER, "clipping", start)
    values, others = _of(target, "clip_grad_value"), _of(golden, "clip_grad_value")
    if len(values) != len(others):
        yield from _other_number(target, golden, "clip_grad_value", "clip_grad_value_")
    for a, b in zip(values, others):
        yield from _other_value(a, b, "clip_value", "clip_grad_value_: clip_value", Phase.AFTER, "clipping", a)


def _other_value(
    a: Event, b: Event, key: str, name: str, phase: Phase, kind: str, at: Event
) -> Iterator[TrainingDifference]:
    if a.get(key) != b.get(key):
        yield TrainingDifference(other_setting(name, a.get(key), b.get(key)), phase, kind, _after(at))


def _other_number(
    target: Sequence[Event], golden: Sequence[Event], kind: str, name: str
) -> Iterator[TrainingDifference]:
    ours, theirs = len(_of(target, kind)), len(_of(golden, kind))
    if not ours:
        text = Message("training.not_called", name=name, times=_times(theirs))
    elif not theirs:
        text = Message("training.only_called", name=name, times=_times(ours))
    else:
        text = Message("training.called", name=name, times=_times(ours), golden=_times(theirs))
    found = _of(target, kind) or _of(target, "optimizer_step")
    unseen = not ours and kind == "optimizer_step"
    after = _after(found[0]) if found else None
    ends = _of([*target, *golden], "clip_grad_norm_end") if kind == "clip_grad_norm" else []
    idle = bool(ends) and all(map(_clips_nothing, ends))
    text = Message("also", parts=[text, Message("training.clips_nothing")]) if idle else text
    which = "unseen step" if unseen else "class" if kind == "optimizer_step" else "clipping"
    yield TrainingDifference(text, Phase.AFTER, which, after, note_only=idle)


def _other_norms(target: Sequence[Event], golden: Sequence[Event]) -> Iterator[TrainingDifference]:
    """clip_grad_norm_ received larger or smaller gradients in one run. It may give both the same norm, so that neither
    the gradients that the optimizer receives nor the updates show it."""
    ours, theirs = (_of(events, "clip_grad_norm_end") for events in (target, golden))
    for a, b, one, other in zip(ours, theirs, _numbers(ours, "total_norm"), _numbers(theirs, "total_norm")):
        known = 0.0 < one < math.inf and 0.0 < other < math.inf
        if known and not math.isclose(one, other, rel_tol=_HIDDEN) and not (_clips_nothing(a) and _clips_nothing(b)):
            norms = {"target": f"{one:.6g}", "golden": f"{other:.6g}", "factor": f"{one / other:.3g}"}
            yield TrainingDifference(Message("training.total_norm", **norms), Phase.AFTER, "total norm", _after(a))


def _clips_nothing(event: Event) -> bool:
    """Whether the total norm was below the limit."""
    norm, most = (event.get(key) for key in ("total_norm", "max_norm"))
    return isinstance(norm, (int, float)) and isinstance(most, (int, float)) and norm <= most


def _still_scaled(target: Sequence[Event], golden: Sequence[Event]) -> Iterator[TrainingDifference]:
    """One run clips the gradients before GradScaler divides them by the loss scale, the other run after it."""
    scales = _numbers(_of(target, "scaler_step"), "scale")
    norms = (_numbers(_of(events, "clip_grad_norm_end"), "total_norm") for events in (target, golden))
    for a, ours, theirs, scale in zip(_of(target, "clip_grad_norm_end"), *norms, scales):
        if scale == 1.0 or not min(ours, theirs, scale) > 0.0:
            continue
        for one, other, side in ((ours, theirs, "target"), (theirs, ours, "golden")):
            if math.isclose(one, other * scale, rel_tol=0.01):
                norms_text = {"target": f"{ours:.6g}", "golden": f"{theirs:.6g}"}
                text = Message("training.still_scaled", side=SIDES[side], scale=f"{scale:g}", **norms_text)
                yield TrainingDifference(text, Phase.AFTER, "loss scale", _after(a))


def _numbers(events: Sequence[Event], key: str) -> list[float]:
    """0 if an event has no such number."""
    found = (event.get(key) for event in events)
    return [0.0 if isinstance(one, str) else number(one) or 0.0 for one in found]


def _times(number: int) -> Message:
    if number > 2:
        return Message("times.many", number=number)
    return Message("times.once" if number == 1 else "times.twice")


def _scaling(target: Sequence[Event], golden: Sequence[Event]) -> Iterator[TrainingDifference]:
    ours, theirs = _of(target, "scaler_step"), _of(golden, "scaler_step")
    if len(ours) != len(theirs):
        yield from _other_number(target, golden, "scaler_step", "GradScaler.step")
    for a, b in zip(ours, theirs):
        yield from _other_value(a, b, "scale", Message("setting.loss_scale"), Phase.BACKWARD, "loss scale", a)
    for a, b in zip(_of(target, "scaler_step_end"), _of(golden, "scaler_step_end")):
        if a.get("skipped") != b.get("skipped"):
            side, other = ("target", "golden") if a.get("skipped") else ("golden", "target")
            text = Message("training.skips", side=SIDES[side], other=SIDES[other])
            yield TrainingDifference(text, Phase.AFTER, "loss scale", _after(a))


def _steps(target: Sequence[Event], golden: Sequence[Event]) -> Iterator[TrainingDifference]:
    ours, theirs = _of(target, "optimizer_step"), _of(golden, "optimizer_step")
    if len(ours) != len(theirs):
        ours, theirs = innermost_steps(target), innermost_steps(golden)
    if len(ours) != len(theirs):
        name = _type(ours[0] if ours else theirs[0])
        yield from _other_number(target, golden, "optimizer_step", f"{name}.step")
        return
    for a, b in zip(ours, theirs):
        if _type(a) != _type(b):
            text = Message("training.optimizer", target=_type(a), golden=_type(b))
            yield TrainingDifference(text, Phase.AFTER, "class", _after(a))
            continue
        yield from _groups(a, b)
        done, expected = a.get("steps_done"), b.get("steps_done")
        if done != expected and isinstance(done, int) and isinstance(expected, int):
            text = Message("training.steps_done", optimizer=_type(a), target=done, golden=expected)
            yield TrainingDifference(text, Phase.AFTER, "optimizer", _after(a))
    yield from _rates(target, golden)


def _rates(target: Sequence[Event], golden: Sequence[Event]) -> Iterator[TrainingDifference]:
    """The learning rates at stop(), after the scheduler."""
    ours, theirs = _of(target, "learning_rate"), _of(golden, "learning_rate")
    for event in [*ours, *theirs][:1]:
        a, b = (one[0].get("lr") if one else None for one in (ours, theirs))
        if a == b:
            continue
        if a is None or b is None:
            text = Message("training.scheduler_once", side=SIDES["golden" if a is None else "target"])
        else:
            text = Message("training.scheduler", target=shown(a), golden=shown(b))
        yield TrainingDifference(text, Phase.AFTER, "schedule", _after(event), note_only=True)


def _groups(a: Event, b: Event) -> Iterator[TrainingDifference]:
    name, after = _type(a), _after(a)
    ours, theirs = ([one for one in listed(event.get("groups")) if isinstance(one, Mapping)] for event in (a, b))
    if len(ours) != len(theirs):  # a group without a gradient updates nothing
        ours, theirs = ([group for group in side if group.get("gradients") != 0] for side in (ours, theirs))
    if are_divided_otherwise(ours, theirs):
        changed = settings_by_parameter(ours, theirs)
        if not changed:
            text = Message("training.same_settings", optimizer=name)
            kind = "how" if any(_ways(*pair) for pair in zip(ours, theirs)) else "order"
            yield TrainingDifference(text, Phase.AFTER, kind, after, note_only=True)
            return
        if len(ours) == len(theirs):
            text = Message("also", parts=[Message("training.groups", optimizer=name), *changed])
            yield TrainingDifference(text, Phase.AFTER, "optimizer", after)
            return
    if len(ours) != len(theirs):
        number = Message("training.group_count", optimizer=name, number=len(ours), golden=len(theirs))
        text = Message("also", parts=[number, *settings_by_parameter(ours, theirs)])
        yield TrainingDifference(text, Phase.AFTER, "optimizer", after)
        return
    for index, (group, other) in enumerate(zip(ours, theirs)):
        where = index if len(ours) > 1 else None
        known = [key for key in _ORDER if key in group or key in other]
        for key in [*known, *(key for key in {**group, **other} if key not in known)]:
            if key in UNIMPORTANT or group.get(key) == other.get(key):
                continue
            setting = Message("setting.of", optimizer=name, setting=other_setting(key, group.get(key), other.get(key)))
            yield TrainingDifference(_in_group(setting, where), Phase.AFTER, "hyper-parameter", after)
        if group.get("parameters") != other.get("parameters"):
            numbers = {"target": str(group.get("parameters")), "golden": str(other.get("parameters"))}
            text = _in_group(Message("training.parameters", optimizer=name, **numbers), where)
            fused = group.get("elements") == other.get("elements") is not None
            names = [{str(name) for name in listed(one.get("names")) if name} for one in (group, other)]
            nested = names[0] <= names[1] or names[1] <= names[0]
            idle = nested and group.get("gradients") == other.get("gradients") is not None
            more = [*other_names(group, other), *([Message("training.same_gradients")] if idle else [])]
            text = Message("training.fused", said=text) if fused else Message("also", parts=[text, *more])
            kind = "how" if fused else "optimizer"
            yield TrainingDifference(text, Phase.AFTER, kind, after, note_only=fused or idle)
        if ways := _ways(group, other):
            said = [
                Message("training.against", name=key, target=str(group.get(key)), golden=str(other.get(key)))
                for key in ways
            ]
            text = Message("training.way", optimizer=name, settings=said)
            yield TrainingDifference(text, Phase.AFTER, "how", after, note_only=True)


def _in_group(said: Message, index: Optional[int]) -> Message:
    return said if index is None else Message("setting.in_group", said=said, index=index)


def _ways(group: Event, other: Event) -> list[str]:
    """The settings of how a step is computed that differ."""
    return [key for key in ("foreach", "fused") if group.get(key) != other.get(key)]


def _type(event: Event) -> str:
    return str(event.get("type", "the optimizer")).rpartition(".")[2]


def _after(event: Event) -> Optional[str]:
    value = event.get("after")
    return value if isinstance(value, str) else None
