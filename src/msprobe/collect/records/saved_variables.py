"""save(): values that the user names, and the gradients of their tensors (level debug)."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Callable, Protocol

from msprobe.collect.records.recorder import Recorder


class VariableAccess(Protocol):
    """What a framework knows about saved variables."""

    def undisturbed(self) -> AbstractContextManager[Any]:
        """A context in which a value can be rendered: no hook sees it, and cached statistics are not used."""

    def differentiable(self, variable: Any) -> Iterable[Any]:
        """The tensors in a value that get a gradient."""

    def on_gradient(self, tensor: Any, hook: Callable[[Any], None]) -> Callable[[], None]:
        """Calls `hook` with the total gradient of a tensor. Returns a function that removes the hook."""


class SavedVariables:
    """The variables of one step."""

    def __init__(self, recorder: Recorder, access: VariableAccess) -> None:
        self._recorder = recorder
        self._access = access
        self._removals: list[Callable[[], None]] = []

    def save(self, variable: Any, name: str, with_gradient: bool) -> None:
        recorder = self._recorder
        self._write(f"{name}.{recorder.numbers.take(name)}.debug", variable)
        if not with_gradient:
            return
        try:
            with self._access.undisturbed():
                for tensor in self._access.differentiable(variable):
                    title = f"{name}_grad.{recorder.numbers.take(f'{name}_grad')}.debug"
                    self._removals.append(self._access.on_gradient(tensor, self._hook(title)))
        except Exception:
            recorder.fault(name, traceback.format_exc())

    def remove(self) -> None:
        for remove in self._removals:
            remove()
        self._removals.clear()

    def _hook(self, title: str) -> Callable[[Any], None]:
        def hook(gradient: Any) -> None:
            if not self._recorder.closed:
                self._write(title, gradient)

        return hook

    def _write(self, title: str, value: Any) -> None:
        recorder = self._recorder
        try:
            with self._access.undisturbed():
                path = title if recorder.tensors_path(title, "") else ""
                recorder.writer.debug(title, recorder.values.value(value, path))
        except Exception:
            recorder.fault(title, traceback.format_exc())
