"""This thread's stack of torch-function modes: our mode on it, or off it.

It stands below everybody else's. Who leaves a context takes the top off without looking (`with torch.device(...)`,
any mode of the user's): were ours on top of a context entered before start(), it would be lost and the context kept.
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
    """Puts `mode` on this thread's stack, above nothing but the default device: torch wants that one lowest."""
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
    """What is on this thread's stack."""
    return [_get_function_stack_at(place) for place in range(_len_torch_function_stack())]


def is_on(mode: Any) -> bool:
    """Whether `mode` is on this thread's stack; it usually is on top."""
    depth = _len_torch_function_stack()
    if depth and _get_function_stack_at(depth - 1) is mode:
        return True
    return any(_get_function_stack_at(place) is mode for place in range(depth - 1))


def take_off(mode: Any) -> None:
    """Takes `mode` off this thread's stack, from under whatever stands on it."""
    above = []
    while _len_torch_function_stack():
        top = _pop_torch_function_stack()
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        _push_on_torch_function_stack(other)
