"""Everything that is hooked into PyTorch for one step of level L2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from msprobe.collect.selection import Selection
from msprobe.config import Settings
from msprobe.dump.writer import RankWriter

from .api_table import ApiTable
from .ascend_dump import AscendDump
from .custom import CustomApis
from .kernel_replay import replay_of
from .kernels import Callers, Kernels, Surroundings
from .presence import Presence
from .probe import Parts, TorchProbe
from .spelling import Spelling

_PARTS = Parts(apis=Callers, modules=Surroundings)


class KernelProbe(TorchProbe):
    _apis: Callers

    def __init__(
        self,
        settings: Settings,
        writer: RankWriter,
        selection: Selection,
        table: ApiTable,
        spelling: Spelling,
        custom: CustomApis,
    ) -> None:
        super().__init__(settings, writer, selection, table, spelling, custom, _PARTS)
        self._kernels = Kernels(self.recorder, self._texts)
        section = settings.section
        named = getattr(section, "scope", ()) or getattr(section, "list", ())
        self._apis.attach(self._kernels, replay_of(settings, self._kernels), AscendDump(settings.acl_config, named))

    def _put_in(self, models: Sequence[Any]) -> None:
        modules: Optional[Surroundings] = None
        if models:
            modules = Surroundings(self.recorder, self._gradients, models)
            modules.attach(self._kernels)
        self._parts = [part for part in (modules, Presence(self._apis, modules), self._kernels) if part is not None]
        self._spelling.install()
        self._custom.attach(self._apis)
        for part in self._parts:
            part.install()
