"""Puts our mode on this thread's stack of torch-function modes, and removes it.

Our mode is below all others. A context that ends (`with torch.device(...)`, any mode of the user) removes the top mode
without a check. If our mode were above a context entered before start(), ours would be removed and the context would
stay.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C import (
    _get_function_stack_at,
    _len_torch_function_stack,
    _pop_torch_function_stack,
    _push_on_torch_function_stack,
)


def put_on(mode: Any) -> None:
    """Puts `mode` on this thread's stack, above only the default device, which torch wants lowest."""
    default = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)
    above = []
    while _len_torch_function_stack():
        if default is not None and _get_function_stack_at(_len_torch_function_stack() - 1) is default:
            break
        above.append(_pop_torch_function_stack())
    _push_on_torch_function_stack(mode)
    for other in reversed(above):
        _push_on_torch_function_stack(other)


def modes() -> list[Any]:
    """The modes on this thread's stack, the lowest first."""
    return [_get_function_stack_at(place) for place in range(_len_torch_function_stack())]


def is_on(mode: Any) -> bool:
    """Whether `mode` is on this thread's stack; it usually is on top."""
    depth = _len_torch_function_stack()
    if depth and _get_function_stack_at(depth - 1) is mode:
        return True
    return any(_get_function_stack_at(place) is mode for place in range(depth - 1))


def take_off(mode: Any) -> None:
    """Takes `mode` off this thread's stack; the modes above it stay."""
    above = []
    while _len_torch_function_stack():
        top = _pop_torch_function_stack()
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        _push_on_torch_function_stack(other)
