"""`Monitor` for MindSpore: two lines in a training loop.

    monitor = Monitor(network, optimizer, {"dump_path": "./watch"})
    ...
    monitor.step(loss=loss)   # after optimizer(grads)

Training with it is bit-identical to training without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable, Optional

import mindspore
from mindspore import nn
from mindspore._c_expression import TensorPy

from msprobe.collect import notices
from msprobe.mindspore.header import mindspore_facts, rank
from msprobe.mindspore.tensors.late_errors import KEPT, raise_kept
from msprobe.mindspore.watch.attention import AttentionHooks
from msprobe.mindspore.watch.cells import CellHooks
from msprobe.mindspore.watch.health import OutlierHooks, QuantisationHooks
from msprobe.mindspore.watch.parameters import DifferentiationHook, OptimizerHooks, Parameters, gradients_of
from msprobe.watch import gauge
from msprobe.watch.monitor import BaseMonitor, OnAlarm, list_models
from msprobe.watch.settings import Config
from msprobe.watch.step_figures import StepFigures
from msprobe.watch.targets import (
    ATTENTION_LOGITS,
    GRAD,
    LEARNING_RATE,
    OUTLIERS,
    QUANTISATION,
    STATE,
    UPDATE,
)

_HEALTH: dict[str, Any] = {
    ATTENTION_LOGITS: AttentionHooks,
    OUTLIERS: OutlierHooks,
    QUANTISATION: QuantisationHooks,
}


class Monitor(BaseMonitor):
    """Watches one training run of this process.

    `optimizer` is one optimizer or a list. `start_step` is the number of the first step, for a run that resumes from
    a checkpoint. `on_alarm` is called with each `Alarm`.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any = None,
        config: Config = None,
        *,
        start_step: int = 0,
        on_alarm: Optional[OnAlarm] = None,
    ) -> None:
        models = list_models(model, nn.Cell, "mindspore.nn.Cell")
        facts = {"framework": "mindspore", "version": mindspore.__version__}
        facts["world_size"] = mindspore_facts()["world_size"]
        super().__init__(config, rank(), facts, start_step, on_alarm)
        self._stepped = False
        if self._on:
            self._guarded(self._make_sources)(models, optimizer)
        if self._on:
            self._guarded(self._begin)()

    def _make_sources(self, models: list[Any], optimizer: Any) -> None:
        settings = self._settings
        outside = gauge.bounds(settings.low_precision)
        optimizers = (
            [] if optimizer is None else list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
        )
        self._parameters = Parameters(models, self._recording, outside)
        self._optimizers = OptimizerHooks(optimizers, self._guarded(self._optimizer_called))
        self._differentiation = DifferentiationHook(self._parameters, settings.targets, self._guarded)
        if settings.replay is not None:
            notices.warn("replay has no effect with MindSpore: msprobe repeats steps of PyTorch models only.")
        if settings.check_ranks:
            notices.warn_once(
                "check_ranks has no effect with MindSpore; `msprobe watch` compares the ranks from their files."
            )
        self._cells = CellHooks(models, self._recording, outside, self._guarded)
        self._health = [
            make(models, self._recording, self._guarded) for kind, make in _HEALTH.items() if kind in settings.targets
        ]
        self._hooks = (self._differentiation, self._cells, *self._health)
        if settings.dump is not None:
            from msprobe.mindspore import PrecisionDebugger

            self._make_dump(PrecisionDebugger, models[0] if len(models) == 1 else models)

    def _guarded(self, act: Callable[..., Any]) -> Callable[..., None]:
        """An error of an operator that the monitor waited for belongs to the script."""
        guarded = super()._guarded(act)

        def run(*call: Any) -> None:
            guarded(*call)
            if KEPT:
                raise_kept()

        return run

    def _prepare(self, step: int, unchanged: bool) -> None:
        for hooks in self._health:
            hooks.prepare(step)
        super()._prepare(step, unchanged)

    def _install(self, found: StepFigures, unchanged: bool) -> None:
        self._stepped = False
        super()._install(found, unchanged)

    def _optimizer_called(self, optimizer: Any, gradients: Any) -> None:
        self._stepped = True
        if GRAD in self._settings.targets and self._settings.wants(self.step_number):
            gradients_of(optimizer, gradients, self._parameters, self._found)

    def _read_weights(self, found: StepFigures) -> None:
        self._parameters.read_weights(found)

    def _read(self, found: StepFigures) -> bool:
        if STATE in self._settings.targets:
            self._parameters.read_state(self._optimizers.optimizers, found)
        if UPDATE in self._settings.targets:
            self._parameters.read_updates(found)
        for hooks in self._health:
            hooks.finish()
        return self._optimizers.sees_steps and not self._stepped

    def _rates(self) -> tuple[dict[str, float], Iterable[str]]:
        rates = self._optimizers.learning_rates()
        stands_still = bool(rates) and rates.get(LEARNING_RATE) == 0
        return rates, [one.name for one in self._parameters.all] if stands_still else ()

    def _number(self, value: Any) -> float:
        return float(value.asnumpy()) if isinstance(value, TensorPy) else float(value)
