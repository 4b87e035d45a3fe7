"""Where units are compared: this process, several processes, or a Ray cluster. The result is the same. A single unit
with saved tensors is divided by files; several units are distributed complete.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Callable, Optional, Protocol

from msprobe.compare import execute
from msprobe.compare.execute import Outcome, Task
from msprobe.dump.errors import DumpError

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

Progress = Callable[[Iterable[Any], int, str], Iterable[Any]]
"""Passes items on and shows how many of the total there were."""
ENGINES = ("local", "ray")
MANY = 32
"""With this many units for each process, one unit takes little of the total time."""
UNITS_AT_ONCE = 4
"""How many of them one message carries: each message costs time, and large ones cost memory."""


class Engine(Protocol):
    def run(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        """In the order of the tasks."""


@contextlib.contextmanager
def open_engine(name: str, jobs: int, progress: Progress) -> Iterator[Engine]:
    """`progress` also shows how far the files of one unit are measured."""
    if name == "ray":
        with _cluster() as ray:
            yield _Ray(ray)
    elif name != "local":
        raise DumpError(f"The engine {name!r} is unknown; choose {' or '.join(ENGINES)}.")
    elif jobs <= 1:
        yield _Local(None, progress)
    else:
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        import msprobe.stats  # noqa: F401  # here, so that the processes do not each say that its C part is not built

        # A fork of a process with threads of a framework may hang; without such threads a fork starts faster.
        loaded = "torch" in sys.modules or "mindspore" in sys.modules
        context = multiprocessing.get_context("spawn" if loaded or sys.platform != "linux" else "fork")
        with ProcessPoolExecutor(jobs, mp_context=context) as pool:
            yield _Local(pool, progress, MANY * jobs)


class _Local:
    def __init__(self, pool: Optional[ProcessPoolExecutor], progress: Progress, many: int = 0) -> None:
        self._pool = pool
        self._progress = progress
        self._many = many

    def run(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        if self._pool is not None and len(tasks) > 1:
            return self._by_units(tasks)
        return (execute.attempt(task, self._by_files) for task in tasks)

    def _by_units(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        assert self._pool is not None
        if len(tasks) < self._many:
            return self._pool.map(execute.attempt, tasks)
        # The first of many equal ranks is measured before the fork, so that the other processes know its result.
        first = execute.attempt(tasks[0])
        return chain([first], self._pool.map(execute.attempt, tasks[1:], chunksize=UNITS_AT_ONCE))

    def _by_files(self, work: Any, things: Sequence[Any]) -> Iterable[Any]:
        if self._pool is None:
            return self._progress(map(work, things), len(things), "reading tensors")
        made = self._pool.map(work, things, chunksize=max(1, min(64, len(things) // 16)))
        return self._progress(made, len(things), "reading tensors")


@contextlib.contextmanager
def _cluster() -> Iterator[Any]:
    """A running Ray (RAY_ADDRESS says where), or a local one for as long as this comparison takes."""
    try:
        import ray
    except ImportError:
        raise DumpError("--engine ray needs the package ray: pip install 'msprobe-precision[ray]'.") from None
    ours = not ray.is_initialized()
    if ours:
        ray.init(log_to_driver=False, configure_logging=False, include_dashboard=False)
    try:
        yield ray
    finally:
        if ours:
            ray.shutdown()


class _Ray:
    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def run(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        remote = self._ray.remote(execute.attempt)
        for reference in [remote.remote(task) for task in tasks]:
            yield self._ray.get(reference)
