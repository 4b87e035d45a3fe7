"""The numbers in the names of calls (the grammar of names is in dump/names.py).

The counters are iterators because taking the next value of one is atomic: calls may come from several threads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import count


class CallNumbers:
    """Numbers from 0 for each key, until `restart`."""

    def __init__(self) -> None:
        self._next: defaultdict[str, Iterator[int]] = defaultdict(count)

    def take(self, key: str) -> int:
        return next(self._next[key])

    def has_taken(self, key: str) -> bool:
        """Whether this key has a number since `restart`."""
        return key in self._next

    def restart(self) -> None:
        self._next.clear()
