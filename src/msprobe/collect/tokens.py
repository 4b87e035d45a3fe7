"""token_range: in an inference loop, collect only some forwards of the model.

Forwards of the first model are counted from 0, anew each step; the probes are in from the beginning
of the first wanted one to the end of the last, and out in between steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional, Protocol


class Hooks(Protocol):
    def remove(self) -> None: ...


class RegisteredHooks:
    """The hooks before and after a forward of the model, as its framework registers them."""

    def __init__(self, root: Any, begin: Callable[..., None], end: Callable[..., None]) -> None:
        self._handles = [root.register_forward_pre_hook(begin), root.register_forward_hook(end, always_call=True)]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


class TokenRange:
    def __init__(
        self,
        models: Sequence[Any],
        token_range: tuple[int, int],
        put_in: Callable[[], None],
        take_out: Callable[[], None],
        hooks: Callable[..., Hooks] = RegisteredHooks,
    ) -> None:
        self._root = models[0]
        self._first, self._last = token_range
        self._put_in = put_in
        self._take_out = take_out
        self._count = 0
        self._inside = False
        self._make_hooks = hooks
        self._hooks: Optional[Hooks] = None

    def install(self) -> None:
        self._hooks = self._make_hooks(self._root, self._begin, self._end)

    def remove(self) -> None:
        if self._hooks is not None:
            self._hooks.remove()
        self._hooks = None
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
