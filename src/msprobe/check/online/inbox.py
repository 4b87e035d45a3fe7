"""The queue of calls that have arrived and are not being checked yet. All ways to the checker end here.

The queue is bounded. When it is full, reading stops, and so does the sender.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional

from msprobe.check.online.frames import Session

WAITING = 64
Log = Callable[[str], None]


@dataclass(frozen=True)
class Arrival:
    """A call that has arrived, or the end of a session if `task` is None. The checker calls `answer` once."""

    session: Session
    task: Optional[dict[str, Any]]
    answer: Callable[[], None]


class Inbox:
    def __init__(self, spool: Path, log: Log) -> None:
        self.log = log
        self.stopped = threading.Event()
        self._queue: queue.Queue[Arrival] = queue.Queue(WAITING)
        self._spool = spool
        self._count = 0
        self._lock = threading.Lock()

    def put(self, arrival: Arrival) -> None:
        while not self.stopped.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(arrival, timeout=0.5)
                return

    def take(self) -> Optional[Arrival]:
        with contextlib.suppress(queue.Empty):
            return self._queue.get_nowait()
        return None

    def new_spool(self) -> Path:
        with self._lock:
            self._count += 1
            return self._spool / f"{self._count:012d}"
