"""The probe of overflow_check: the parts that look, in the places of those that record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from msprobe.collect.selection import Selection
from msprobe.collect.values import Values
from msprobe.config import Settings
from msprobe.dump.writer import RankWriter
from msprobe.stats import CRC
from msprobe.tasks.overflow import OverflowRecorder
from msprobe.tasks.overflow_run import OverflowRun

from .api_table import ApiTable
from .custom import CustomApis
from .overflow import OverflowApis, OverflowGradients, OverflowModules
from .overflow_eyes import TorchEyes
from .overflow_scaler import ScalerWatch
from .probe import Parts, TorchProbe
from .spelling import Spelling
from .tensors import TensorTexts


class OverflowProbe(TorchProbe):
    def __init__(
        self,
        settings: Settings,
        writer: RankWriter,
        selection: Selection,
        table: Optional[ApiTable],
        spelling: Spelling,
        custom: CustomApis,
        run: OverflowRun,
    ) -> None:
        def recorder(settings: Settings, writer: Any, selection: Selection, texts: TensorTexts) -> OverflowRecorder:
            return OverflowRecorder(
                writer,
                Values(texts),
                selection,
                TorchEyes(texts),
                run,
                with_stacks=settings.extra_info,
                batch=Values(TensorTexts(CRC, None, remembers=False)),
            )

        parts = Parts(recorder, OverflowGradients, OverflowApis, OverflowModules, defers=False)
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
