"""The part of a monitor that both frameworks share: when a step begins and ends, and what happens then.

A frontend subclasses `BaseMonitor`, creates its sources in `__init__` and calls `_begin`. No exception of the monitor
reaches the script: the monitor logs it and switches itself off, and training continues.
"""

from __future__ import annotations

import atexit
import functools
import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Callable, Optional

from msprobe.collect import notices
from msprobe.collect.guard import guarded
from msprobe.watch.alarms.alarm import Alarm
from msprobe.watch.dumping import AlarmDump
from msprobe.watch.recording import INITIAL, Recording
from msprobe.watch.settings import Config, load
from msprobe.watch.step_figures import StepFigures
from msprobe.watch.targets import LOSS, UPDATE, WEIGHT

OnAlarm = Callable[[Alarm], None]


def list_models(model: Any, kind: type, name: str) -> list[Any]:
    """The models that a script passed to its monitor: one, or a list."""
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    if not models or not all(isinstance(one, kind) for one in models):
        raise TypeError(f"Monitor needs a {name}, or a list of them, not {type(model).__name__}.")
    return models


class BaseMonitor:
    """Watches one training run of this process. The script calls `step`."""

    def __init__(
        self,
        config: Config,
        rank: Optional[int],
        facts: dict[str, Any],
        start_step: int,
        on_alarm: Optional[OnAlarm],
    ) -> None:
        settings = self._settings = load(config)
        self.step_number = start_step
        self._pid = os.getpid()
        self._on = settings.ranks is None or (rank or 0) in settings.ranks
        self._found = StepFigures(0)
        self._dump: Optional[AlarmDump] = None
        if not self._on:
            return
        try:
            self._recording = Recording(settings, rank, facts, start_step)
        except (OSError, sqlite3.Error) as error:
            self._on = False
            notices.warn(
                f"the monitor cannot write to {settings.dump_path} and is off; the script continues. "
                f"Choose another dump_path. ({error})"
            )
            return
        if on_alarm is not None:
            self._recording.callbacks.append(on_alarm)
        atexit.register(self.close)

    # What each framework provides.

    _parameters: Any
    """The watched parameters."""
    _optimizers: Any = None
    """The hooks of the optimizers; they stay while the monitor lives."""
    _is_quiet = False
    """Whether the hooks measure nothing now: msprobe itself runs the model."""
    _hooks: tuple[Any, ...] = ()
    """The hooks of a watched step: each has `install(found)` and `remove()`."""

    def _read_weights(self, found: StepFigures) -> None:
        raise NotImplementedError

    def _install(self, found: StepFigures, unchanged: bool) -> None:
        """Installs the hooks of a watched step. They store their figures in `found`.

        `unchanged`: no code of the script ran since the updates of the last step were read."""
        for hooks in self._hooks:
            hooks.install(found)
        if UPDATE in self._settings.targets:
            self._parameters.sample(unchanged)

    def _uninstall(self) -> None:
        """The next step is not watched."""
        for hooks in self._hooks:
            hooks.remove()

    def _read(self, found: StepFigures) -> bool:
        """Reads everything but weights at the end of a watched step. Returns whether the optimizer step was skipped."""
        raise NotImplementedError

    def _rates(self) -> tuple[dict[str, float], Iterable[str]]:
        """Learning rates and similar numbers as scalars, and the parameters whose rate is 0."""
        raise NotImplementedError

    def _stale_gradient(self) -> str:
        """A parameter whose gradient still had the values of an earlier step when the backward pass came, or ""."""
        return ""

    def _number(self, value: Any) -> float:
        raise NotImplementedError

    def _stored(self, step: int, found: StepFigures) -> None:
        """Called after a step was stored, including the weights before the first step."""

    def _remove(self) -> None:
        """Removes every hook when the monitor ends."""
        self._uninstall()
        if self._optimizers is not None:
            self._optimizers.remove()

    # What the script calls.

    def step(self, loss: Any = None, **numbers: Any) -> None:
        """Ends a step. Call it after the optimizer's step. Other numbers are stored with the loss."""
        step = self.step_number
        self.step_number += 1
        if self._on and os.getpid() == self._pid:
            self._guarded(self._end)(step, loss, numbers)

    def close(self) -> None:
        """Removes every hook. All measured numbers are already on disk."""
        if self._on and os.getpid() == self._pid:
            self._on = False
            atexit.unregister(self.close)
            for act in (self._remove, self._close_dump, self._recording.close):
                guarded("the end of the monitor", act, lambda: None)()

    def _close_dump(self) -> None:
        if self._dump is not None:
            self._dump.close()

    @property
    def path(self) -> Path:
        """The directory that `msprobe watch` reads."""
        return self._settings.dump_path

    @property
    def alarms(self) -> int:
        """The number of alarms so far."""
        return self._recording.alarms if hasattr(self, "_recording") else 0

    # A step from its beginning to its end.

    def _begin(self) -> None:
        """Stores the weights before the first step and installs the hooks of the first step."""
        if WEIGHT in self._settings.targets:
            found = StepFigures(0)
            self._read_weights(found)
            self._recording.take(INITIAL, found, {})
            self._stored(INITIAL, found)
        self._prepare(self.step_number, False)

    def _prepare(self, step: int, unchanged: bool) -> None:
        self._found = StepFigures(len(self._recording.rows))
        if self._settings.wants(step):
            self._install(self._found, unchanged)
        else:
            self._uninstall()

    def _end(self, step: int, loss: Any, numbers: dict[str, Any]) -> None:
        alarms, watched = self._recording.alarms, self._settings.wants(step)
        if watched:
            found = self._found
            skipped = self._read(found)
            if WEIGHT in self._settings.targets:
                self._read_weights(found)
            rates, idle = self._rates()
            given = {LOSS: loss, **numbers} if loss is not None else numbers
            scalars = {**{name: self._number(value) for name, value in given.items()}, **rates}
            self._recording.take(step, found, scalars, skipped, idle, self._stale_gradient())
            self._stored(step, found)
        if self._dump is not None:
            self._dump.step_ended(step)
        self._prepare(step + 1, watched and alarms == self._recording.alarms)  # an alarm calls the script

    def _make_dump(self, debugger: Any, model: Any) -> None:
        """Lets alarms start a dump; `debugger` is the framework's PrecisionDebugger."""
        ours: list[Any] = []

        def make(**arguments: Any) -> Any:
            ours[:] = [debugger(**arguments)]
            return ours[0]

        def in_use() -> bool:
            return debugger._current is not None and debugger._current not in ours

        self._dump = self._recording.dumper = AlarmDump(self._settings, make, model, in_use)

    def _guarded(self, act: Callable[..., Any]) -> Callable[..., None]:
        """A hook that returns nothing, whatever `act` returns."""
        checked = guarded("the monitor", act, self.close)

        @functools.wraps(act, assigned=())
        def run(*call: Any) -> None:
            if not self._is_quiet:
                checked(*call)

        return run
