"""`msprobe run --watch`: adds a monitor to a script that was not edited.

The first called module that has parameters is the model. A step ends with each optimizer step that changes its
parameters. The tensor whose `backward()` is called is taken as the loss.
"""

from __future__ import annotations

import functools
import os
import traceback
from typing import Any, Optional

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from msprobe.collect import notices
from msprobe.collect.guard import guarded
from msprobe.dump.plural import count
from msprobe.pytorch.watch.monitor import Monitor
from msprobe.watch.settings import WatchSettings

_WHAT = "`msprobe run --watch`"


class WatchDriver:
    """Installed after torch has been imported."""

    def __init__(self, settings: WatchSettings) -> None:
        self._settings = settings
        self._monitor: Optional[Monitor] = None
        self._known: set[int] = set()
        self._losses: list[Any] = []
        self._pid = os.getpid()

    def install(self) -> None:
        original_call = torch.nn.Module.__call__
        original_backward = torch.Tensor.backward
        saw_loss = guarded(_WHAT, self._saw_loss, self._stop)

        @functools.wraps(original_call)
        def called(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self._monitor is None and not torch.compiler.is_compiling():
                self._called(module)
            if self._monitor is not None and torch.nn.Module.__call__ is called:
                torch.nn.Module.__call__ = original_call
            return original_call(module, *args, **kwargs)

        @functools.wraps(original_backward)
        def backward(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            saw_loss(tensor)
            return original_backward(tensor, *args, **kwargs)

        torch.nn.Module.__call__ = called
        torch.Tensor.backward = backward

    def _called(self, module: Any) -> None:
        try:
            if os.getpid() != self._pid or next(module.parameters(), None) is None:
                return
            self._monitor = Monitor(module, None, self._settings)
            # After the monitor's own hooks.
            register_optimizer_step_post_hook(guarded(_WHAT, self._stepped, self._stop))
            self._known = {id(parameter) for parameter in module.parameters()}
            name = type(module).__name__
            notices.inform(f"watching {name}, the first module called; output in {self._settings.dump_path}.")
        except Exception:
            notices.warn(f"`msprobe run --watch` could not start; the script continues:\n{traceback.format_exc()}")
            self._known = set()

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._monitor is None or os.getpid() != self._pid:
            return
        if any(id(one) in self._known for group in optimizer.param_groups for one in group["params"]):
            losses, self._losses = self._losses, []
            self._monitor.step(loss=sum(float(loss) for loss in losses) / len(losses) if losses else None)

    def _saw_loss(self, tensor: Any) -> None:
        if tensor.numel() == 1 and not tensor.is_complex():
            self._losses.append(tensor.detach())

    def _stop(self) -> None:
        if self._monitor is not None:
            self._monitor.close()

    def say_result(self) -> None:
        """Called after the script."""
        if self._monitor is None:
            notices.warn("nothing was watched: the script called no torch.nn.Module that has parameters.")
        elif not self._monitor.step_number:
            notices.warn("nothing was watched: no optimizer of the script updated a parameter of the model.")
        else:
            steps = count(self._monitor.step_number, "step")
            notices.inform(f"watched {steps}: msprobe watch {self._settings.dump_path}")
