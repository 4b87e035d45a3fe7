"""Access to MindSpore's PyNative executor, which is in different modules in different versions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

from msprobe.mindspore.features import graph_api

_pynative_executor: Any = graph_api._pynative_executor
EXECUTOR: Any = type(_pynative_executor)
"""The class whose method `grad` every differentiation calls."""

_executor: Any = _pynative_executor._executor

synchronize: Callable[[], None] = _pynative_executor.sync
"""Waits until all launched operators have run."""

clear_after_error: Callable[[], None] = _pynative_executor.clear_res
"""Clears the executor after an operator has raised. MindSpore does it itself, except for operators in a dispatch mode;
without it the next differentiation fails."""

requires_grad: Callable[[], bool] = _executor.requires_grad
"""Whether the code that runs now is being differentiated."""

differentiating: Callable[[], bool] = _executor.grad_flag
"""Whether a differentiation is in progress, also if gradients are switched off. An operator that fails ends it."""

if hasattr(_executor, "get_current_autodiff_engine_id"):
    backward_pass: Callable[[], int] = _executor.get_current_autodiff_engine_id
    when_backward_ends: Callable[[Callable[[], None]], None] = _executor.queue_backward_final_callback
else:

    def backward_pass() -> int:
        """The number of the current backward pass, -1 outside of one."""
        return -1

    def when_backward_ends(callback: Callable[[], None]) -> None:
        """Calls `callback` at the end of the current backward pass; this version of MindSpore cannot."""


@contextmanager
def no_grad() -> Iterator[None]:
    """Switches gradients off inside the block."""
    before = _pynative_executor.enable_grad()
    _pynative_executor.set_enable_grad(False)
    try:
        yield
    finally:
        _pynative_executor.set_enable_grad(before)
