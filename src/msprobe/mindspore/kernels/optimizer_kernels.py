"""Optimizers at level L2: one record per call. MindSpore compiles them, so its dispatch mode sees nothing inside.

The record has the gradients and the parameters before the call, and the parameters after it.
"""

from __future__ import annotations

import traceback
from typing import Any, Callable, Optional

from mindspore import nn

from msprobe.collect.calls.kernel_calls import enter_kernel, fail_kernel, leave_kernel, leave_place
from msprobe.collect.records.recorder import Recorder
from msprobe.dump.names import FORWARD

try:
    from mindspore.experimental.optim.optimizer import Optimizer as Experimental

    _BASES: tuple[Any, ...] = (nn.Optimizer, Experimental)
except ImportError:
    _BASES = (nn.Optimizer,)


class _OptimizerCalls:
    """Replaces `__call__` of every optimizer while it is installed."""

    def __init__(self) -> None:
        self._own: list[tuple[Any, Any]] = []  # a class, and its own __call__ if it had one

    def install(self) -> None:
        if not self._own:
            for base in _BASES:
                self._own.append((base, vars(base).get("__call__")))
                base.__call__ = self._replace(base.__call__)

    def remove(self) -> None:
        for base, own in self._own:
            if own is None:
                del base.__call__
            else:
                base.__call__ = own
        self._own.clear()

    def _replace(self, original: Callable[..., Any]) -> Callable[..., Any]:
        raise NotImplementedError


class UpdateEnds(_OptimizerCalls):
    """Calls `after` when an optimizer has updated its parameters. `after` does not raise."""

    def __init__(self, after: Callable[[], None]) -> None:
        super().__init__()
        self._after = after

    def _replace(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            output = original(optimizer, *args, **kwargs)
            self._after()
            return output

        return call


class Optimizers(_OptimizerCalls):
    """Records the calls of every optimizer while it is installed."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def _replace(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self._recorder

        def call(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.closed:
                return original(optimizer, *args, **kwargs)
            name = f"Kernel.{type(optimizer).__name__}"
            number: Optional[int] = None
            parameters: tuple[Any, ...] = ()
            try:
                name = f"{name}.{recorder.numbers.take(f'{name}.{FORWARD}')}.{FORWARD}"
                parameters = tuple(getattr(optimizer, "parameters", ()))
                number = enter_kernel(recorder, name, FORWARD, recorder.parents, (*args, parameters), kwargs, 2)
                recorder.push(name)
            except Exception:
                recorder.fault(name, traceback.format_exc())
            try:
                output = original(optimizer, *args, **kwargs)
            except BaseException as error:
                fail_kernel(recorder, name, number, error)
                raise
            finally:
                leave_place(recorder, name)
            leave_kernel(recorder, name, number, parameters)
            return output

        return call
