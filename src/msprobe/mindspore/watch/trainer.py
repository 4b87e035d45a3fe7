"""`TrainerMon` for MindSpore: the interface and configuration of mindstudio-probe, with the monitor of this package.

A step ends when the optimizer has been called; the script calls nothing else.
"""

from __future__ import annotations

from typing import Any

from msprobe.mindspore.header import rank
from msprobe.mindspore.watch.monitor import Monitor
from msprobe.watch.step_figures import StepFigures
from msprobe.watch.trainer import BaseTrainerMon
from msprobe.watch.trainer_config import load
from msprobe.watch.trainer_csv import CsvFiles


class TrainerMon(BaseTrainerMon):
    """`process_group` and `params_have_main_grad` are accepted and ignored."""

    def __init__(self, config_file_path: str, process_group: Any = None, params_have_main_grad: bool = True) -> None:
        super().__init__()
        self._settings = load(config_file_path, rank())

    def _begin(self, model: Any, optimizer: Any, start: int) -> Monitor:
        monitor = _TrainerMonitor(model, optimizer, self._settings, start)
        self._handles = [optimizer.register_forward_hook(lambda cell, arguments, output: monitor.step())]
        return monitor


class _TrainerMonitor(Monitor):
    """A monitor that also writes the csv files."""

    def __init__(self, model: Any, optimizer: Any, settings: Any, start: int) -> None:
        self._csv = CsvFiles(settings) if settings.form == "csv" else None
        self._trainer = settings
        super().__init__(model, optimizer, settings.watch, start_step=start)

    def _stored(self, step: int, found: StepFigures) -> None:
        super()._stored(step, found)
        if self._csv is not None:
            self._csv.write(step, self._recording.rows, found)
