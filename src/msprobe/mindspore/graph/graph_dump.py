"""`graph_dump(path)`: the complete Graph-mode Dump, called in a script, on every device."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Optional, Union

import mindspore

from msprobe.collect import notices
from msprobe.collect.run.lifecycle import UsageError
from msprobe.graphdump.dumping.dump_settings import EXCEPTION
from msprobe.graphdump.dumping.framework_config import set_initial_iteration
from msprobe.graphdump.dumping.running import (
    DISK_BUDGET,
    LEAST_BUDGET,
    VARIABLE,
    DumpRun,
    FrameworkDump,
    PreparedDump,
    prepare_dump,
)
from msprobe.mindspore.graph.failed_graphs import watch_graphs

_running: Optional[DumpRun] = None
_config: Optional[Path] = None  # the configuration that MindSpore reads when it compiles the first graph


def graph_dump(path: Union[str, os.PathLike[str]], disk_budget: int = DISK_BUDGET) -> None:
    """Dumps every graph that this process runs from now on. `path` is a data_dump.json.

    Call it before the first graph is compiled: MindSpore reads its configuration once. A wrong file raises ConfigError
    with all problems. `disk_budget` is the limit for temporary files, in bytes.
    """
    if is_on():
        raise UsageError("graph_dump() was already called in this process; MindSpore reads its configuration once.")
    if graph_has_run():
        raise UsageError("graph_dump() is too late: a graph is already compiled. Call it before the first graph.")
    if disk_budget < LEAST_BUDGET:
        raise UsageError(f"disk_budget is {disk_budget} bytes; allowed: {LEAST_BUDGET} or more.")
    found = prepare_dump(path, mindspore.get_context("device_target"))
    if isinstance(found, FrameworkDump):
        begin_in_framework(found)
    elif found is not None:
        begin(found, disk_budget)


def begin(found: PreparedDump, disk_budget: int, by_steps: bool = False) -> DumpRun:
    """Starts the dump: MindSpore writes files and the worker reads them."""
    global _running, _config
    _config = Path(found.variable)
    os.environ[VARIABLE] = found.variable
    _running = _start(found, disk_budget, by_steps)
    if found.settings.op_debug_mode == EXCEPTION:
        watch_graphs(found.staging)
    return _running


def begin_in_framework(found: FrameworkDump) -> None:
    """MindSpore makes the dump alone."""
    global _config
    _config = Path(found.variable)
    os.environ[VARIABLE] = found.variable


def set_first_iteration(step: int) -> bool:
    """The first step of a resumed training. Returns whether it can still be set, and this MindSpore can."""
    if _config is not None:
        if graph_has_run():
            return False
        set_initial_iteration(_config, step)
        return True
    framework = getattr(mindspore._c_expression, "_set_init_iter", None)  # a dump that msprobe did not start
    if framework is not None:
        framework(step)
    return framework is not None


def is_on() -> bool:
    """Whether graphs of this process are dumped."""
    return _config is not None


def graph_has_run() -> bool:
    """Whether MindSpore has compiled a graph in this process."""
    if "mindspore" not in sys.modules:
        return False
    from msprobe.mindspore.features import graph_api as api

    cells = getattr(api, "cells_compile_cache", {})  # phases that each Cell was compiled for
    return bool(getattr(api, "ms_compile_cache", None)) or any(cells.values())


def _start(found: PreparedDump, disk_budget: int, by_steps: bool) -> DumpRun:
    may_pause = not (sys.stdin is not None and sys.stdin.isatty() and os.getpgrp() == os.getpid())
    if not may_pause and not (found.settings.keeps_tensors and not found.settings.sample_mode):
        notices.inform("an interactive shell cannot enforce the disk budget: use `msprobe graph dump` for that.")
    running = found.start(os.getpid(), disk_budget, may_pause, by_steps)
    failures: list[str] = []
    before = sys.excepthook

    def note_failure(kind: type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
        failures.append("".join(traceback.format_exception_only(kind, error)))
        before(kind, error, trace)

    sys.excepthook = note_failure
    owner = os.getpid()

    def end() -> None:
        if os.getpid() == owner:
            running.end(failures[-1] if failures else None)

    atexit.register(end)
    return running
