"""The probe of free_benchmark: the calls run twice, and nothing that records."""

from __future__ import annotations

from typing import Optional

from msprobe.collect.custom import CustomApis
from msprobe.collect.selection import Selection
from msprobe.config import Settings
from msprobe.dump.writer import RankWriter
from msprobe.mindspore.apis.api_patches import ApiPatches
from msprobe.mindspore.probe import MindSporeProbe, TaskHooks
from msprobe.mindspore.tasks.dry_runs import DryRuns
from msprobe.mindspore.tasks.free_benchmark_calls import FreeBenchmarkApis
from msprobe.mindspore.tasks.free_benchmark_gradients import FreeBenchmarkGradients
from msprobe.mindspore.tasks.second_run import Second, warn_of_device
from msprobe.tasks.free_benchmark.run import FreeBenchmarkRun


class FreeBenchmarkProbe(MindSporeProbe):
    def __init__(
        self,
        settings: Settings,
        writer: RankWriter,
        selection: Selection,
        sites: Optional[ApiPatches],
        custom: CustomApis,
        run: FreeBenchmarkRun,
        rehearsals: DryRuns,
        step: int,
        rank: int,
    ) -> None:
        parts = TaskHooks(gradients=FreeBenchmarkGradients, apis=FreeBenchmarkApis)
        super().__init__(settings, writer, selection, sites, custom, parts)
        warn_of_device(run.section.pert_mode)
        second = Second(run, rehearsals, step, rank)
        assert isinstance(self._apis, FreeBenchmarkApis)
        assert isinstance(self._gradients, FreeBenchmarkGradients)
        self._apis.second = self._gradients.second = second
        self._gradients.apis = self._apis
