"""Collectives whose output comes later than the call: their records are finished when the script waits for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import ref

from msprobe.collect.records.recorder import Recorder


class UnfinishedCollective:
    """The record of a collective that has no output yet. `left` is the number of handles without a wait.

    It holds the tensors weakly: if the script drops them, there is nothing to record.
    """

    def __init__(self, call: int, name: str, tensors: Iterable[Any], left: int) -> None:
        self.call = call
        self.name = name
        self.left = left
        self.finished = False
        self.handles: list[Any] = []
        self._tensors = [ref(tensor) for tensor in tensors]

    def tensors(self) -> list[Any]:
        return [tensor() for tensor in self._tensors]

    def produced(self) -> Any:
        """The output for its record."""
        return tuple(self.tensors())


class UnfinishedCollectives:
    """The unfinished records of one step, by the id of their handles."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._waiting: dict[int, Any] = {}

    def _note_wait(self, handle: Any) -> None:
        """The script has waited for a handle."""
        waiting = self._waiting.pop(id(handle), None)
        if waiting is not None:
            waiting.left -= 1
            if not waiting.left:
                self._finish(waiting, waited=True)

    def _finish_all(self) -> None:
        """The step ends: a collective without a wait gets no output."""
        for waiting in list(self._waiting.values()):
            self._finish(waiting, waited=False)
        self._waiting.clear()

    def _finish(self, waiting: UnfinishedCollective, waited: bool) -> None:
        if self._recorder.closed or waiting.finished:
            return
        waiting.finished = True
        if waited:
            self._recorder.leave(waiting.call, waiting.name, waiting.produced())
        else:
            self._recorder.unwaited(waiting.call)


def as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
