"""The messages from the training process to the worker: one line of JSON each, on the worker's stdin.

The run ends when the pipe closes, for whatever reason. The training process sends a message before MindSpore writes
the files that it is about. So the worker lists files first and then reads messages: it has all that apply to them.
"""

from __future__ import annotations

import json
import os
import select
from bisect import bisect_right
from dataclasses import replace
from typing import Any, Optional

from msprobe.graphdump.dumping.staging import StagedFile
from msprobe.graphdump.files import names


class Steps:
    """The time spans of the steps. Only files written inside a span are kept; they belong to its step."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._spans: list[tuple[int, Optional[int]]] = []

    def begin(self, step: int, moment: int) -> None:
        self._begins.append(moment)
        self._spans.append((step, None))

    def end(self, moment: int) -> None:
        if self._spans:
            self._spans[-1] = (self._spans[-1][0], moment)

    def place(self, one: StagedFile) -> Optional[StagedFile]:
        """The file with its step as iteration; None if it was written outside of every step.

        A region may run more than once in a step, and MindSpore gives a long name a new number each time. So a
        number in place of a long name is replaced by our own, which is always the same."""
        moment = one.name.operator.timestamp
        at = bisect_right(self._begins, moment) - 1
        if at < 0:
            return None
        step, until = self._spans[at]
        if until is not None and moment > until:
            return None
        file = one.file if one.file == one.original else names.shorten(one.original)
        return replace(one, iteration=step, file=file)


class Messages:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._begun = b""
        self._lines: list[bytes] = []
        self.steps = Steps()
        self.ended = False
        self.failure: Optional[str] = None
        os.set_blocking(descriptor, False)

    def first(self) -> str:
        """Waits for the first line: the worker's job."""
        while not self._lines and not self.ended:
            self._receive(None)
        return self._lines.pop(0).decode()

    def read(self, wait: float = 0.0) -> None:
        """Reads all messages that have arrived; waits up to `wait` seconds for the first."""
        self._receive(wait)
        lines, self._lines = self._lines, []
        for line in lines:
            self._take(json.loads(line))

    def _take(self, message: dict[str, Any]) -> None:
        if "failed" in message:
            self.failure = message["failed"]
        elif "step" in message:
            self.steps.begin(message["step"], message["at"])
        else:
            self.steps.end(message["at"])

    def _receive(self, wait: Optional[float]) -> None:
        if self.ended or not select.select([self._descriptor], [], [], wait)[0]:
            return
        try:
            while data := os.read(self._descriptor, 1 << 16):
                *complete, self._begun = (self._begun + data).split(b"\n")
                self._lines += complete
        except BlockingIOError:
            return
        self.ended = True
