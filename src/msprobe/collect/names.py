"""The names of calls.

An API: `{prefix}.{api}.{n}.{forward|backward}`; a module: `{Module|Cell}.{path}.{Class}.{forward|backward}.{n}`.

n counts the calls of one API, or of one module, in a step. The counters are iterators because
taking the next value of one is atomic: calls may come from several threads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
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


def backward_of(name: str) -> str:
    """The backward name of a forward call, for APIs and modules alike."""
    head, _, last = name.rpartition(".")
    if last == FORWARD:
        return f"{head}.{BACKWARD}"
    stem, _, direction = head.rpartition(".")
    return f"{stem}.{BACKWARD}.{last}" if direction == FORWARD else name


def forward_of(name: str) -> str:
    """The other way round."""
    head, _, last = name.rpartition(".")
    if last == BACKWARD:
        return f"{head}.{FORWARD}"
    stem, _, direction = head.rpartition(".")
    return f"{stem}.{FORWARD}.{last}" if direction == BACKWARD else name
