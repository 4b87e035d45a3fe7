"""Where a value came from and where it went: links the calls of one unit by the values that they pass on.

A dump does not record which call produced which input. Equal statistics (`value_key`) are very probably the same value.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from msprobe.compare.measure.distance import value_key
from msprobe.compare.rows import ERROR, WARNING, Group, Row, is_tensor

MOST_STEPS = 60
MOST_CONSUMERS = 8


class Place(NamedTuple):
    """A row: its group in the unit, and its place in the group."""

    group: int
    place: int


class Flow:
    """The producers and consumers of one unit, by value."""

    def __init__(self, groups: list[Group]) -> None:
        self._groups = groups
        self._made: dict[tuple[bool, Any], list[Place]] = {}
        self._used: dict[tuple[bool, Any], list[Place]] = {}
        for index, (_, rows) in enumerate(groups):
            for place, row in enumerate(rows):
                known = self._used if row.is_input else self._made
                for golden, item in ((False, row.target), (True, row.golden)):
                    key = value_key(item)
                    if key is not None:
                        known.setdefault((golden, key), []).append(Place(index, place))

    def row(self, at: Place) -> Row:
        return self._groups[at.group][1][at.place]

    def producer(self, at: Place) -> Optional[Place]:
        """The last earlier call that produced this input; a call inside a module is preferred to the module."""
        for golden, item in self._sides(at):
            before = [one for one in self._made.get((golden, value_key(item)), ()) if one.group < at.group]
            inner = [one for one in before if self._groups[one.group][0].call.kind != "module"]
            if before:
                return (inner or before)[-1]
        return None

    def consumers(self, at: Place) -> list[Place]:
        """The next calls that took this output."""
        found: dict[Place, None] = {}
        for golden, item in self._sides(at):
            for one in self._used.get((golden, value_key(item)), ()):
                if one.group > at.group:
                    found[one] = None
        return sorted(found)[:MOST_CONSUMERS]

    def _sides(self, at: Place) -> list[tuple[bool, Any]]:
        row = self.row(at)
        return [(golden, item) for golden, item in ((False, row.target), (True, row.golden)) if value_key(item)]

    def trace_back(self, at: Place) -> tuple[list[Place], str]:
        """From a differing row back to where both runs agree. The text says why it ends.

        agrees: the inputs of the last call agree; given: it was called with another plain argument; unknown: no
        recorded call produced its input; long: the path is longer than MOST_STEPS."""
        path = [at]
        seen = {at.group}
        while len(path) < MOST_STEPS:
            rows = self._groups[path[-1].group][1]
            wrong = [place for place, row in enumerate(rows) if row.is_input and _differs(row)]
            if not wrong:
                return path, "agrees"
            if any(not is_tensor(rows[place].target or rows[place].golden) for place in wrong):
                return path, "given"
            here = path[-1]
            start = here if self.row(here).is_input else Place(here.group, wrong[0])
            maker = next(
                (
                    found
                    for place in dict.fromkeys([start.place, *wrong])
                    if (found := self.producer(Place(here.group, place))) is not None and found.group not in seen
                ),
                None,
            )
            if start != here:
                path.append(start)
            if maker is None:
                return path, "unknown"
            seen.add(maker.group)
            path.append(maker)
        return path, "long"


def _differs(row: Row) -> bool:
    return row.verdict in (WARNING, ERROR)
