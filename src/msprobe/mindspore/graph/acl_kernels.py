"""Level L2 in graph mode on Ascend at jit_level O2: Ascend's own dump (acl).

At O2 Ascend runs a graph as one piece, and only its own dump sees the kernels. msprobe writes its configuration,
acl_dump_{device}.json, and starts it with pyACL before the graph is loaded. This follows the documents of Ascend; it
has not run on a device.
"""

from __future__ import annotations

import atexit
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import mindspore

from msprobe.collect import notices
from msprobe.collect.run.lifecycle import UsageError
from msprobe.collect.task import Task
from msprobe.config import Settings
from msprobe.config.kinds import name_pattern
from msprobe.dump.layout import make_directory, write_file
from msprobe.dump.plural import count
from msprobe.graphdump.dumping.devices import ASCEND
from msprobe.graphdump.dumping.running import rank_here
from msprobe.graphdump.files.step_directories import arrange_steps
from msprobe.mindspore.graph.graph_kernels import GraphKernels

_DEBUG = {"dump_debug": "on"}


def is_sunk(device: str, jit_level: str) -> bool:
    return device == ASCEND and jit_level == "O2"


def is_sunk_here() -> bool:
    return is_sunk(mindspore.get_context("device_target"), mindspore.get_context("jit_level"))


def refuse_for_acl(settings: Settings, has_acl: bool) -> None:
    """Raises UsageError for what Ascend's dump cannot do, or without pyACL."""
    if not has_acl:
        raise UsageError(
            'level "L2" on Ascend at jit_level O2 needs pyACL, the Python package acl of CANN: source its set_env.sh, '
            "or use jit_level O0 or O1."
        )
    if settings.task == "structure":
        raise UsageError('on Ascend at jit_level O2, level "L2" has no task "structure": use jit_level O0 or O1.')
    if any(name_pattern(name) is not None for name in getattr(settings.section, "list", ())):
        raise UsageError("on Ascend at jit_level O2, list takes names of operators, no regular expressions.")


def acl_dump(task: Task, rank: int) -> dict[str, Any]:
    """The settings of a task as a configuration of Ascend's dump."""
    settings, section = task.settings, task.settings.section
    where = {"dump_path": str(settings.dump_path / f"rank_{rank}")}
    if getattr(section, "check_mode", None) is not None:
        return {"dump": {**where, **_DEBUG}}
    names = list(getattr(section, "list", ()))
    sides = {mode for mode in getattr(section, "data_mode", ("all",)) if mode in ("input", "output")}
    dump = {
        **where,
        "dump_list": [{"layer": names}] if names else [],
        "dump_mode": sides.pop() if len(sides) == 1 else "all",
        "dump_op_switch": "off",
        "dump_data": "tensor" if task.files is True else "stats",
    }
    if settings.step is not None:
        dump["dump_step"] = "|".join(map(str, sorted(settings.step)))
    return {"dump": dump}


class AclKernels(GraphKernels):
    """Starts Ascend's dump at the first start(). Steps are selected by Ascend (dump_step)."""

    def _begin(self) -> None:
        rank = rank_here()
        value = acl_dump(self._task, rank)
        make_directory(Path(value["dump"]["dump_path"]))
        file = self.settings.dump_path / f"acl_dump_{mindspore.get_context('device_id')}.json"
        write_file(file, [json.dumps(value, indent=4).encode()])
        self._call("init_dump")
        self._call("set_dump", str(file))
        atexit.register(self.close)
        notices.inform(
            f"level L2 at jit_level O2: Ascend dumps every graph from now on to {value['dump']['dump_path']}. "
            "At the end msprobe puts the tensors into step directories."
        )

    def close(self) -> None:
        if self._started and not self.closed:
            self.closed = True
            self._call("finalize_dump")
            if self._task.files is True and getattr(self.settings.section, "file_format", "npy") == "npy":
                self._arrange()

    def _arrange(self) -> None:
        """What goes wrong here must not end the training script: the files of Ascend stay, and msprobe logs it."""
        rank = Path(acl_dump(self._task, rank_here())["dump"]["dump_path"])
        try:
            arranged = arrange_steps(rank)
        except OSError as error:
            notices.warn(f"the files in {rank} stay as Ascend wrote them: {error}. `msprobe convert` reads them.")
            return
        notices.inform(f"{count(arranged.written, 'tensor')} in the step directories of {rank}.")
        for path, reason in arranged.kept[:3]:
            notices.warn(f"{path} stays as Ascend wrote it: {reason}.")

    def _call(self, name: str, *arguments: str) -> None:
        code = getattr(import_module("acl").mdl, name)(*arguments)
        if code != 0:
            notices.warn(f"Ascend refused acl.mdl.{name} (error {code}): nothing is dumped from here on.")
