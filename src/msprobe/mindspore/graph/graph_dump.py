"""`graph_dump(path)`: the whole Graph-mode Dump for a script, on every device; no launcher needed."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from types import TracebackType
from typing import Optional, Union

from msprobe.collect import notices
from msprobe.collect.lifecycle import UsageError
from msprobe.graphdump.dumping.running import DISK_BUDGET, LEAST_BUDGET, VARIABLE, Prepared, Running, prepared

_running: Optional[Running] = None


def graph_dump(path: Union[str, os.PathLike[str]], disk_budget: int = DISK_BUDGET) -> None:
    """Dump every graph that this process runs from now on, as the data_dump.json at `path` says.

    Call it before the first graph is compiled: the framework reads its configuration once. A wrong file raises
    ConfigError with every problem in it. `disk_budget` (bytes) bounds what lies on the disk only in passing.
    """
    if _running is not None:
        raise UsageError("graph_dump() was called before in this process; the framework reads its configuration once.")
    if graph_has_run():
        raise UsageError("graph_dump() is called too late: a graph was compiled already. Call it before the first one.")
    if disk_budget < LEAST_BUDGET:
        raise UsageError(f"disk_budget is {disk_budget} bytes; allowed: {LEAST_BUDGET} or more.")
    found = prepared(path)
    if found is not None:
        begin(found, disk_budget)


def begin(found: Prepared, disk_budget: int, by_steps: bool = False) -> Running:
    """From now on the framework writes, and the worker reads."""
    global _running
    os.environ[VARIABLE] = found.variable
    _running = _start(found, disk_budget, by_steps)
    return _running


def is_on() -> bool:
    """Whether graphs of this process are dumped."""
    return _running is not None


def graph_has_run() -> bool:
    """Whether MindSpore has compiled a graph in this process."""
    if "mindspore" not in sys.modules:
        return False
    try:
        from mindspore.graph import api
    except ImportError:  # before 2.9
        from mindspore.common import api
    cells = getattr(api, "cells_compile_cache", {})  # phases that each Cell was compiled for
    return bool(getattr(api, "ms_compile_cache", None)) or any(cells.values())


def _start(found: Prepared, disk_budget: int, by_steps: bool) -> Running:
    may_pause = not (sys.stdin is not None and sys.stdin.isatty() and os.getpgrp() == os.getpid())
    if not may_pause and not (found.settings.keeps_tensors and not found.settings.sample_mode):
        notices.inform("the disk budget is not kept in an interactive shell: use `msprobe graph dump` for that.")
    running = found.start(os.getpid(), disk_budget, may_pause, by_steps)
    failures: list[str] = []
    before = sys.excepthook

    def noting(kind: type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
        failures.append("".join(traceback.format_exception_only(kind, error)))
        before(kind, error, trace)

    sys.excepthook = noting
    owner = os.getpid()

    def end() -> None:
        if os.getpid() == owner:
            running.end(failures[-1] if failures else None)

    atexit.register(end)
    return running
