"""The thread that writes files: one per debugger, with a queue that is limited in bytes.

Calling threads append to a plain deque, without a lock per call. After `BATCH` lines, or `PERIOD` seconds at the
latest, the lines go to the queue. An error here never reaches a caller: it is logged once and counted, and the thread
continues to empty the queue, so a full disk never blocks training.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import os
import threading
import traceback
import weakref
from collections import deque
from typing import Any, Callable, Optional, Protocol

from msprobe.system.living import Living

BATCH = 128
PERIOD = 0.5
IDLE_PERIOD = 5.0
LIMIT = 256 << 20
LINE_COST = 200
_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space"),
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit of open files (ulimit -n)"),
}

Job = Callable[[], None]
_workers: Living[Worker] = Living()


class Sink(Protocol):
    """What the worker needs from a writer: it takes lines, and writes them to its file on request."""

    def take_line(self, line: tuple[Any, ...]) -> None: ...
    def write_lines(self) -> None: ...
    def finish_now(self) -> None: ...


def log_warning(message: str) -> None:
    logging.getLogger("msprobe").warning(message)


class Worker:
    """Owns the writer thread. Callers append `(sink, render, *arguments)` to `pending`."""

    def __init__(self, limit: int = LIMIT, log: Callable[[str], None] = log_warning) -> None:
        self.pending: deque[tuple[Any, ...]] = deque()
        self.inert = False
        self.limit = limit
        self._log = log
        self._logged: set[object] = set()
        self._queue: deque[tuple[int, Any]] = deque()
        self._queued = 0
        self._changed = threading.Condition()
        self._thread: Optional[threading.Thread] = None
        self._open: dict[int, Sink] = {}
        self._stopping = False
        _workers.add(self)
        atexit.register(_at_exit, weakref.ref(self))

    def hand_over(self) -> None:
        """Passes pending lines to the thread. Waits only while more than `limit` bytes are queued."""
        self._submit(0, None)

    def submit(self, cost: int, job: Job) -> None:
        """Adds a job to the end of the queue; waits while the queue is full."""
        self._submit(cost, job)

    def run(self, job: Job) -> None:
        """Queues a job and waits until it is done."""
        if self._is_own_thread():
            job()
            return
        done = threading.Event()

        def announce() -> None:
            try:
                job()
            finally:
                done.set()

        self._submit(0, announce)
        while not self.inert and not self._wait(done):
            if not self._is_alive():
                self._drain()

    def _wait(self, done: threading.Event) -> bool:
        """Waits for a while. A signal handler may run while this thread holds the lock that the writer needs: then
        the wait releases it."""
        if not self._changed._is_owned():  # type: ignore[attr-defined]
            return done.wait(1.0)
        self._changed.wait(0.05)
        return done.is_set()

    def log_once(self, key: object, message: str) -> None:
        if key not in self._logged:
            self._logged.add(key)
            with contextlib.suppress(Exception):  # a broken logging handler of the script must not end this thread
                self._log(message)

    def fail(self, what: str, where: object, error: BaseException) -> None:
        """Logs one sentence for the first error of a kind; writers only count later ones."""
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            advice = _ADVICE.get(error.errno or 0, "check the path and its permissions")
            self.log_once(
                ("cannot write", error.errno),
                f"msprobe cannot write {what} in {where}: {reason}. Training continues without it; "
                f"{advice}, or choose another dump_path.",
            )
        else:
            trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            self.log_once((what, type(error)), f"internal error of msprobe while writing {what} in {where}:\n{trace}")

    def opened(self, sink: Sink) -> None:
        self._open[id(sink)] = sink

    def closed(self, sink: Sink) -> None:
        self._open.pop(id(sink), None)

    def close(self) -> None:
        """Finishes every open writer and ends the thread. Called at process exit."""
        if self.inert:
            return
        self.run(self._finish_all)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(10.0)
        self._thread, self._stopping = None, False

    def become_inert(self) -> None:
        """In a forked child: drops the queue of the parent and writes nothing."""
        self.inert = True
        self.pending.clear()
        self._queue.clear()
        self._open.clear()
        self._changed = threading.Condition()
        self._thread = None

    def _is_own_thread(self) -> bool:
        """Whether this is the writer thread itself, for example in a finalizer: it cannot wait for itself."""
        return threading.current_thread() is self._thread

    def _is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _submit(self, cost: int, job: Optional[Job]) -> None:
        if self.inert:
            self.pending.clear()
            return
        with self._changed:
            self._take_pending()
            if not self._is_alive() and not self._start():
                self._drain()
            while self._queued and self._queued + cost > self.limit and self._is_alive() and not self._is_own_thread():
                self._changed.wait(1.0)
            if job is not None:
                self._queue.append((cost, job))
                self._queued += cost
            self._changed.notify_all()
        if not self._is_alive():
            self._drain()

    def _start(self) -> bool:
        self._thread = threading.Thread(target=self._loop, name="msprobe-writer", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the interpreter is shutting down and starts no threads
            self._thread = None
        return self._thread is not None

    def _take_pending(self) -> None:
        """Moves all pending lines to the queue, as one item."""
        count = len(self.pending)
        if count:
            pop = self.pending.popleft
            lines = [pop() for _ in range(count)]
            cost = LINE_COST * count + sum([len(line[-1]) for line in lines if isinstance(line[-1], str)])
            self._queue.append((cost, lines))
            self._queued += cost

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._take_pending()
                if not self._queue:
                    if self._stopping:
                        return
                    self._changed.wait(PERIOD if self._open else IDLE_PERIOD)
                    self._take_pending()
            self._drain()

    def _drain(self) -> None:
        """Processes the queue. After each item, writes all lines to their files."""
        done, item = 0, None
        while True:
            with self._changed:
                if done:
                    self._queued -= done
                    self._changed.notify_all()
                if not self._queue:
                    return
                done, item = self._queue.popleft()
            self._do(item)
            item = None  # frees the bytes of a tensor before the next one comes
            self._write_lines()

    def _do(self, item: Any) -> None:
        try:
            if isinstance(item, list):
                self._take_lines(item)
            else:
                item()
        except Exception as error:
            self.fail("a record", "the dump directory", error)

    def _take_lines(self, lines: list[tuple[Any, ...]]) -> None:
        for line in lines:
            try:
                line[0].take_line(line)
            except Exception as error:
                self.fail("a record", "the dump directory", error)

    def _finish_all(self) -> None:
        for sink in list(self._open.values()):
            self._do(sink.finish_now)

    def _write_lines(self) -> None:
        for sink in list(self._open.values()):
            self._do(sink.write_lines)


def _at_exit(reference: weakref.ref[Worker]) -> None:
    worker = reference()
    if worker is not None:
        worker.close()


def _in_forked_child() -> None:
    for worker in _workers:
        worker.become_inert()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)
