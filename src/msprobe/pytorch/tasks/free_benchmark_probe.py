"""The probe of free_benchmark: the API mode that runs calls twice, and nothing that records."""

from __future__ import annotations

from typing import Optional

from msprobe.collect.selection import Selection
from msprobe.config import Settings
from msprobe.dump.writer import RankWriter
from msprobe.frameworks.pytorch.api_table import ApiTable
from msprobe.pytorch.apis.custom import CustomApis
from msprobe.pytorch.apis.operator_names import OperatorNames
from msprobe.pytorch.probe import TaskHooks, TorchProbe
from msprobe.pytorch.tasks.free_benchmark_calls import FreeBenchmarkApis, Second
from msprobe.pytorch.tasks.free_benchmark_gradients import FreeBenchmarkGradients
from msprobe.tasks.free_benchmark.run import FreeBenchmarkRun


class FreeBenchmarkProbe(TorchProbe):
    def __init__(
        self,
        settings: Settings,
        writer: RankWriter,
        selection: Selection,
        table: Optional[ApiTable],
        spelling: OperatorNames,
        custom: CustomApis,
        run: FreeBenchmarkRun,
        step: int,
        rank: int,
    ) -> None:
        parts = TaskHooks(gradients=FreeBenchmarkGradients, apis=FreeBenchmarkApis, defers=False)
        super().__init__(settings, writer, selection, table, spelling, custom, parts)
        second = Second(run, step, rank)
        assert isinstance(self._apis, FreeBenchmarkApis)
        assert isinstance(self._gradients, FreeBenchmarkGradients)
        self._apis.second = self._gradients.second = second
