"""Forwards that only one run makes, without gradients: an evaluation between two training steps.

The calls of a module have numbers, and those of an evaluation before the training forward shift them. Its calls are
left out before the others are matched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

from msprobe.compare.calls import Call

Calls = Sequence[Call]
PathOf = Callable[[Call], str]


class Side(NamedTuple):
    """The forward calls of one run without those of its evaluations; `skipped` has the numbers of the latter by key."""

    calls: Calls
    path_of: PathOf
    skipped: dict[str, list[int]]

    def place(self, call: Call) -> tuple[str, int]:
        """What a module call has in common with its counterpart: the path, and the number without those left out."""
        before = sum(number < call.number for number in self.skipped.get(call.key, ()))
        return self.path_of(call), call.number - before


def without_evaluations(target: Calls, golden: Calls, path_of: tuple[PathOf, PathOf]) -> tuple[Side, Side]:
    """Leaves out the calls inside outermost modules that one run calls more often, where these calls have no gradient
    and all others of both runs have one."""
    outermost = [_outermost(calls, of) for calls, of in zip((target, golden), path_of)]
    extra: tuple[set[str], set[str]] = set(), set()
    for path in outermost[0].keys() & outermost[1].keys():
        calls = [side[path] for side in outermost]
        if len(calls[0]) == len(calls[1]):
            continue
        graded = [[call for call in side if has_gradient(call)] for side in calls]
        more = 0 if len(calls[0]) > len(calls[1]) else 1
        if graded[1 - more] and len(graded[0]) == len(graded[1]) == len(calls[1 - more]):
            extra[more].update(call.name for call in calls[more] if not has_gradient(call))
    ours, theirs = (_left(calls, names, of) for calls, names, of in zip((target, golden), extra, path_of))
    return ours, theirs


def _outermost(calls: Calls, path_of: PathOf) -> dict[str, list[Call]]:
    found: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        if call.kind == "module" and call.parent is None:
            found[path_of(call)].append(call)
    return found


def _left(calls: Calls, extra: set[str], path_of: PathOf) -> Side:
    if not extra:
        return Side(calls, path_of, {})
    inside = dict.fromkeys(extra, True)
    kept: list[Call] = []
    skipped: dict[str, list[int]] = defaultdict(list)
    for call in reversed(calls):  # a module is recorded when it returns, after the calls inside
        if inside.get(call.name) or inside.get(call.parent or ""):
            inside[call.name] = True
            skipped[call.key].append(call.number)
        else:
            kept.append(call)
    return Side(kept[::-1], path_of, skipped)


def has_gradient(call: Call) -> Optional[Any]:
    output = call.record.get("output") if isinstance(call.record, dict) else None
    first = output[0] if isinstance(output, list) and output else None
    return first.get("requires_grad") if isinstance(first, dict) else None
