"""The tasks, one folder each: what a run records, saves and reports, without a framework.

The `__init__.py` of a folder defines `TASK`, a subclass of `msprobe.collect.task.Task`. The name of the folder is the
name of the task in the configuration. CONTRIBUTING.md lists what else a new task needs.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from msprobe.collect.run.lifecycle import UsageError
from msprobe.collect.task import Task
from msprobe.config import Settings


def task_names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)


def refuse_other_tasks(settings: Settings) -> None:
    """Raises UsageError for a task of the configuration that collects nothing."""
    if settings.task not in task_names():
        raise UsageError(
            f'task "{settings.task}" collects nothing: use the command msprobe {settings.task}. '
            f"The tasks that collect are: {', '.join(task_names())}."
        )


def make_task(settings: Settings) -> Task:
    """Makes the task of these settings, for one run. Imports only its folder."""
    task: Task = import_module(f"{__name__}.{settings.task}").TASK(settings)
    return task
