"""`Monitor` for PyTorch: two lines in a training loop.

    monitor = Monitor(model, optimizer, {"dump_path": "./watch"})
    ...
    monitor.step(loss=loss)   # after optimizer.step()

Training with it is bit-identical to training without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Optional

import torch

from msprobe.pytorch.watch.attention import AttentionHooks
from msprobe.pytorch.watch.health import OutlierHooks, QuantisationHooks
from msprobe.pytorch.watch.modules import ModuleHooks
from msprobe.pytorch.watch.parameters import BackwardHooks, OptimizerHooks, Parameters, torch_optimizers, unwrapped
from msprobe.pytorch.watch.ranks import RankCheck, facts, rank
from msprobe.pytorch.watch.stale_gradient import StaleGradient
from msprobe.pytorch.watch.tensors import Gauge
from msprobe.watch import gauge
from msprobe.watch.monitor import BaseMonitor, OnAlarm, list_models
from msprobe.watch.settings import Config, WatchSettings
from msprobe.watch.step_figures import StepFigures
from msprobe.watch.targets import ATTENTION_LOGITS, GRAD, OUTLIERS, QUANTISATION, SCALE, STATE, UPDATE

_HEALTH: dict[str, Any] = {
    ATTENTION_LOGITS: AttentionHooks,
    OUTLIERS: OutlierHooks,
    QUANTISATION: QuantisationHooks,
}


class Monitor(BaseMonitor):
    """Watches one training run of this process.

    `optimizer` is one optimizer, a list or dict of them (optimizer in backward), or None: then every optimizer that
    steps watched parameters counts. `start_step` is the number of the first step, for a run that resumes from a
    checkpoint: earlier steps in the file are kept. `on_alarm` is called with each `Alarm`.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any = None,
        config: Config = None,
        *,
        scaler: Any = None,
        start_step: int = 0,
        on_alarm: Optional[OnAlarm] = None,
    ) -> None:
        models = list_models(model, torch.nn.Module, "torch.nn.Module")
        super().__init__(config, rank(), facts(), start_step, on_alarm)
        self._scaler = scaler
        self._stepped = False
        self._overflowed = False
        self._scale = 1.0
        self._replay: Any = None
        if self._on:
            self._guarded(self._make_sources)(self._settings, models, torch_optimizers(optimizer))
        if self._on:
            self._guarded(self._begin)()

    def _make_sources(self, settings: WatchSettings, models: list[Any], optimizers: list[Any]) -> None:
        self._gauge = Gauge(gauge.bounds(settings.low_precision))
        self._parameters = Parameters(models, self._recording, self._gauge)
        self._optimizers = OptimizerHooks(optimizers, self._optimizer_steps, self._parameters, self._guarded)
        self._backward = BackwardHooks(models, self._parameters, settings.targets, self._guarded)
        self._modules = ModuleHooks(models, self._recording, self._gauge, self._guarded)
        self._stale = StaleGradient(self._parameters, self._gauge, self._guarded)
        self._health: list[Any] = []
        for kind, make in _HEALTH.items():
            if kind in settings.targets:
                self._health.append(make(models, self._recording, self._guarded))
        self._hooks = (self._backward, self._modules, self._stale, *self._health)
        self._ranks = RankCheck(self._parameters, self._recording) if settings.check_ranks else None
        if settings.replay is not None:
            from msprobe.pytorch.watch.replay import Replay

            self._replay = Replay(models, self._recording, settings.replay, self._quiet)
        if settings.dump is not None:
            from msprobe.pytorch import PrecisionDebugger

            self._make_dump(PrecisionDebugger, unwrapped(models[0]) if len(models) == 1 else models)

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        self._is_quiet = True
        try:
            yield
        finally:
            self._is_quiet = False

    def _prepare(self, step: int, unchanged: bool) -> None:
        for hooks in self._health:
            hooks.prepare(step)
        super()._prepare(step, unchanged)
        if self._replay is not None:
            self._replay.prepare(step)

    def _remove(self) -> None:
        super()._remove()
        if self._replay is not None:
            self._replay.end()

    def _install(self, found: StepFigures, unchanged: bool) -> None:
        self._stepped = self._overflowed = False
        self._scale = 1.0 if self._scaler is None else float(self._scaler.get_scale())
        super()._install(found, unchanged)

    def _optimizer_steps(self, optimizer: Any, mine: list[Any]) -> None:
        self._stepped = True
        self._stale.used(mine)
        if self._replay is not None:
            self._replay.check(self.step_number)
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

    def _read_weights(self, found: StepFigures) -> None:
        self._parameters.read_weights(found)
        self._gauge.resolve()

    def _read(self, found: StepFigures) -> bool:
        targets, parameters = self._settings.targets, self._parameters
        if GRAD in targets and not self._stepped:
            parameters.read_gradients(GRAD, found)
        if STATE in targets:
            parameters.read_state(self._optimizers.optimizers, found)
        if UPDATE in targets:
            parameters.read_updates(found)
        self._gauge.resolve()
        self._modules.finish()
        for hooks in self._health:
            hooks.finish()
        if self._scale != 1:
            rows = self._recording.rows
            scaled, quantised = rows.mask("scaled"), rows.mask("quantised gradient")
            table = found.reserve(len(rows))[: len(rows)]
            table[scaled, :4] /= self._scale  # norm, max, min, mean
            table[quantised, :2] /= self._scale  # norm and max
        return self._overflowed or (self._optimizers.sees_steps and not self._stepped)

    def _rates(self) -> tuple[dict[str, float], Iterable[str]]:
        rates, idle = self._optimizers.learning_rates()
        if self._scaler is not None:
            rates[SCALE] = float(self._scaler.get_scale())
        return rates, idle

    def _stale_gradient(self) -> str:
        return self._stale.name

    def _number(self, value: Any) -> float:
        return float(value.detach()) if isinstance(value, torch.Tensor) else float(value)

    def _stored(self, step: int, found: StepFigures) -> None:
        if self._ranks is not None:
            self._ranks.check(step, found)
