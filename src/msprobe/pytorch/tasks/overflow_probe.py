"""The probe of overflow_check: the parts that look, in the places of those that record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from msprobe.collect.selection import Selection
from msprobe.collect.values import Values
from msprobe.config import Settings
from msprobe.dump.writer import RankWriter
from msprobe.frameworks.pytorch.api_table import ApiTable
from msprobe.pytorch.apis.custom import CustomApis
from msprobe.pytorch.apis.operator_names import OperatorNames
from msprobe.pytorch.probe import TaskHooks, TorchProbe
from msprobe.pytorch.tasks.overflow_calls import OverflowApis, OverflowGradients, OverflowModules
from msprobe.pytorch.tasks.overflow_inspector import TorchTensorInspector
from msprobe.pytorch.tasks.overflow_scaler import ScalerWatch
from msprobe.pytorch.tensors.tensor_text import TensorTexts
from msprobe.stats import CRC
from msprobe.tasks.overflow_check.recorder import OverflowRecorder
from msprobe.tasks.overflow_check.run import OverflowRun


class OverflowProbe(TorchProbe):
    def __init__(
        self,
        settings: Settings,
        writer: RankWriter,
        selection: Selection,
        table: Optional[ApiTable],
        spelling: OperatorNames,
        custom: CustomApis,
        run: OverflowRun,
    ) -> None:
        def recorder(settings: Settings, writer: Any, selection: Selection, texts: TensorTexts) -> OverflowRecorder:
            return OverflowRecorder(
                writer,
                Values(texts),
                selection,
                TorchTensorInspector(texts),
                run,
                with_stacks=settings.extra_info,
                batch=Values(TensorTexts(CRC, None, remembers=False)),
            )

        parts = TaskHooks(recorder, OverflowGradients, OverflowApis, OverflowModules, defers=False)
        super().__init__(settings, writer, selection, table, spelling, custom, parts)
        assert isinstance(self.recorder, OverflowRecorder)
        self._scaler = ScalerWatch(self.recorder, run)

    def install(self, models: Sequence[Any], token_range: Optional[tuple[int, int]]) -> None:
        super().install(models, token_range)
        self._scaler.install()

    def close(self) -> list[str]:
        told = super().close()
        self._scaler.remove()
        return told
