"""`Monitor` for PyTorch: two lines in a training loop.

    monitor = Monitor(model, optimizer, {"dump_path": "./watch"})
    ...
    monitor.step(loss=loss)   # after optimizer.step()

Training with it is bit-identical to training without it. Nothing of ours reaches the script: after a fault of its own
the monitor logs it, switches itself off, and training goes on.
"""

from __future__ import annotations

import atexit
import functools
import os
import traceback
from typing import Any, Callable, Optional

import torch

from msprobe.collect import notices
from msprobe.watch import gauge
from msprobe.watch.alarms.alarm import Alarm
from msprobe.watch.dumping import AlarmDump
from msprobe.watch.recording import INITIAL, Recording
from msprobe.watch.settings import Config, WatchSettings, load
from msprobe.watch.targets import GRAD, LOSS, SCALE, STATE, UPDATE, WEIGHT, Figures

from .modules import ModuleHooks
from .parameters import BackwardHooks, OptimizerHooks, Parameters, torch_optimizers, unwrapped
from .ranks import RankCheck, facts, rank
from .tensors import Gauge


class Monitor:
    """Watches one training run of this process.

    `optimizer` may be one, a list or dict of them (optimizer in backward), or None: then every optimizer that steps
    watched parameters counts. `start_step` is the number of the first step, for a run that goes on from a checkpoint:
    earlier steps of the file stay. `on_alarm` is called with each `Alarm`.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any = None,
        config: Config = None,
        *,
        scaler: Any = None,
        start_step: int = 0,
        on_alarm: Optional[Callable[[Alarm], None]] = None,
    ) -> None:
        self._settings = settings = load(config)
        models = list(model) if isinstance(model, (list, tuple)) else [model]
        if not models or not all(isinstance(one, torch.nn.Module) for one in models):
            raise TypeError(f"Monitor needs a torch.nn.Module, or a list of them, not {type(model).__name__}.")
        self.step_number = start_step
        self._scaler = scaler
        self._on = settings.ranks is None or (rank() or 0) in settings.ranks
        self._pid = os.getpid()
        self._found: dict[int, Figures] = {}
        self._stepped = False
        self._overflowed = False
        if not self._on:
            return
        self._recording = Recording(settings, rank(), facts(), start_step)
        if on_alarm is not None:
            self._recording.callbacks.append(on_alarm)
        self._gauge = Gauge(gauge.bounds(settings.low_precision))
        self._parameters = Parameters(models, self._recording, self._gauge)
        optimizers = torch_optimizers(optimizer)
        self._optimizers = OptimizerHooks(optimizers, self._guarded(self._optimizer_steps), self._parameters)
        self._backward = BackwardHooks(self._parameters, settings.targets, self._guarded)
        self._modules = ModuleHooks(models, self._recording, self._gauge, self._guarded)
        self._ranks = RankCheck(self._parameters, self._recording) if settings.check_ranks else None
        self._dump = self._make_dump(settings, unwrapped(models[0]) if len(models) == 1 else models)
        atexit.register(self.close)
        self._guarded(self._begin)()

    def _make_dump(self, settings: WatchSettings, model: Any) -> Optional[AlarmDump]:
        if settings.dump is None:
            return None
        from msprobe.pytorch import PrecisionDebugger

        ours: list[Any] = []

        def make(**arguments: Any) -> Any:
            ours[:] = [PrecisionDebugger(**arguments)]
            return ours[0]

        def in_use() -> bool:
            current = PrecisionDebugger._current
            return current is not None and current not in ours

        dump = AlarmDump(settings, make, model, in_use)
        self._recording.dumper = dump
        return dump

    # What the script calls.

    def step(self, loss: Any = None, **numbers: Any) -> None:
        """A step is over; call it after `optimizer.step()`. Other numbers are stored beside the loss."""
        step = self.step_number
        self.step_number += 1
        if self._on and os.getpid() == self._pid:
            self._guarded(self._end)(step, loss, numbers)

    def close(self) -> None:
        """Removes every hook; what was measured is on disk already."""
        if self._on and os.getpid() == self._pid:
            self._on = False
            self._modules.remove()
            self._backward.remove()
            self._optimizers.remove()
            if self._dump is not None:
                self._dump.close()
            self._recording.close()
            atexit.unregister(self.close)

    @property
    def path(self) -> Any:
        """The directory that `msprobe watch` reads."""
        return self._settings.dump_path

    # A watched step from its beginning to its end.

    def _begin(self) -> None:
        """Before the first step: the weights as they are, then the hooks of the first step."""
        if WEIGHT in self._settings.targets:
            found: dict[int, Figures] = {}
            self._parameters.read_weights(found)
            self._gauge.resolve()
            self._recording.take(INITIAL, found, {})
            if self._ranks is not None:
                self._ranks.check(INITIAL, found)
        self._prepare(self.step_number)

    def _prepare(self, step: int) -> None:
        self._found = {}
        self._stepped = self._overflowed = False
        if self._settings.wants(step):
            self._backward.install(self._found)
            self._modules.install(self._found)
            if UPDATE in self._settings.targets:
                self._parameters.sample()
        else:
            self._backward.remove()
            self._modules.remove()

    def _optimizer_steps(self, optimizer: Any, mine: list[Any]) -> None:
        self._stepped = True
        if not self._settings.wants(self.step_number):
            return
        flag = getattr(optimizer, "found_inf", None)  # a fused optimizer under a gradient scaler decides by itself
        if flag is not None and float(flag):
            self._overflowed = True
        if GRAD in self._settings.targets:
            self._parameters.read_gradients(GRAD, self._found, mine)
            scale = getattr(optimizer, "grad_scale", None)
            if scale is not None:
                self._unscale(mine, float(scale))

    def _unscale(self, mine: list[Any], scale: float) -> None:
        self._gauge.resolve()
        for one in mine:
            figures = self._found.get(one.rows.get(GRAD, -1))
            if figures is not None:
                norm, most, least, mean = (value / scale for value in figures[:4])
                self._found[one.rows[GRAD]] = figures._replace(norm=norm, max=most, min=least, mean=mean)

    def _end(self, step: int, loss: Any, numbers: dict[str, Any]) -> None:
        if self._settings.wants(step):
            self._take(step, loss, numbers)
        if self._dump is not None:
            self._dump.step_ended(step)
        self._prepare(step + 1)

    def _take(self, step: int, loss: Any, numbers: dict[str, Any]) -> None:
        settings, parameters, found = self._settings, self._parameters, self._found
        skipped = self._overflowed or (self._optimizers.sees_steps and not self._stepped)
        if GRAD in settings.targets and not self._stepped:
            parameters.read_gradients(GRAD, found)
        if WEIGHT in settings.targets:
            parameters.read_weights(found)
        if STATE in settings.targets:
            parameters.read_state(self._optimizers.optimizers, found)
        if UPDATE in settings.targets:
            parameters.read_updates(found)
        self._modules.report()
        self._gauge.resolve()
        rates, idle = self._optimizers.learning_rates()
        scalars = {**self._scalars(loss, numbers), **rates}
        self._recording.take(step, found, scalars, skipped, idle)
        if self._ranks is not None:
            self._ranks.check(step, found)

    def _scalars(self, loss: Any, numbers: dict[str, Any]) -> dict[str, float]:
        given = {LOSS: loss, **numbers} if loss is not None else dict(numbers)
        scalars = {name: _number(value) for name, value in given.items()}
        if self._scaler is not None and SCALE not in scalars:
            scalars[SCALE] = float(self._scaler.get_scale())
        return scalars

    def _guarded(self, act: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(act, assigned=())
        def run(*call: Any) -> None:
            try:
                act(*call)
            except Exception:
                notices.warn(f"the monitor is off from here on, the script goes on:\n{traceback.format_exc()}")
                self.close()

        return run


def _number(value: Any) -> float:
    return float(value.detach()) if isinstance(value, torch.Tensor) else float(value)
