"""The few questions that only MindSpore's PyNative executor can answer, wherever this version keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

try:
    from mindspore.graph.api import _pynative_executor
except ImportError:  # before MindSpore 2.9
    from mindspore.common.api import _pynative_executor

EXECUTOR: Any = type(_pynative_executor)
"""The class whose `grad` every differentiation ends in."""

_executor: Any = _pynative_executor._executor

synchronize: Callable[[], None] = _pynative_executor.sync
"""Returns when everything that was launched has run."""

clear_after_error: Callable[[], None] = _pynative_executor.clear_res
"""What the framework does when an operator raises, and leaves out when the operator ran in a dispatch mode: without it
the next differentiation fails."""

requires_grad: Callable[[], bool] = _executor.requires_grad
"""Whether what runs now is being differentiated."""

differentiating: Callable[[], bool] = _executor.grad_flag
"""Whether a differentiation is open, also where gradients are switched off: an operator that fails now ends it."""

if hasattr(_executor, "get_current_autodiff_engine_id"):
    backward_pass: Callable[[], int] = _executor.get_current_autodiff_engine_id
    when_backward_ends: Callable[[Callable[[], None]], None] = _executor.queue_backward_final_callback
else:

    def backward_pass() -> int:
        """The number of the backward pass that is running, -1 outside of one."""
        return -1

    def when_backward_ends(callback: Callable[[], None]) -> None:
        """Calls back at the end of the running backward pass, where this version can tell it."""


@contextmanager
def no_grad() -> Iterator[None]:
    """What runs inside is no part of a graph."""
    before = _pynative_executor.enable_grad()
    _pynative_executor.set_enable_grad(False)
    try:
        yield
    finally:
        _pynative_executor.set_enable_grad(before)
