"""Finds infinities that a run produces and discards: log(0) in a branch that torch.where does not take.

An infinity is discarded if a module around its producer has finite outputs, no call outside of that module received the
infinity, and no backward inside the module turned finite gradients into infinite ones. Only a dump with modules shows
this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Optional

from msprobe.analyze.overflow_event import Event
from msprobe.dump.names import BACKWARD, FORWARD, forward_of
from msprobe.stats.finiteness import FINITE

Parents = Mapping[str, Optional[str]]


def find_discarded(events: Sequence[Event], construct: Parents, is_finite: Callable[[str], bool]) -> dict[str, str]:
    """The forward calls of one rank and step that produced or passed on a discarded infinity. Each has the name of the
    module whose finite outputs prove it. `is_finite` says whether the outputs of a record were recorded and are finite.
    """
    found: dict[str, str] = {}
    for place, event in enumerate(events):
        if not event.producer or event.direction != FORWARD or event.collective is not None or event.name in found:
            continue
        around = next((name for name in _modules_around(event.name, construct) if is_finite(name)), None)
        if around is None or _spreads(events[place:], around, construct):
            continue
        found.update((one.name, around) for one in events[place:] if _is_inside(one.name, around, construct))
    return found


def _spreads(events: Sequence[Event], around: str, construct: Parents) -> bool:
    others_explain = False
    for event in events:
        if not event.overflow:
            continue
        if event.direction == BACKWARD:
            if event.given == FINITE and _is_inside(forward_of(event.name), around, construct):
                return True
        elif not _is_inside(event.name, around, construct):
            others_explain = others_explain or event.producer
            if not others_explain:
                return True
    return False


def _modules_around(name: str, construct: Parents) -> list[str]:
    """The modules around a call, from the inside out."""
    found: list[str] = []
    above = construct.get(name)
    while above is not None and above not in found:
        found.append(above)
        above = construct.get(above)
    return found


def _is_inside(name: str, module: str, construct: Parents) -> bool:
    return name == module or module in _modules_around(name, construct)
