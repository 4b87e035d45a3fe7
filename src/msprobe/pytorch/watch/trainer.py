"""`TrainerMon` for PyTorch: the interface and configuration of mindstudio-probe, with the monitor of this package.

    monitor = TrainerMon("monitor_config.json", params_have_main_grad=False)
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)

A step ends when the optimizer has stepped; the script calls nothing else.
"""

from __future__ import annotations

from typing import Any

import torch

from msprobe.pytorch.watch.monitor import Monitor
from msprobe.pytorch.watch.parameters import torch_optimizers
from msprobe.pytorch.watch.ranks import rank
from msprobe.watch.settings import WatchSettings
from msprobe.watch.step_figures import StepFigures
from msprobe.watch.trainer import BaseTrainerMon
from msprobe.watch.trainer_config import load
from msprobe.watch.trainer_csv import CsvFiles


class TrainerMon(BaseTrainerMon):
    """`process_group` is accepted and ignored: nothing is reduced between ranks."""

    def __init__(self, config_file_path: str, process_group: Any = None, params_have_main_grad: bool = True) -> None:
        super().__init__()
        self._settings = load(config_file_path, rank())
        self._main_grad = params_have_main_grad

    def _begin(self, model: Any, optimizer: Any, start: int) -> Monitor:
        monitor = _TrainerMonitor(model, optimizer, self._settings, self._main_grad, start)
        self._end_steps_with(optimizer, monitor)
        return monitor

    def _end_steps_with(self, optimizer: Any, monitor: Monitor) -> None:
        if isinstance(optimizer, torch.optim.Optimizer):
            last = torch_optimizers(optimizer)[-1]
            self._handles.append(last.register_step_post_hook(lambda *call: monitor.step()))
            return
        original = optimizer.step  # Megatron's and DeepSpeed's wrappers have no hooks

        def step(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            monitor.step()
            return result

        optimizer.step = step


class _TrainerMonitor(Monitor):
    """A monitor that also writes the csv files."""

    def __init__(self, model: Any, optimizer: Any, settings: Any, main_grad: bool, start: int) -> None:
        self._csv = CsvFiles(settings) if settings.form == "csv" else None
        self._trainer = settings
        self._main_grad = main_grad
        super().__init__(model, optimizer, settings.watch, start_step=start)

    def _make_sources(self, settings: WatchSettings, models: list[Any], optimizers: list[Any]) -> None:
        super()._make_sources(settings, models, optimizers)
        self._parameters.main_grad = self._main_grad
        if self._trainer.modules is not None:
            self._modules.keep(self._trainer.modules)

    def _stored(self, step: int, found: StepFigures) -> None:
        super()._stored(step, found)
        if self._csv is not None:
            self._csv.write(step, self._recording.rows, found)
