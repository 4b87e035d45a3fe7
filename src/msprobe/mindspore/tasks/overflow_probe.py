"""The probe of overflow_check: the parts that look, in the places of those that record."""

from __future__ import annotations

from typing import Any, Optional

from msprobe.collect.custom import CustomApis
from msprobe.collect.selection import Selection
from msprobe.collect.values import Values
from msprobe.config import Settings
from msprobe.dump.writer import RankWriter
from msprobe.mindspore.apis.api_patches import ApiPatches
from msprobe.mindspore.probe import MindSporeProbe, TaskHooks, wanted_statistics
from msprobe.mindspore.tasks.overflow_calls import (
    OverflowApis,
    OverflowCells,
    OverflowGradients,
    OverflowParameterGradients,
)
from msprobe.mindspore.tasks.overflow_inspector import MindSporeTensorInspector, OverflowTexts
from msprobe.mindspore.tasks.overflow_scaler import ScalerWatch
from msprobe.mindspore.tensors.tensor_text import TensorTexts
from msprobe.stats import CRC
from msprobe.tasks.overflow_check.recorder import OverflowRecorder
from msprobe.tasks.overflow_check.run import OverflowRun


class OverflowProbe(MindSporeProbe):
    def __init__(
        self,
        settings: Settings,
        writer: RankWriter,
        selection: Selection,
        sites: Optional[ApiPatches],
        custom: CustomApis,
        run: OverflowRun,
    ) -> None:
        def recorder(settings: Settings, writer: Any, selection: Selection, texts: TensorTexts) -> OverflowRecorder:
            return OverflowRecorder(
                writer,
                Values(OverflowTexts(wanted_statistics(settings), writer)),
                selection,
                MindSporeTensorInspector(),
                run,
                with_stacks=settings.extra_info,
                batch=Values(TensorTexts(CRC, None)),
            )

        parts = TaskHooks(recorder, OverflowGradients, OverflowParameterGradients, OverflowApis, OverflowCells)
        super().__init__(settings, writer, selection, sites, custom, parts)
        assert isinstance(self.recorder, OverflowRecorder)
        self._scaler = ScalerWatch(self.recorder, run)

    def _put_in(self) -> None:
        super()._put_in()
        self._scaler.install()

    def _take_out(self) -> None:
        self._scaler.remove()
        super()._take_out()

    def _suspend(self) -> None:
        self._scaler.remove()
        super()._suspend()

    def _resume(self) -> None:
        super()._resume()
        self._scaler.install()
