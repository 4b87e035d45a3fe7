"""Level L2, dynamic graph: the kernels inside compiled regions (`mindspore.jit`, optimizers), through the framework's
Dump, in addition to the operators that the dispatch mode sees.

The framework reads its settings when it compiles the first graph, and then dumps every graph that runs. Only the
debugger knows which files belong to which step. So it sends the begin and the end of each step to the worker, and the
worker keeps the files written in between: in `{dump_path}/rank_{r}/Net/{graph}/{step}/`, as in graph mode.

A script may call only start(), before it creates its model: MindSpore's guide writes level L2 this way. Then msprobe
collects only the kernels of compiled regions, and each call of an optimizer ends a step. A script without a model looks
the same at first, so the operators of the dynamic graph are collected too, until a Cell with parameters runs.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, Optional

import mindspore
from mindspore import nn

from msprobe.collect import notices
from msprobe.collect.guard import guarded
from msprobe.collect.run.frontend import Frontend
from msprobe.collect.run.lifecycle import Lifecycle
from msprobe.collect.task import Task
from msprobe.config import ConfigError, Settings
from msprobe.config.kinds import name_pattern
from msprobe.dump.archive import move_old_directory
from msprobe.graphdump.dumping.dump_settings import COMMON, parse_settings
from msprobe.graphdump.dumping.running import DISK_BUDGET, DumpRun, lay_out, rank_here
from msprobe.mindspore import header
from msprobe.mindspore.executor import synchronize
from msprobe.mindspore.graph.graph_dump import begin, graph_has_run, is_on
from msprobe.mindspore.graph.graph_kernels import data_dump
from msprobe.mindspore.kernels.optimizer_kernels import UpdateEnds


class RegionDump:
    """The framework's Dump of this process, by steps."""

    def __init__(self, running: DumpRun) -> None:
        self._running = running
        self._open: Optional[int] = None

    def begin(self, step: int) -> None:
        if self._open != step:
            synchronize()
            self._open = step
            self._send({"step": step, "at": _now()})

    def end(self) -> None:
        if self._open is not None:
            synchronize()
            self._open = None
            self._send({"at": _now()})

    def matched_entries(self, wanted: tuple[str, ...]) -> Sequence[str]:
        """Which of the wanted names selected an operator. All of them while the dump goes on: it is not known yet."""
        return wanted if self._running.matched is None else self._running.matched

    def expect_tensors(self, expected: bool) -> None:
        """Whether to warn if no compiled region ran."""
        self._running.expects_tensors = expected

    def _send(self, message: dict[str, int]) -> None:
        try:
            self._running.send(json.dumps(message))
        except OSError:
            notices.warn_once("level L2: the worker that reads the dump of compiled regions has ended.")
        except ValueError:
            pass  # the process is ending, and the worker knows it


class RegionLifecycle(Lifecycle):
    """start, stop and step at level L2. They also begin and end the steps of the framework's Dump."""

    def __init__(self, task: Task, frontend: Frontend) -> None:
        super().__init__(task, frontend)
        self._regions: Optional[RegionDump] = None
        self._asked = False
        self._alone: Optional[UpdateEnds] = None  # only start() was called, before the model
        self._model = FirstModel(self._see_model, self.give_up)

    def start(self, model: Any = None, token_range: Any = None) -> None:
        if self._is_forked_child():
            return
        if not self._asked:
            self._asked = True
            self._regions = start_region_dump(self.task)
            if self._regions is not None and model is None and not _has_cells():
                self._start_alone()
                if not is_distributed():  # start() may come before communication.init(): the rank is not known yet
                    super().start(model, token_range)
                    self._model.install()
                else:
                    self._log_alone()
                return
        self._end_alone()
        super().start(model, token_range)
        if self._regions is not None and self._collecting:
            self._regions.begin(self.step_number)

    def stop(self) -> None:
        self._end_alone()
        if self._regions is not None and self._collecting and not self._is_forked_child():
            self._regions.end()
        super().stop()

    def step(self) -> None:
        self._end_alone()
        super().step()

    def _start_alone(self) -> None:
        self.summary.started = True
        self._alone = UpdateEnds(guarded("msprobe", self._end_update, self.give_up))
        self._alone.install()
        if self._regions is not None:
            self._regions.expect_tensors(True)
        self._open_update()

    def _see_model(self) -> None:
        """A model runs that was made after start(): the script follows MindSpore's guide."""
        if self._alone is not None and not self._is_forked_child():
            self._turns.take(self._discard_step)
            self._log_alone()

    def _log_alone(self) -> None:
        notices.inform(
            "level L2: start() came before the model: the kernels of compiled regions (mindspore.jit, optimizers) are "
            "collected, and each call of an optimizer ends a step. Call start(), stop() and step() in the training "
            "loop to collect the other operators too."
        )

    def _open_update(self) -> None:
        if self._regions is not None and self._wants_step():
            self._regions.begin(self.step_number)
            self.summary.steps.append(self.step_number)

    def _end_update(self) -> None:
        if self._alone is None or self._regions is None or self._is_forked_child():
            return
        self._regions.end()
        self.step_number += 1
        if self.wants_more:
            self._open_update()
        else:
            self._alone.remove()

    def give_up(self) -> None:
        alone, self._alone = self._alone, None
        for hooks in (self._model, alone):
            if hooks is not None:
                hooks.remove()
        super().give_up()

    def _end_alone(self) -> None:
        """The script calls start() and step() itself from now on."""
        if self._alone is not None and not self._is_forked_child():
            self._model.remove()
            self._alone.remove()
            self._alone = None
            if self._regions is not None:
                self._regions.end()
                self._regions.expect_tensors(False)
            self.summary.steps.clear()

    def _close(self) -> None:
        if self._alone is not None and self._probe is not None:  # no model ran: a script of functions
            self._end_alone()
        if self._regions is not None:
            listed = tuple(getattr(self.settings.section, "list", ()))
            self._selection.note_matched(self._regions.matched_entries(_names_operators(listed)))
        if self._alone is None or self.closed:
            super()._close()
            return
        self._model.remove()
        self._alone.remove()
        if self._regions is not None:
            self._regions.end()
        self.closed = True
        atexit.unregister(self._at_exit)
        self._worker.close()
        self.summary.add_records(1)  # the dump of the graphs has its own count
        self.summary.log_result(self.step_number, ())


class FirstModel:
    """Calls `found` when the first Cell with parameters runs; `give_up` after an error."""

    def __init__(self, found: Callable[[], None], give_up: Callable[[], None]) -> None:
        self._look = guarded("msprobe", self._see, give_up)
        self._found = found
        self._original: Optional[Callable[..., Any]] = None

    def install(self) -> None:
        original = self._original = nn.Cell.__call__

        def call(cell: Any, *args: Any, **kwargs: Any) -> Any:
            if self._original is not None:
                self._look(cell)
            return original(cell, *args, **kwargs)

        nn.Cell.__call__ = call

    def _see(self, cell: Any) -> None:
        if next(iter(cell.get_parameters()), None) is not None:
            self.remove()
            self._found()

    def remove(self) -> None:
        if self._original is not None:
            nn.Cell.__call__ = self._original
            self._original = None


def is_distributed() -> bool:
    """Whether a launcher started this process as one of several."""
    return any(name in os.environ for name in ("MS_ROLE", "MS_WORKER_NUM", "RANK_ID", "RANK_SIZE"))


def _has_cells() -> bool:
    """Whether the script has created a Cell with parameters: a model or an optimizer. Not with gc.get_objects(): it
    also returns the tuples that other threads are making, which then fails there."""
    kinds = {nn.Cell}
    waiting = [nn.Cell]
    while waiting:
        new = [kind for kind in type.__subclasses__(waiting.pop()) if kind not in kinds]
        kinds.update(new)
        waiting += new
    return any(type(one) in kinds and getattr(one, "_params", None) for one in gc.get_referrers(*kinds))


def start_region_dump(task: Task) -> Optional[RegionDump]:
    """Starts the Dump of the graphs that are compiled from now on. If that is not possible, logs why and returns
    None."""
    settings = task.settings
    if getattr(settings.section, "file_format", "npy") == "bin":
        notices.warn_once('file_format "bin" is only for tensors of graphs; those of the dynamic graph are .npy files.')
    why = _obstacle(settings)
    if why is None:
        value = _wanted(task)
        root = Path(value[COMMON]["path"])
        try:
            checked = parse_settings(value, "level L2, compiled regions")
            older = Path(f"rank_{rank_here()}")
            if (root / older).exists():
                moved = move_old_directory(root, older)
                notices.inform(f"an earlier dump was in {root / older}; it is now in {moved}.")
            device = mindspore.get_context("device_target")
            found = lay_out(checked, "level L2, compiled regions", json.dumps(value, indent=4), device)
            return None if found is None else RegionDump(begin(found, DISK_BUDGET, by_steps=True))
        except (ConfigError, OSError) as error:
            why = str(error)
    if why:
        notices.inform(f"level L2: kernels inside compiled regions (mindspore.jit, optimizers) are not dumped: {why}")
    return None


def _obstacle(settings: Settings) -> Optional[str]:
    """Why there is no Dump of compiled regions; "" if nothing needs to be logged."""
    if settings.rank is not None and header.local_rank() not in settings.rank:
        return ""
    if getattr(settings.section, "scope", ()):
        return "scope is a range of the names of the dynamic graph."
    listed = tuple(getattr(settings.section, "list", ()))
    if listed and not _names_operators(listed):
        return "list names calls of the dynamic graph only."
    if is_on():
        return "this process has a graph dump already, and MindSpore reads its settings once."
    if graph_has_run():
        return "a graph was compiled before start(), and MindSpore read its settings then."
    return None


def _wanted(task: Task) -> dict[str, Any]:
    settings = task.settings
    value = data_dump(task, 0)
    common = value[COMMON]
    common.update(path=str(Path(settings.dump_path).absolute()), iteration="all")
    names = _names_operators(tuple(getattr(settings.section, "list", ())))
    if names and task.with_data:
        common.update(dump_mode=1, kernels=list(names))
    return value


def _names_operators(listed: tuple[str, ...]) -> tuple[str, ...]:
    """Whether an entry can mean an operator of a graph: its name with a scope, a part of its type, a regular
    expression."""
    return tuple(name for name in listed if "/" in name or "." not in name or name_pattern(name) is not None)


def _now() -> int:
    """Microseconds, as in the names of the framework's files."""
    return time.time_ns() // 1000
