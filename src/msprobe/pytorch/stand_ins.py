"""Functions of ours in the place of torch's, while msprobe collects."""

from __future__ import annotations

import functools
from typing import Any, Callable


class StandIns:
    """Each stands where torch looks a function up by its name at every call. `remove` puts the originals back."""

    def __init__(self) -> None:
        self._put: list[tuple[Any, str, Any, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._put)

    def put(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """`make` is given the original and returns what stands in. Nothing happens where this torch has no such
        function."""
        original = vars(owner).get(name)
        if original is None:
            return
        ours = functools.wraps(original)(make(original))
        setattr(owner, name, ours)
        self._put.append((owner, name, ours, original))

    def remove(self) -> None:
        for owner, name, ours, original in reversed(self._put):
            if vars(owner).get(name) is ours:  # what somebody has put over ours since, stays
                setattr(owner, name, original)
        self._put.clear()
