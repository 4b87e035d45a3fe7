"""The part of `TrainerMon` that both frameworks share."""

from __future__ import annotations

from typing import Any, Optional

from msprobe.collect import notices
from msprobe.watch.monitor import BaseMonitor
from msprobe.watch.trainer_config import TrainerSettings, count_from


class BaseTrainerMon:
    """A step ends when the optimizer has been called. `_handles` are the hooks for this."""

    _settings: TrainerSettings

    def __init__(self) -> None:
        self.monitor: Optional[BaseMonitor] = None
        self._handles: list[Any] = []

    def set_monitor(
        self,
        model: Any,
        *places: Any,
        grad_acc_steps: int = 1,
        optimizer: Any = None,
        dp_group: Any = None,
        tp_group: Any = None,
        start_iteration: int = 0,
    ) -> None:
        """Pass the arguments after the model by name: their order differs between versions of mindstudio-probe."""
        optimizer = next((place for place in places[:2] if callable(place) or hasattr(place, "step")), optimizer)
        if optimizer is None:
            raise TypeError("set_monitor needs the optimizer: set_monitor(model, grad_acc_steps=…, optimizer=…).")
        if self.monitor is not None:
            notices.warn_once("set_monitor was called again and ignored; the first monitor continues.")
            return
        self._settings = count_from(self._settings, start_iteration)
        self.monitor = self._begin(model, optimizer, start_iteration)

    def _begin(self, model: Any, optimizer: Any, start: int) -> BaseMonitor:
        """Creates the monitor, which steps after each call of the optimizer."""
        raise NotImplementedError

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self.monitor is not None:
            self.monitor.close()
