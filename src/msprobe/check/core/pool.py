"""Runs several workers. If a worker dies, its current call gets an error and the other calls continue.

Answers come in any order. A worker that does not answer for `limit` seconds is killed. A call that kills its worker is
not tried again.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Optional

from msprobe.dump.errors import DumpError
from msprobe.messages import Message, read_message
from msprobe.system.processes import python_command, python_environment

AT_ONCE = 8
Task = dict[str, Any]
Answer = dict[str, Any]

_LONGEST = 1 << 20
"""Characters of an argument of a worker's message."""


@dataclass(frozen=True)
class WorkerSettings:
    """`error_data` is the directory for the tensors of failed calls, None if they are not saved. `imports` are modules
    that register custom operators. `framework` is imported before a worker is ready; with None the first task names it.
    """

    device: str = "cpu"
    error_data: Optional[Path] = None
    imports: tuple[str, ...] = ()
    framework: Optional[str] = "pytorch"


class WorkersFail(DumpError):
    """Workers end before they have done anything: starting more would not help."""


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    pipe: Any
    ready: bool = False
    tasks: deque[Task] = field(default_factory=deque)
    heard: float = field(default_factory=time.monotonic)


class Pool:
    def __init__(self, jobs: int, settings: WorkerSettings, limit: float) -> None:
        self._settings, self._limit = settings, limit
        self._memory = _available() // jobs
        self._failed_starts = 0
        self._workers = [self._start() for _ in range(jobs)]

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            try:
                worker.process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()

    def wait_until_ready(self) -> None:
        """Returns when every worker has imported what it needs."""
        while not all(worker.ready for worker in self._workers):
            for _ in self._listen(deque()):
                pass

    def run(self, tasks: Iterable[Optional[Task]]) -> Iterator[tuple[Task, Answer]]:
        """Yields each task with its answer. `tasks` may yield None if there is none at the moment."""
        source = iter(tasks)
        again: deque[Task] = deque()
        open_tasks = True
        while True:
            for worker in self._workers:
                if worker.ready and not worker.tasks and (open_tasks or again):
                    batch, more = _take(again, source, AT_ONCE)
                    open_tasks = open_tasks and more
                    self._hand_out(worker, batch)
            if not open_tasks and not again and not any(worker.tasks for worker in self._workers):
                return
            yield from self._listen(again)

    def _hand_out(self, worker: _Worker, batch: list[Task]) -> None:
        if not batch:
            return
        worker.tasks.extend(batch)
        worker.heard = time.monotonic()
        with contextlib.suppress(OSError):  # `_listen` finds the dead worker
            worker.pipe.send_bytes(json.dumps(batch).encode())

    def _listen(self, again: deque[Task]) -> Iterator[tuple[Task, Answer]]:
        by_pipe = {worker.pipe: worker for worker in self._workers}
        for pipe in wait(list(by_pipe), timeout=0.1):
            worker = by_pipe[pipe]
            try:
                answer = json.loads(worker.pipe.recv_bytes())
            except (EOFError, OSError):
                yield from self._reap(worker, again, _describe_end(worker.process))
                continue
            worker.heard = time.monotonic()
            if not worker.ready:
                if "cannot" in answer:
                    raise WorkersFail(f"A worker process cannot start: {answer['cannot']}.")
                worker.ready, self._failed_starts = True, 0
            else:
                said = read_message(answer.get("said"), _LONGEST)
                yield worker.tasks.popleft(), {**answer, "message": said or answer["message"]}
        for worker in list(self._workers):
            if worker.ready and worker.tasks and time.monotonic() - worker.heard > self._limit:
                worker.process.kill()
                yield from self._reap(worker, again, Message("check.timeout", seconds=f"{self._limit:g}"))

    def _reap(self, worker: _Worker, again: deque[Task], how: str) -> Iterator[tuple[Task, Answer]]:
        worker.pipe.close()
        worker.process.wait()
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= 3:
                raise WorkersFail(f"A worker process cannot start ({how}); its own error is above.")
        tasks = worker.tasks
        self._workers[self._workers.index(worker)] = self._start()
        if tasks:
            guilty = tasks.popleft()
            again.extend(tasks)
            failed = Message("check.failed", how=how)
            yield guilty, {"forward": "error", "backward": "SKIP", "message": failed, "rows": []}

    def _start(self) -> _Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            command = python_command(f"from msprobe.check.core.worker import main; main({theirs.fileno()})")
            environment = python_environment(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
            environment.setdefault("GLOG_v", "4")  # MindSpore's own log: the results have every failure
            process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL, stdout=2
            )
        worker = _Worker(process, Connection(ours.detach()))
        error_data = self._settings.error_data
        first = {
            "framework": self._settings.framework,
            "device": self._settings.device,
            "error_data": None if error_data is None else str(error_data),
            "imports": list(self._settings.imports),
            "paths": [str(Path.cwd())] if self._settings.imports else [],
            "memory": self._memory,
        }
        worker.pipe.send_bytes(json.dumps(first).encode())
        return worker


def _take(again: deque[Task], source: Iterator[Optional[Task]], most: int) -> tuple[list[Task], bool]:
    """Some tasks, and whether more may follow."""
    batch: list[Task] = []
    while again and len(batch) < most:
        batch.append(again.popleft())
    while len(batch) < most:
        try:
            task = next(source)
        except StopIteration:
            return batch, False
        if task is None:
            break
        batch.append(task)
    return batch, True


def _describe_end(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        return "its process closed the connection"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"its process died of {signal.Signals(-code).name}"
    return f"its process ended with code {code}"


def _available() -> int:
    """Available memory in bytes; 0 if the system does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024 * 9 // 10
    return 0
