"""Adds one hook to torch's global optimizer hooks.

Torch iterates over its mapping of hooks, and a hook may call start(), stop() or step(): adding or removing an entry
then would raise in the script. So our hook is not in that mapping. While it is installed, torch gets a mapping that
returns our hook first and passes everything else on to torch's own.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from itertools import chain
from typing import Any, Callable, Optional

from torch.optim import optimizer as torch_optimizer

_Hook = Callable[[Any, Any, Any], None]


class _Around(MutableMapping[int, Any]):
    """The mapping around torch's own. Handles of hooks that the script registers meanwhile refer to it, so it lives
    until the process ends."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._original: Any = None
        self._ours: Optional[_Hook] = None

    def install(self, hook: _Hook) -> None:
        self._ours = hook
        if getattr(torch_optimizer, self._name) is not self:
            self._original = getattr(torch_optimizer, self._name)
            setattr(torch_optimizer, self._name, self)

    def remove(self) -> None:
        self._ours = None
        if getattr(torch_optimizer, self._name) is self:
            setattr(torch_optimizer, self._name, self._original)

    def values(self) -> Any:
        return chain(() if self._ours is None else (self._ours,), self._original.values())

    def __getitem__(self, key: int) -> Any:
        return self._original[key]

    def __setitem__(self, key: int, hook: Any) -> None:
        self._original[key] = hook

    def __delitem__(self, key: int) -> None:
        del self._original[key]

    def __iter__(self) -> Iterator[int]:
        return iter(self._original)

    def __len__(self) -> int:
        return len(self._original)


_BEFORE, _AFTER = _Around("_global_optimizer_pre_hooks"), _Around("_global_optimizer_post_hooks")


def install(before: _Hook, after: _Hook) -> None:
    """`before` and `after` are called around every optimizer step, ahead of the script's own global hooks."""
    _BEFORE.install(before)
    _AFTER.install(after)


def remove() -> None:
    _BEFORE.remove()
    _AFTER.remove()
