"""A set of weakly held objects, without callbacks.

Python drops an exception that is raised in the callback of a weak reference. A signal handler of the script may run
there, and a WeakSet would lose its exception.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Living(Generic[T]):
    def __init__(self) -> None:
        self._references: list[weakref.ref[T]] = []

    def add(self, one: T) -> None:
        self._references = [known for known in self._references if known() is not None]
        self._references.append(weakref.ref(one))

    def __iter__(self) -> Iterator[T]:
        return iter([one for known in self._references if (one := known()) is not None])
