"""Task statistics: records statistics of every tensor, and saves the tensors of the calls in `tensor_list`."""

from __future__ import annotations

from typing import Optional

from msprobe.collect.task import Task
from msprobe.config import Settings
from msprobe.config.settings import StatisticsSettings


class Statistics(Task):
    name = "statistics"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        assert isinstance(settings.section, StatisticsSettings)
        self.files = settings.section.tensor_list or False

    def describe_files(self, parameter_bytes: int) -> Optional[tuple[str, int]]:
        return "the tensors of tensor_list", 0


TASK = Statistics
