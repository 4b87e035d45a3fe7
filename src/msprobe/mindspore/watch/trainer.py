"""`TrainerMon` for MindSpore: mindstudio-probe's interface and configuration, on the monitor of this package.

A step ends when the optimizer has been called; nothing has to be called.
"""

from __future__ import annotations

from typing import Any, Optional

from msprobe.collect import notices
from msprobe.mindspore.header import rank
from msprobe.mindspore.watch.monitor import Monitor
from msprobe.watch.found import Found
from msprobe.watch.trainer_config import load
from msprobe.watch.trainer_csv import CsvFiles


class TrainerMon:
    """`process_group` and `params_have_main_grad` are accepted and not needed here."""

    def __init__(self, config_file_path: str, process_group: Any = None, params_have_main_grad: bool = True) -> None:
        self._settings = load(config_file_path, rank())
        self.monitor: Optional[_TrainerMonitor] = None
        self._handle: Any = None

    def set_monitor(
        self,
        model: Any,
        grad_acc_steps: int = 1,
        optimizer: Any = None,
        dp_group: Any = None,
        tp_group: Any = None,
        start_iteration: int = 0,
    ) -> None:
        if optimizer is None:
            raise TypeError("set_monitor needs the optimizer: set_monitor(model, grad_acc_steps=…, optimizer=…).")
        if self.monitor is not None:
            notices.warn_once("set_monitor was called again: the first monitor goes on.")
            return
        monitor = self.monitor = _TrainerMonitor(model, optimizer, self._settings, start_iteration)
        self._handle = optimizer.register_forward_hook(lambda cell, arguments, output: monitor.step())

    def close(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        if self.monitor is not None:
            self.monitor.close()


class _TrainerMonitor(Monitor):
    """A monitor that also writes the csv files."""

    def __init__(self, model: Any, optimizer: Any, settings: Any, start: int) -> None:
        self._csv = CsvFiles(settings) if settings.form == "csv" else None
        self._trainer = settings
        super().__init__(model, optimizer, settings.watch, start_step=start)

    def _stored(self, step: int, found: Found) -> None:
        super()._stored(step, found)
        if self._csv is not None:
            self._csv.write(step, self._recording.rows, found)
