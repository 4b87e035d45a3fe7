"""The parameter groups of two optimizers: which parameters are in them, and with which settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msprobe.messages import Message

Event = Mapping[str, Any]

_HOW = {"foreach", "fused", "capturable", "differentiable", "maximize_foreach"}
"""Settings that change how a step is computed, not what."""
UNIMPORTANT = {"names", "parameters", "elements", "gradients", "initial_lr", *_HOW}


def are_divided_otherwise(ours: Sequence[Event], theirs: Sequence[Event]) -> bool:
    """The same parameters, all known by name, in other groups or in a different order of groups."""
    groups = [[listed(group.get("names")) for group in side] for side in (ours, theirs)]
    names = [[name for group in side for name in group] for side in groups]
    if any(len(listed(group.get("names"))) != group.get("parameters") for group in (*ours, *theirs)):
        return False
    complete = all(isinstance(name, str) for side in names for name in side)
    return complete and groups[0] != groups[1] and sorted(names[0]) == sorted(names[1])


def other_names(group: Event, other: Event) -> list[Message]:
    ours, theirs = (listed(one.get("names")) for one in (group, other))
    lost = [name for name in theirs if name and name not in ours]
    extra = [name for name in ours if name and name not in theirs]
    said = [Message("training.without", names=_some(lost))] if lost else []
    return [*said, Message("training.with", names=_some(extra))] if extra else said


def settings_by_parameter(ours: Sequence[Event], theirs: Sequence[Event]) -> list[Message]:
    """The settings that some parameter has otherwise, whatever group it is in."""
    known: dict[str, Event] = {str(name): group for group in theirs for name in listed(group.get("names")) if name}
    changed: dict[Message, list[str]] = {}
    for group in ours:
        for name in listed(group.get("names")):
            other = known.get(str(name))
            for key in group if other is not None else ():
                if key not in UNIMPORTANT and other is not None and group.get(key) != other.get(key):
                    text = other_setting(key, group.get(key), other.get(key))
                    changed.setdefault(text, []).append(str(name))
    return [Message("training.setting_for", setting=text, names=_some(names)) for text, names in changed.items()]


def other_setting(name: str, target: Any, golden: Any) -> Message:
    """`lr is 0.0011, not 0.001`."""
    return Message("setting.is", name=name, target=shown(target), golden=shown(golden))


def _some(names: Sequence[str]) -> str:
    return Message("some", name=names[0], more=len(names) - 1) if len(names) > 1 else names[0]


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return "[" + ", ".join(shown(one) for one in value) + "]"
    return str(value)
