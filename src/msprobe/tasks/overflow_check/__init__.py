"""Task overflow_check: finds and records the calls that produce or propagate NaN and infinity."""

from __future__ import annotations

from typing import cast

from msprobe.collect.task import Task
from msprobe.config import Settings
from msprobe.config.settings import OverflowSettings
from msprobe.tasks.overflow_check.run import OverflowRun


class OverflowCheck(Task):
    name = "overflow_check"
    records_every_call = False
    needs_hooks = True
    files = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.run = OverflowRun(cast(OverflowSettings, settings.section).overflow_nums)


TASK = OverflowCheck
