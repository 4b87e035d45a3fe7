"""The hooks of one step, as the lifecycle uses them, the same for both frameworks.

A framework provides `StepHooks`: how to install and remove them. The token range, save() and the messages at the end of
the step are here.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any, Callable, Optional, Protocol

from msprobe.collect import notices, tokens
from msprobe.collect.guard import run_all
from msprobe.collect.records.recorder import Recorder
from msprobe.collect.records.saved_variables import SavedVariables, VariableAccess
from msprobe.dump.plural import count


class GradientCounts(Protocol):
    """What could not be recorded of the gradients of a step."""

    repeated: int
    """Gradients of further backward passes through the same graph."""
    without_node: set[str]
    """Calls that returned their input unchanged."""


class StepHooks(Protocol):
    """What a framework installs for one step. `install` and `remove` may alternate; `close` ends the step."""

    recorder: Recorder

    @property
    def gradients(self) -> Optional[GradientCounts]: ...

    @property
    def variables(self) -> Optional[VariableAccess]:
        """What save() needs; None at levels without it."""

    @property
    def forward_hooks(self) -> Optional[tokens.MakeHooks]:
        """How the forwards of a model are counted; None if that is not possible."""

    @property
    def records_elsewhere(self) -> int:
        """The number of records of this step in another directory (`graph`)."""

    @property
    def watchers(self) -> Sequence[Companion]:
        """What is installed from start() to stop(), with any token range."""

    def install(self, models: Sequence[Any]) -> None: ...

    def remove(self) -> None: ...

    def close(self) -> list[str]:
        """Writes what is open. Returns the warnings to log."""


class Companion:
    """Hooks of a task or a level, in addition to those of calls: installed last, removed first."""

    def install(self, models: Sequence[Any]) -> None:
        """Starts watching."""

    def remove(self) -> None:
        """Stops watching; `install` may follow."""

    def suspend(self) -> None:
        """A compiled region begins: hooks would be compiled into it."""

    def resume(self) -> None:
        """The compiled region has ended."""

    def close(self) -> list[str]:
        """The step ends. Returns the warnings to log."""
        return []


class Probe:
    """One step."""

    def __init__(self, hooks: StepHooks) -> None:
        self.hooks = hooks
        self.recorder = hooks.recorder
        self._saved = None if hooks.variables is None else SavedVariables(hooks.recorder, hooks.variables)
        self._tokens: Optional[tokens.TokenRange] = None

    def install(self, models: Sequence[Any], token_range: Optional[tuple[int, int]]) -> None:
        hooks = self.hooks
        for watcher in hooks.watchers:
            watcher.install(models)
        if token_range is not None and hooks.forward_hooks is None:
            notices.warn_once("token_range has no effect in graph mode: every forward of the step is collected.")
            token_range = None
        if token_range is None or hooks.forward_hooks is None:
            hooks.install(models)
            return
        if self._tokens is None:  # the count continues from one start() of the step to the next
            install, remove = self._guarded(lambda: hooks.install(models)), self._guarded(hooks.remove)
            self._tokens = tokens.TokenRange(models[0], token_range, install, remove, hooks.forward_hooks)
        self._tokens.install()

    def _guarded(self, act: Callable[[], None]) -> Callable[[], None]:
        """For hooks on the forwards of the model."""

        def run() -> None:
            try:
                act()
            except Exception:
                self.recorder.fault("token_range", traceback.format_exc())

        return run

    def remove(self) -> None:
        acts = [self.hooks.remove, *(watcher.remove for watcher in reversed(self.hooks.watchers))]
        run_all(acts if self._tokens is None else [*acts, self._tokens.remove], self.recorder.fault)

    def close(self) -> list[str]:
        """Writes what is open. Returns the warnings to log."""
        warnings: list[str] = []
        closed = [*(watcher.close for watcher in self.hooks.watchers), self.hooks.close]
        acts: list[Callable[[], Any]] = [] if self._saved is None else [self._saved.remove]
        run_all([*acts, *(lambda close=close: warnings.extend(close()) for close in closed)], self.recorder.fault)
        gradients = self.hooks.gradients
        if gradients is not None and gradients.repeated:
            warnings.append(
                f"{count(gradients.repeated, 'gradient')} came from further backward passes through the same graph; "
                "only the first pass is recorded."
            )
        if gradients is not None and gradients.without_node:
            names = sorted(gradients.without_node)
            their = "its" if len(names) == 1 else "their"
            warnings.append(
                f"{count(len(names), 'call')} returned {their} input unchanged (first: {', '.join(names[:3])}): "
                f"{'it has' if len(names) == 1 else 'they have'} no backward record."
            )
        return warnings

    def save(self, variable: Any, name: str, with_gradient: bool) -> None:
        if self._saved is not None:
            self._saved.save(variable, name, with_gradient)
