"""This thread's stack of torch-function modes: our mode on it, off it, or under somebody else's."""

from __future__ import annotations

from typing import Any

from torch._C import (
    _get_function_stack_at,
    _len_torch_function_stack,
    _pop_torch_function_stack,
    _push_on_torch_function_stack,
)

put_on = _push_on_torch_function_stack


def is_on(mode: Any) -> bool:
    """Whether `mode` is on this thread's stack; it usually is on top."""
    return any(_get_function_stack_at(place) is mode for place in range(_len_torch_function_stack() - 1, -1, -1))


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
