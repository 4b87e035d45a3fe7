"""The calls of all units by number. Most calls of a long run agree: their rows are made again on request."""

from __future__ import annotations

import bisect
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Optional

from msprobe.compare.result import UnitResult
from msprobe.compare.rows import Group, Row
from msprobe.dump.errors import DumpError

MOST_KEPT = 4


class UnitGroups:
    """Thread-safe. `starts`: the number of the first call of each unit."""

    def __init__(self, units: list[UnitResult]) -> None:
        self._units = units
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, list[Group]] = OrderedDict()
        self.starts: list[int] = []
        self._length = 0

    def add(self, count: int) -> None:
        """The next unit has `count` calls."""
        self.starts.append(self._length)
        self._length += count

    def __len__(self) -> int:
        return self._length

    def unit_of(self, call: int) -> int:
        return bisect.bisect_right(self.starts, call) - 1

    def __getitem__(self, call: int) -> tuple[int, Group]:
        """The unit and the group of a call."""
        unit = self.unit_of(call)
        return unit, self.of_unit(unit)[call - self.starts[unit]]

    def __iter__(self) -> Iterator[tuple[int, Group]]:
        for unit, result in enumerate(self._units):
            for group in result.groups:
                yield unit, group

    def of_unit(self, unit: int) -> list[Group]:
        groups = self._units[unit].groups
        if isinstance(groups, list):
            return groups
        with self._lock:
            if unit not in self._kept:
                made = list(groups)
                if len(made) != self._size(unit):
                    raise DumpError(f"{self._units[unit].label} has changed on disk: load the page again.")
                self._kept[unit] = made
                if len(self._kept) > MOST_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(unit)
            return self._kept[unit]

    def _size(self, unit: int) -> int:
        return (self.starts[unit + 1] if unit + 1 < len(self.starts) else self._length) - self.starts[unit]

    def locate(self, unit: int, row: Row) -> Optional[tuple[int, int]]:
        """The call of a row and its place in the call. Rows that were made again are found by their names."""
        places = [
            (self.starts[unit] + call, place, one)
            for call, (_, rows) in enumerate(self.of_unit(unit))
            for place, one in enumerate(rows)
            if one is row or one.name == row.name
        ]
        return min(places, key=lambda found: found[2] is not row)[:2] if places else None
