"""Task overflow_check: finds and records the calls that produce or propagate NaN and infinity."""

from __future__ import annotations

from msprobe.collect.task import Task
from msprobe.config import Settings
from msprobe.config.settings import OverflowSettings
from msprobe.tasks.overflow_check.run import OverflowRun


class OverflowCheck(Task):
    name = "overflow_check"
    records_every_call = False
    files = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        assert isinstance(settings.section, OverflowSettings)
        self.run = OverflowRun(settings.section.overflow_nums)


TASK = OverflowCheck
