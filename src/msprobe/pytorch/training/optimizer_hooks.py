"""Removes hooks around optimizer steps, also in the middle of one.

Torch iterates over its hooks while a step runs, and raises if the set of hooks changes then. `stop()` may be called at
that moment, by a hook of the script or of `msprobe run`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any, Optional

from torch.optim import optimizer

_stale: list[Any] = []


def remove_optimizer_hooks(handles: Iterable[Any]) -> None:
    """Inside a step the hooks are replaced by one that does nothing, and removed the next time."""
    if not is_in_optimizer_step():
        for handle in (*_stale, *handles):
            handle.remove()
        _stale.clear()
        return
    for handle in handles:
        hooks = handle.hooks_dict_ref()
        if hooks is not None and handle.id in hooks:
            hooks[handle.id] = _ignore
            _stale.append(handle)


def is_in_optimizer_step() -> bool:
    """Whether torch runs the hooks of an optimizer step now, in this thread."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == optimizer.__file__ and frame.f_code.co_name == "wrapper":
            return True
        frame = frame.f_back
    return False


def _ignore(*args: Any, **kwargs: Any) -> None:
    """Does nothing."""
