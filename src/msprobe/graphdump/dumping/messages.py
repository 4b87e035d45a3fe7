"""What the training's process says to the worker beside it, a line of JSON each, on the worker's stdin.

The end of the pipe, however it comes, is the end of the run. A message is sent before the files that it is
about are written: who looks for files first and reads the messages afterwards knows all that concern them.
"""

from __future__ import annotations

import json
import os
import select
from bisect import bisect_right
from dataclasses import replace
from typing import Any, Optional

from msprobe.graphdump.dumping.staged import Staged
from msprobe.graphdump.files import names


class Steps:
    """The times in which the files of a run are wanted, each with the step that it belongs to."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._spans: list[tuple[int, Optional[int]]] = []

    def begin(self, step: int, moment: int) -> None:
        self._begins.append(moment)
        self._spans.append((step, None))

    def end(self, moment: int) -> None:
        if self._spans:
            self._spans[-1] = (self._spans[-1][0], moment)

    def place(self, one: Staged) -> Optional[Staged]:
        """The file as one of its step; None where it was written outside of every step. A region may run more than
        once in a step: numbers that stand for long names, which the framework gives anew each time, are not kept."""
        moment = one.name.operator.timestamp
        at = bisect_right(self._begins, moment) - 1
        if at < 0:
            return None
        step, until = self._spans[at]
        if until is not None and moment > until:
            return None
        file = one.file if one.file == one.original else names.shortened(one.original)
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
        """The first line, waited for: the worker's job."""
        while not self._lines and not self.ended:
            self._receive(None)
        return self._lines.pop(0).decode()

    def read(self, wait: float = 0.0) -> None:
        """Everything that has come; waits so many seconds at most for something to come."""
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
                *whole, self._begun = (self._begun + data).split(b"\n")
                self._lines += whole
        except BlockingIOError:
            return
        self.ended = True
