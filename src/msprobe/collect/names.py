"""The names of calls.

An API: `{prefix}.{api}.{n}.{forward|backward}`; a module: `{Module|Cell}.{path}.{Class}.{forward|backward}.{n}`.

n counts the calls of one API, or of one module, in a step. The counters are iterators because taking the next value of
an iterator is atomic: calls may come from several threads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import count

FORWARD = "forward"
BACKWARD = "backward"
PARAMETERS_GRAD = "parameters_grad"


class CallNumbers:
    """Numbers from 0 for each key, until `restart`."""

    def __init__(self) -> None:
        self._next: defaultdict[str, Iterator[int]] = defaultdict(count)

    def take(self, key: str) -> int:
        return next(self._next[key])

    def restart(self) -> None:
        self._next.clear()


def api_stem(name: str) -> str:
    """`Functional.relu.0.forward` -> `Functional.relu.0`."""
    return name.rpartition(".")[0]


def _turn(old: str, new: str, name: str) -> str:
    """The name of the same call in the other direction; a name without a direction stays."""
    head, _, last = name.rpartition(".")
    if last == old:
        return f"{head}.{new}"
    stem, _, direction = head.rpartition(".")
    return f"{stem}.{new}.{last}" if direction == old else name


backward_of = partial(_turn, FORWARD, BACKWARD)
forward_of = partial(_turn, BACKWARD, FORWARD)
