"""token_range: collects only some forwards of the model in an inference loop.

Forwards of the first model are counted from 0 in each step. The hooks are installed from the beginning of the first
wanted forward to the end of the last.
"""

from __future__ import annotations

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


MakeHooks = Callable[[Any, Callable[..., None], Callable[..., None]], Hooks]
"""Calls the first function before each forward of a model and the second after it."""


class TokenRange:
    def __init__(
        self,
        model: Any,
        token_range: tuple[int, int],
        install: Callable[[], None],
        remove: Callable[[], None],
        make_hooks: MakeHooks,
    ) -> None:
        self._model = model
        self._first, self._last = token_range
        self._install_others = install
        self._remove_others = remove
        self._count = 0
        self._inside = False
        self._make_hooks = make_hooks
        self._hooks: Optional[Hooks] = None

    def install(self) -> None:
        self._hooks = self._make_hooks(self._model, self._begin, self._end)

    def remove(self) -> None:
        if self._hooks is not None:
            self._hooks.remove()
        self._hooks = None
        self._inside = False

    def _begin(self, model: Any, args: Any) -> None:
        if self._first <= self._count <= self._last and not self._inside:
            self._inside = True
            self._install_others()

    def _end(self, model: Any, args: Any, output: Any) -> None:
        if self._count == self._last:
            self._inside = False
            self._remove_others()
        self._count += 1


def parse_range(value: Any) -> Optional[tuple[int, int]]:
    """[first, last] as the script gave it; None if it is not two whole numbers with 0 <= first <= last."""
    good = (
        isinstance(value, (list, tuple))
        and len(value) == 2
        and all(isinstance(one, int) and not isinstance(one, bool) for one in value)
        and 0 <= value[0] <= value[1]
    )
    return (value[0], value[1]) if good else None
