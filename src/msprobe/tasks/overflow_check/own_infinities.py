"""overflow_check: decides whether a call that got an infinity has produced a new one."""

from __future__ import annotations

import math
from typing import Any

from msprobe.dump.names import callee_of
from msprobe.stats.own_infinities import makes_own
from msprobe.tasks.overflow_check.inspector import TensorInspector


def call_makes_own(inspector: TensorInspector, name: str, args: Any, kwargs: Any, output: Any) -> bool:
    """Whether a call that got an infinity, and returns some, has produced one itself."""
    kwargs = {key: value for key, value in (kwargs or {}).items() if key != "out"}
    made = [inspector.infinities(tensor) for tensor in inspector.arguments((output,), None)]
    given = [inspector.infinities(tensor) for tensor in inspector.arguments(args, kwargs)]
    return makes_own(
        callee_of(name),
        [one for one in given if one is not None],
        number_signs((args, kwargs)),
        [one for one in made if one is not None],
    )


def number_signs(value: Any, depth: int = 4) -> set[int]:
    """The signs of the infinite numbers among arguments."""
    if isinstance(value, float):
        return {int(math.copysign(1, value))} if math.isinf(value) else set()
    if depth and isinstance(value, dict):
        value = list(value.values())
    if depth and isinstance(value, (list, tuple)):
        return set().union(*(number_signs(member, depth - 1) for member in value))
    return set()
