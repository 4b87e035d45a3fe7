"""A task: the object that says what a run records, saves and reports.

Each folder of `msprobe.tasks` defines one. If a task needs other hooks than plain recording, each framework has them in
a module with the name of the task: `msprobe.pytorch.tasks.overflow_check`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Callable, ClassVar, Optional, Union

from msprobe.collect.records.selection import Selection
from msprobe.config import Settings
from msprobe.dump import layout
from msprobe.dump.writing.writer import Head
from msprobe.stats import CRC, LOW_PRECISION, ORDER, STATS, XOR

_SUMMARIES = {"md5": STATS | CRC, "xor": XOR}


class Task:
    """One run of a task. The defaults record every wanted call, with data and without tensor files."""

    name: ClassVar[str]
    writes_records: ClassVar[bool] = True
    """Whether it makes step directories. If not, an older dump in dump_path stays there."""
    records_every_call: ClassVar[bool] = True
    """Whether each wanted call gets a record. If so, msprobe warns of a run without records, and writes training.json:
    optimizer steps, clipping, backward passes."""
    with_data: ClassVar[bool] = True
    """Whether records describe what the calls receive and return."""
    needs_hooks: ClassVar[bool] = False
    """Whether it does more at a call than record it. Then every frontend must have its hooks: `find_hooks`."""

    run: Any = None
    """What the task counts over the run, if it reports at the end: its `summary()` gives the messages."""

    files: Union[bool, Sequence[str]] = False
    """Whether the tensors of wanted calls get files, or the entries of the calls whose tensors do."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @property
    def statistics(self) -> int:
        """Which statistics of a tensor its records have: flags of `msprobe.stats`."""
        wanted = _SUMMARIES.get(str(getattr(self.settings.section, "summary_mode", "")), STATS | ORDER)
        return wanted | LOW_PRECISION if self.settings.precision == "low" else wanted

    def describe_files(self, parameter_bytes: int) -> Optional[tuple[str, int]]:
        """The content of the files and their known size in bytes; None if no message is needed."""
        return None

    def selection(self) -> Selection:
        """Which calls are wanted."""
        section = self.settings.section
        scope, wanted = getattr(section, "scope", ()), getattr(section, "list", ())
        if len(scope) == 1:  # one API (level L2 of PyTorch), not a range
            scope, wanted = (), scope
        return Selection(scope, wanted, getattr(section, "data_mode", ("all",)), self.files)

    def make_head(self, framework: str, directory: Path) -> Head:
        """The first line of a journal in `directory`."""
        settings = self.settings
        tensors = str(directory / layout.TENSORS) if self.files else None
        return Head(settings.task, settings.level, framework, tensors, settings.extra_info)

    def open_step(self, directory: Path, rank: Optional[int]) -> None:
        """A step begins; its records go to `directory`."""

    def finish(self) -> list[str]:
        """The run ends. Returns the messages to log."""
        return [] if self.run is None else list(self.run.summary())


def find_hooks(package: str, task: Task, default: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function that makes the hooks of a task for one step: from the task's module in `package`, or `default`."""
    name = f"{package}.{task.name}"
    if find_spec(name) is None:
        if task.needs_hooks:
            raise NotImplementedError(f'{name} is missing: task "{task.name}" does more than record calls.')
        return default
    make: Callable[[Any], Any] = import_module(name).hooks_of(task)
    return make
