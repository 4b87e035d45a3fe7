"""How the run is spread over ranks, for run.json. Meshes get numbers; other facts are added when msprobe sees them.

dump/parallel.py reads it and docs/format.md describes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Callable, Optional


class RunHeader:
    """run.json of one step. It is written again when something is added."""

    def __init__(self, write: Callable[[Mapping[str, Any]], None]) -> None:
        self._write = write
        self._facts: Mapping[str, Any] = {}

    def add(self, facts: Mapping[str, Any]) -> None:
        self._facts = {**self._facts, **facts}
        self._write(self._facts)


class ParallelRecord:
    """The member "parallel" of run.json. A run without such facts does not have it."""

    def __init__(self, header: RunHeader) -> None:
        self._header = header
        self._meshes: list[dict[str, Any]] = []
        self._numbers: dict[str, int] = {}
        self._members: dict[str, Any] = {}

    def mesh(self, names: Optional[list[str]], ranks: Any, coordinate: Optional[list[int]]) -> int:
        """The number of a mesh. `ranks` is nested like the mesh."""
        found = {"names": names, "ranks": ranks, "coordinate": coordinate}
        number = self._numbers.setdefault(json.dumps(found), len(self._meshes))
        if number == len(self._meshes):
            self._meshes.append(found)
            self._publish()
        return number

    def add(self, **members: Any) -> None:
        """Adds members of "parallel"; empty ones are left out."""
        new = {name: value for name, value in members.items() if value and self._members.get(name) != value}
        if new:
            self._members.update(new)
            self._publish()

    def _publish(self) -> None:
        meshes = {"meshes": list(self._meshes)} if self._meshes else {}
        self._header.add({"parallel": {**self._members, **meshes}})
