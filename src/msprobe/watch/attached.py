"""Runs a monitor, a debugger, or both for the callback of a trainer, which counts the steps."""

from __future__ import annotations

from typing import Any, Callable, Optional

from msprobe.collect.guard import guarded
from msprobe.watch.monitor import BaseMonitor
from msprobe.watch.settings import Config


class Attached:
    """`config` is for the monitor; `debugger` is a PrecisionDebugger or its arguments. With neither: a monitor with
    default settings."""

    def __init__(self, config: Config, debugger: Any, make_debugger: Callable[..., Any]) -> None:
        self.wants_monitor = config is not None or debugger is None
        self.config = config
        self._debugger = debugger
        self._make_debugger = make_debugger
        self.monitor: Optional[BaseMonitor] = None
        self._model: Any = None
        self._open = False
        self._losses: list[Any] = []
        self._has_failed = False

    def run(self, act: Callable[..., None], *args: Any) -> None:
        """What a callback does while training runs: after an error of msprobe, training continues without it."""
        if not self._has_failed:
            guarded("the callback of msprobe", act, self._give_up)(*args)

    def _give_up(self) -> None:
        self._has_failed = True
        self.end()

    def begin(self, model: Any, first_step: int, make_monitor: Callable[[], BaseMonitor]) -> None:
        """Training begins at this step."""
        self._model = model
        if isinstance(self._debugger, dict):
            self._debugger = self._make_debugger(**self._debugger)
        if self._debugger is not None and first_step:
            self._debugger.set_init_step(first_step)
        if self.wants_monitor and self.monitor is None:
            self.monitor = make_monitor()

    def step_begins(self) -> None:
        self.run(self._step_begins)

    def _step_begins(self) -> None:
        if self._debugger is not None and not self._open:
            self._open = True
            self._debugger.start(self._model)

    def saw_loss(self, loss: Any) -> None:
        """Adds the loss of a batch; a step with several batches has their mean."""
        if loss is not None:
            self._losses.append(loss)

    def step_ends(self) -> None:
        self.run(self._step_ends)

    def _step_ends(self) -> None:
        if self._debugger is not None and self._open:
            self._open = False
            self._debugger.stop()
            self._debugger.step()
        losses, self._losses = self._losses, []
        if self.monitor is not None:
            self.monitor.step(loss=sum(float(loss) for loss in losses) / len(losses) if losses else None)

    def end(self) -> None:
        if self.monitor is not None:
            self.monitor.close()
            self.monitor = None
