"""The probe of free_benchmark: the calls run twice, and nothing that records."""

from __future__ import annotations

from typing import Optional

from msprobe.collect.custom import CustomApis
from msprobe.collect.selection import Selection
from msprobe.config import Settings
from msprobe.dump.writer import RankWriter
from msprobe.tasks.free_benchmark import FreeBenchmarkRun

from .free_benchmark import FreeBenchmarkApis
from .free_benchmark_gradients import FreeBenchmarkGradients
from .free_benchmark_second import Second, warn_of_device
from .probe import MindSporeProbe, Parts
from .rehearsals import Rehearsals
from .sites import Sites


class FreeBenchmarkProbe(MindSporeProbe):
    def __init__(
        self,
        settings: Settings,
        writer: RankWriter,
        selection: Selection,
        sites: Optional[Sites],
        custom: CustomApis,
        run: FreeBenchmarkRun,
        rehearsals: Rehearsals,
        step: int,
        rank: int,
    ) -> None:
        parts = Parts(gradients=FreeBenchmarkGradients, apis=FreeBenchmarkApis)
        super().__init__(settings, writer, selection, sites, custom, parts)
        warn_of_device(run.section.pert_mode)
        second = Second(run, rehearsals, step, rank)
        assert isinstance(self._apis, FreeBenchmarkApis)
        assert isinstance(self._gradients, FreeBenchmarkGradients)
        self._apis.second = self._gradients.second = second
        self._gradients.apis = self._apis
