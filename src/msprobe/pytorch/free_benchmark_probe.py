"""The probe of free_benchmark: the API mode that runs calls twice, and nothing that records."""

from __future__ import annotations

from typing import Optional

from msprobe.collect.selection import Selection
from msprobe.config import Settings
from msprobe.dump.writer import RankWriter
from msprobe.tasks.free_benchmark import FreeBenchmarkRun

from .api_table import ApiTable
from .custom import CustomApis
from .free_benchmark import FreeBenchmarkApis, Second
from .free_benchmark_gradients import FreeBenchmarkGradients
from .probe import Parts, TorchProbe
from .spelling import Spelling


class FreeBenchmarkProbe(TorchProbe):
    def __init__(
        self,
        settings: Settings,
        writer: RankWriter,
        selection: Selection,
        table: Optional[ApiTable],
        spelling: Spelling,
        custom: CustomApis,
        run: FreeBenchmarkRun,
        step: int,
        rank: int,
    ) -> None:
        parts = Parts(gradients=FreeBenchmarkGradients, apis=FreeBenchmarkApis, defers=False)
        super().__init__(settings, writer, selection, table, spelling, custom, parts)
        second = Second(run, step, rank)
        assert isinstance(self._apis, FreeBenchmarkApis)
        assert isinstance(self._gradients, FreeBenchmarkGradients)
        self._apis.second = self._gradients.second = second
