"""An alarm starts a dump: a PrecisionDebugger collects the next steps, up to a limit per run."""

from __future__ import annotations

from typing import Any, Callable, Optional

from msprobe.collect import notices
from msprobe.watch.settings import WatchSettings

MakeDebugger = Callable[..., Any]


class AlarmDump:
    """Starts and stops the debugger between two steps; `make` is the framework's PrecisionDebugger."""

    def __init__(self, settings: WatchSettings, make: MakeDebugger, model: Any, in_use: Callable[[], bool]) -> None:
        assert settings.dump is not None
        self._settings, self._path = settings.dump, settings.dump_path
        self._make, self._model, self._in_use = make, model, in_use
        self._left = self._settings.limit
        self._remaining = 0
        self._debugger: Any = None
        self._wanted: Optional[int] = None

    def alarmed(self, step: int) -> None:
        """Called for a step with alarms. While a dump runs, further alarms have no effect."""
        if self._debugger is None and self._left:
            self._wanted = step

    def step_ended(self, step: int) -> None:
        """Called between two steps: ends a step of the dump and begins the next one."""
        if self._debugger is not None:
            self._debugger.stop()
            self._debugger.step()
            self._remaining -= 1
            if self._remaining:
                self._debugger.start(self._model)
            else:
                self._debugger = None
        elif self._wanted is not None:
            self._begin(self._wanted, step + 1)
        self._wanted = None

    def _begin(self, alarmed: int, first: int) -> None:
        if self._in_use():
            notices.warn_once("an alarm did not start a dump: the script uses its own PrecisionDebugger.")
            return
        self._left -= 1
        self._remaining = self._settings.steps
        path = self._path / f"dump_after_step{alarmed}"
        last = "" if self._remaining == 1 else f" to {first + self._remaining - 1}"
        notices.inform(f"the alarm at step {alarmed} starts a dump of step {first}{last} in {path}.")
        debugger = self._make(dump_path=str(path), task=self._settings.task, level=self._settings.level)
        debugger.set_init_step(first)
        debugger.start(self._model)
        self._debugger = debugger

    def close(self) -> None:
        if self._debugger is not None:
            self._debugger.stop()
            self._debugger.step()
            self._debugger = None
