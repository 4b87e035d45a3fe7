"""Our global module hooks, which are removed while compiled code runs.

Dynamo guards on the keys of torch's global hooks: with ours, a region would be compiled again at each start().
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch.nn.modules import module as module_hooks

_TABLES = ("_global_forward_pre_hooks", "_global_forward_hooks", "_global_forward_hooks_always_called")
_OTHER_TABLES = ("_global_backward_pre_hooks", "_global_backward_hooks", "_global_forward_hooks_with_kwargs")
_QUESTION = "_has_any_global_hook"
"""The function of torch that torch.compile(module) asks before it warns of global hooks."""


class _Frames(threading.local):
    def __init__(self) -> None:
        self.outermost = 0


class GlobalHooks:
    """`hide` and `show` are called with the frame that runs a compiled function, when it begins and ends."""

    def __init__(self) -> None:
        self._key = 0
        self._hooks: tuple[Any, ...] = ()
        self._tables = [getattr(module_hooks, table) for table in _TABLES]
        self._all_tables = [*self._tables, *(getattr(module_hooks, table) for table in _OTHER_TABLES)]
        self._lock = threading.Lock()
        self._hiding = 0
        self._frames = _Frames()
        self._has_any: Any = None

    def install(self, key: int, before: Callable[..., None], after: Callable[..., None]) -> None:
        self._key = key
        self._hooks = (before, after, True)
        self._put_back()

    def remove(self) -> None:
        self._hooks = ()
        self._take_away()

    def hide(self, frame: Any) -> bool:
        """Compiled code begins. Returns whether the hooks were installed: in nested compiled functions they are not."""
        if self._frames.outermost:
            return False
        self._frames.outermost = id(frame)
        with self._lock:
            self._hiding += 1
            self._take_away()
        return True

    def hides_for(self, frame: Any) -> bool:
        """Whether `hide` was called with this frame, and `show` was not yet."""
        return bool(self._frames.outermost == id(frame))

    def show(self, frame: Any) -> None:
        """The function of this frame ends."""
        if self.hides_for(frame):
            self._frames.outermost = 0
            with self._lock:
                self._hiding -= 1
                if not self._hiding:
                    self._put_back()

    def _take_away(self) -> None:
        for table in self._tables:
            table.pop(self._key, None)
        if self._has_any is not None:
            setattr(module_hooks, _QUESTION, self._has_any)
            self._has_any = None

    def _put_back(self) -> None:
        for table, hook in zip(self._tables, self._hooks):
            table[self._key] = hook
        if self._hooks and self._has_any is None and hasattr(module_hooks, _QUESTION):
            self._has_any = getattr(module_hooks, _QUESTION)
            setattr(module_hooks, _QUESTION, self._has_hooks_of_the_script)

    def _has_hooks_of_the_script(self) -> bool:
        """Torch warns about global hooks, and a script may turn warnings into errors: our hooks must cause none."""
        return any(table and len(table) > (self._key in table) for table in self._all_tables)
