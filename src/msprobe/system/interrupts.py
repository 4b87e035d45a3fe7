"""Handles signal handlers of the script that run while msprobe works.

Python runs a handler between two instructions of any code, also ours. An exception that it raises belongs to the script
and must reach it. If a handler calls start(), stop() or step() while one of them runs, the call waits for its turn.
SIGTERM, which by default ends the process at once, first writes what was recorded.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import threading
from collections import deque
from types import FrameType
from typing import Any, Callable, Optional


def is_of_the_script(error: Optional[BaseException]) -> bool:
    """Whether a signal handler of the script raised this exception: a function that takes a signal and a frame."""
    if error is None or threading.current_thread() is not threading.main_thread():
        return False
    trace = error.__traceback__
    while trace is not None:
        if _is_handler(trace.tb_frame):
            return True
        trace = trace.tb_next
    return False


def let_through(error: BaseException) -> None:
    """Raises the exception again if it belongs to the script; the caller ignores others."""
    if is_of_the_script(error):
        raise error


def _is_handler(frame: FrameType) -> bool:
    code, scope = frame.f_code, frame.f_locals
    names = code.co_varnames[: code.co_argcount + bool(code.co_flags & inspect.CO_VARARGS)]
    values: list[Any] = []
    for name in names:
        value = scope.get(name)
        values += value if isinstance(value, tuple) else (value,)  # def handler(*args)
    return any(isinstance(one, int) and isinstance(two, FrameType) for one, two in zip(values, values[1:]))


class Undisturbed:
    """A short piece of work that start(), stop() or step() in a signal handler must not change halfway.

    Such a call waits until the work has ended. Only the main thread runs signal handlers."""

    def __init__(self) -> None:
        self._main = threading.main_thread().ident
        self._depth = 0
        self._later: deque[Callable[[], None]] = deque()

    def __enter__(self) -> None:
        if threading.get_ident() == self._main:
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        if threading.get_ident() != self._main:
            return
        self._depth -= 1
        while self._later and not self._depth:
            self._later.popleft()()

    def postpone(self, act: Callable[[], None]) -> bool:
        """Whether `act` has to wait: it runs when the work has ended."""
        if not self._depth or threading.get_ident() != self._main:
            return False
        self._later.append(act)
        return True


UNDISTURBED = Undisturbed()
MOST_AT_ONCE = 100


class Turns:
    """Runs one call after the other. A call from inside a turn, on the same thread, runs after that turn."""

    def __init__(self) -> None:
        self._thread: Optional[int] = None
        self._later: deque[Callable[[], None]] = deque()

    def take(self, act: Callable[[], None]) -> None:
        if UNDISTURBED.postpone(lambda: self.take(act)):
            return
        me = threading.get_ident()
        if self._thread == me:
            self._later.append(act)
            return
        self._thread = me
        failed: list[BaseException] = []
        try:
            self._do(act, failed)
            for _ in range(MOST_AT_ONCE):  # signals may come faster than they are handled: the rest waits
                if not self._later:
                    break
                self._do(self._later.popleft(), failed)
        finally:
            self._thread = None
        if failed:
            raise failed[0]

    def _do(self, act: Callable[[], None], failed: list[BaseException]) -> None:
        try:
            act()
        except BaseException as error:  # raised again after the waiting calls have run
            failed.append(error)


class WritesOnTerm:
    """While a step is open, SIGTERM calls `write` first and then does what it did before."""

    def __init__(self, write: Callable[[], None]) -> None:
        self._write = write
        self._before: Any = None
        self._pid = os.getpid()
        self._installed = False

    def install(self) -> None:
        if self._installed or threading.current_thread() is not threading.main_thread():
            return
        before = signal.getsignal(signal.SIGTERM)
        if before is None or before is signal.SIG_IGN:  # set outside of Python, or ignored
            return
        self._before = before
        signal.signal(signal.SIGTERM, self._terminate)
        self._installed = True

    def remove(self) -> None:
        if not self._installed or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) == self._terminate:  # a later handler of the script stays
            signal.signal(signal.SIGTERM, self._before)
        self._installed = False

    def _terminate(self, number: int, frame: Any) -> None:
        if os.getpid() == self._pid:  # not in a forked child
            with contextlib.suppress(Exception):
                self._write()
        if callable(self._before):
            self._before(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
