"""Level L2 in graph mode: translates config.json into MindSpore's Dump before the first graph.

The framework decides what runs in a graph when it compiles it, so start() and stop() have no effect here: `step`
selects. A debugger that is started too late logs that, rather than leaving an empty directory.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mindspore

from msprobe.collect import notices
from msprobe.collect.run.lifecycle import UsageError
from msprobe.collect.task import Task
from msprobe.config import Settings
from msprobe.dump.archive import move_old_directory
from msprobe.graphdump.dumping.dump_settings import COMMON, E2E, parse_settings
from msprobe.graphdump.dumping.framework_config import NO_KERNEL
from msprobe.graphdump.dumping.running import DISK_BUDGET, lay_out, leave_to_framework, rank_here
from msprobe.mindspore import header
from msprobe.mindspore.graph.graph_dump import begin, begin_in_framework, graph_has_run, is_on, set_first_iteration
from msprobe.mindspore.kernels.optimizer_kernels import UpdateEnds

NET = "Net"
_MODES = {"aicore": 1, "atomic": 2, "all": 3}
_SIDES = {"all": 0, "input": 1, "output": 2}
_NAMES = {"mean": "avg"}
_SUMMARIES = {"statistics": ["max", "min", "avg", "l2norm"], "md5": ["max", "min", "avg", "l2norm", "md5"]}


def refuse(settings: Settings) -> None:
    """Raises UsageError for settings that graph mode does not support at this level."""
    if getattr(settings.section, "summary_mode", "") == "xor":
        raise UsageError(
            'graph mode does not support summary_mode "xor": use "statistics", "md5" or a list of statistics.'
        )


def data_dump(task: Task, initial: int) -> dict[str, Any]:
    """The settings of a task as a data_dump.json."""
    settings, section = task.settings, task.settings.section
    common: dict[str, Any] = {
        "path": str(settings.dump_path),
        "net_name": NET,
        "iteration": "all" if settings.step is None else "|".join(map(str, sorted(settings.step))),
        "initial_iteration": initial,
        "support_device": [rank_here()],  # the key `rank` counts inside a node and is checked before
    }
    check_mode = getattr(section, "check_mode", None)
    if check_mode is not None:
        common["op_debug_mode"] = _MODES[check_mode]
        return {COMMON: common, E2E: {"enable": True}}
    if not task.with_data:
        common.update(dump_mode=1, kernels=[NO_KERNEL])
        return {COMMON: common, E2E: {"enable": True}}
    summary = getattr(section, "summary_mode", "statistics")
    common["saved_data"] = "tensor" if task.files is True else "statistic"
    names = [_NAMES.get(name, name) for name in summary] if not isinstance(summary, str) else _SUMMARIES["statistics"]
    common["statistic_category"] = _SUMMARIES.get(summary, names)
    sides = {_SIDES[mode] for mode in getattr(section, "data_mode", ("all",)) if mode in _SIDES}
    common["input_output"] = sides.pop() if len(sides) == 1 else 0
    common["file_format"] = getattr(section, "file_format", "npy")
    names = list(getattr(section, "list", ()))
    if names:
        common.update(dump_mode=1, kernels=names)
    return {COMMON: common, E2E: {"enable": True}}


class GraphKernels:
    """Replaces the lifecycle of a run that collects by hooks."""

    probe = None
    closed = False
    wants_more = True  # MindSpore counts the iterations of its graphs

    def __init__(self, task: Task) -> None:
        self.settings = task.settings
        self._task = task
        self._initial = 0
        self._started = False
        self._updates = UpdateEnds(self._see_update)

    def start(self, model: Any = None, token_range: Any = None) -> None:
        """The first call starts the dump; later calls do nothing."""
        if token_range is not None:
            notices.warn_once("token_range has no effect in graph mode.")
        if self._started:
            return
        self._started = True
        if graph_has_run():
            notices.warn(
                "start() is too late: a graph is already compiled, and MindSpore reads its settings before that. "
                "Nothing is dumped. Call start() after set_context and before the model runs."
            )
            return
        rank = header.local_rank()
        if self.settings.rank is None or rank in self.settings.rank:
            self._begin()
        else:
            notices.warn(
                f"nothing is collected: this process is rank {rank}, and the configuration collects rank "
                f"{sorted(self.settings.rank)}."
            )

    def _begin(self) -> None:
        value = data_dump(self._task, self._initial)
        source = "config.json as data_dump.json (its path is dump_path)"
        checked = parse_settings(value, source)
        older = Path(f"rank_{rank_here()}")
        if (Path(checked.path) / older).exists():
            moved = move_old_directory(Path(checked.path), older)
            notices.inform(f"moved an earlier dump from {Path(checked.path)} to {moved}.")
        device = mindspore.get_context("device_target")
        alone = leave_to_framework(checked, source, device)
        if alone is not None:
            begin_in_framework(alone)
            return
        found = lay_out(checked, source, json.dumps(value, indent=4), device)
        if found is not None:
            begin(found, DISK_BUDGET)
            self._updates.install()
            notices.inform(f"level L2 in graph mode: dumping every graph from now on to {Path(checked.path)}.")

    def _see_update(self) -> None:
        """The script has called an optimizer: it is a graph of its own, next to that of the gradients."""
        self._updates.remove()
        notices.warn_once(
            "level L2 in graph mode: the optimizer is a graph of its own, and MindSpore counts runs of graphs: its "
            "kernels of step N are in the directory of step N+1. Add N+1 to the key step, or train with "
            "nn.TrainOneStepCell, which makes one graph of the step."
        )

    def stop(self) -> None:
        self._check_mode()

    def step(self) -> None:
        self._check_mode()

    def set_init_step(self, step: int) -> None:
        self._initial = step
        if self._started and is_on() and not set_first_iteration(step):
            notices.warn_once("set_init_step() is too late in graph mode: call it before the first graph is compiled.")

    def save(self, variable: Any, name: str, save_backward: bool = True) -> None:
        notices.warn_once("save() works only at level debug; nothing is saved.")

    def close(self) -> None:
        """The worker ends with the process."""

    def close_replaced(self) -> None:
        """A later debugger of this process finds that MindSpore has its settings already, and says so."""

    def use_model(self, model: Any) -> None:
        """Kernels of graphs are collected without a model."""

    def use_rank(self, rank: int) -> None:
        notices.warn_once("rank_id has no effect in graph mode at level L2: MindSpore's Dump has the launcher's rank.")

    def use_dump_path(self, dump_path: Path) -> None:
        notices.warn_once("dump_path cannot be changed in graph mode at level L2: MindSpore reads its settings once.")

    def finish_step(self) -> None:
        """MindSpore finishes each file when it writes it."""

    def give_up(self) -> None:
        """After an error of msprobe: MindSpore goes on with what it dumps."""
        self._started = True

    def _check_mode(self) -> None:
        if mindspore.get_context("mode") != mindspore.GRAPH_MODE:
            notices.warn_once(
                "the mode was changed to PYNATIVE_MODE after PrecisionDebugger was created in graph mode: msprobe "
                "dumps only graphs."
            )
