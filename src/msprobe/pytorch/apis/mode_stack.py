"""Puts our mode on this thread's stack of torch-function modes, and removes it.

Our mode is below all others. A context that ends (`with torch.device(...)`, any mode of the user) removes the top mode
without a check. If our mode were above a context entered before start(), ours would be removed and the context would
stay. A signal handler of the script may run between any two lines here: what it does to msprobe waits, and if it
raises, the modes of the script are put back.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Optional

import torch
from torch._C import (
    _get_function_stack_at,
    _len_torch_function_stack,
    _pop_torch_function_stack,
    _push_on_torch_function_stack,
)

from msprobe.system.interrupts import UNDISTURBED


def put_on(mode: Any) -> None:
    """Puts `mode` on this thread's stack, above only the default device, which torch wants lowest."""
    default = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)
    above: list[Any] = []
    with UNDISTURBED:
        try:
            while _len_torch_function_stack():
                if default is not None and _get_function_stack_at(_len_torch_function_stack() - 1) is default:
                    break
                above.append(_pop_torch_function_stack())
        finally:
            _push_on_torch_function_stack(mode)
            _put_back(above)


def modes() -> list[Any]:
    """The modes on this thread's stack, the lowest first."""
    with UNDISTURBED:
        return [_get_function_stack_at(place) for place in range(_len_torch_function_stack())]


def is_on(mode: Any) -> bool:
    """Whether `mode` is on this thread's stack; it usually is on top."""
    with UNDISTURBED:
        depth = _len_torch_function_stack()
        if depth and _get_function_stack_at(depth - 1) is mode:
            return True
        return any(_get_function_stack_at(place) is mode for place in range(depth - 1))


def take_off(mode: Any) -> None:
    """Takes `mode` off this thread's stack; the modes above it stay."""
    above: list[Any] = []
    with UNDISTURBED:
        try:
            while _len_torch_function_stack():
                top = _pop_torch_function_stack()
                if top is mode:
                    break
                above.append(top)
        finally:
            _put_back(above)


def _put_back(above: list[Any]) -> None:
    while above:
        _push_on_torch_function_stack(above.pop())


def is_set_aside(mode: Any) -> bool:
    """Whether torch has taken `mode` off and will put it back: a signal handler runs inside a call that it handles."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "__torch_function__" and frame.f_locals.get("self") is mode:
            return True
        frame = frame.f_back
    return False
