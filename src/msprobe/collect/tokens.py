"""token_range: in an inference loop, collect only some forwards of the model.

Forwards of the first model are counted from 0, anew each step; the probes are in from the beginning
of the first wanted one to the end of the last, and out in between steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable


class TokenRange:
    def __init__(
        self,
        models: Sequence[Any],
        token_range: tuple[int, int],
        put_in: Callable[[], None],
        take_out: Callable[[], None],
    ) -> None:
        self._root = models[0]
        self._first, self._last = token_range
        self._put_in = put_in
        self._take_out = take_out
        self._count = 0
        self._inside = False
        self._handles: list[Any] = []

    def install(self) -> None:
        self._handles = [
            self._root.register_forward_pre_hook(self._begin),
            self._root.register_forward_hook(self._end, always_call=True),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._inside = False

    def _begin(self, model: Any, args: Any) -> None:
        if self._first <= self._count <= self._last and not self._inside:
            self._inside = True
            self._put_in()

    def _end(self, model: Any, args: Any, output: Any) -> None:
        if self._count == self._last:
            self._inside = False
            self._take_out()
        self._count += 1
