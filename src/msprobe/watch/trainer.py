"""The part of `TrainerMon` that both frameworks share."""

from __future__ import annotations

from typing import Any, Optional

from msprobe.collect import notices
from msprobe.watch.monitor import BaseMonitor


class BaseTrainerMon:
    """A step ends when the optimizer has been called. `_handles` are the hooks that see this."""

    def __init__(self) -> None:
        self.monitor: Optional[BaseMonitor] = None
        self._handles: list[Any] = []

    def _may_begin(self, optimizer: Any) -> bool:
        """Whether set_monitor may make a monitor: it has an optimizer, and was not called before."""
        if optimizer is None:
            raise TypeError("set_monitor needs the optimizer: set_monitor(model, grad_acc_steps=…, optimizer=…).")
        if self.monitor is not None:
            notices.warn_once("set_monitor was called again: the first monitor goes on.")
        return self.monitor is None

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self.monitor is not None:
            self.monitor.close()
