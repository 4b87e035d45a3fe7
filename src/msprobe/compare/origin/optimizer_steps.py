"""The steps of optimizers in training.json: which parameters they update, and which are only wrappers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Event = Mapping[str, Any]


def names_of(step: Event) -> list[str]:
    """The names of the parameters that a step of an optimizer updates, in its order."""
    groups = step.get("groups")
    listed = [group.get("names") for group in groups if isinstance(group, Mapping)] if isinstance(groups, list) else []
    return [str(name) for names in listed if isinstance(names, list) for name in names]


def innermost_steps(events: Sequence[Event]) -> list[Event]:
    """A wrapper is an optimizer in whose step another one makes a step (ZeroRedundancyOptimizer)."""
    known = [event for event in events if isinstance(event, Mapping)]
    steps = [event for event in known if event.get("event") == "optimizer_step"]
    ends = [event for event in known if event.get("event") == "optimizer_step_end"]
    if not ends:  # a dump that was cut off
        return steps
    found: list[Event] = []
    running: list[Event] = []
    for event in known:
        if event.get("event") == "optimizer_step":
            found = [one for one in found if not running or one is not running[-1]]
            found.append(event)
            running.append(event)
        elif event.get("event") == "optimizer_step_end":
            running = running[:-1]
    return found
