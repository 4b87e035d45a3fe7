"""Task free_benchmark: runs each call again on changed input and compares the two results."""

from __future__ import annotations

from msprobe.collect.records.selection import Selection
from msprobe.collect.task import Task
from msprobe.config import Settings
from msprobe.config.settings import FreeBenchmarkSettings
from msprobe.tasks.free_benchmark.run import FreeBenchmarkRun


class FreeBenchmark(Task):
    name = "free_benchmark"
    writes_records = False
    records_every_call = False
    needs_hooks = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        assert isinstance(settings.section, FreeBenchmarkSettings)
        self.run = FreeBenchmarkRun(settings.section, settings.dump_path)

    def selection(self) -> Selection:
        """Its `scope` names calls, as its `list` does; it is not a range."""
        section = self.run.section
        return Selection((), section.scope or section.list, ("all",))


TASK = FreeBenchmark
