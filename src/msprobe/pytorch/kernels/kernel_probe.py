"""Everything that is hooked into PyTorch for one step of level L2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from msprobe.collect.selection import Selection
from msprobe.config import Settings
from msprobe.dump.writer import RankWriter
from msprobe.frameworks.pytorch.api_table import ApiTable
from msprobe.pytorch.apis.custom import CustomApis
from msprobe.pytorch.apis.mode_scope import ApiModeScope
from msprobe.pytorch.apis.operator_names import OperatorNames
from msprobe.pytorch.kernels.ascend_dump import AscendDump
from msprobe.pytorch.kernels.kernel_calls import ApiStack, Kernels, ModuleStack
from msprobe.pytorch.kernels.kernel_replay import replay_of
from msprobe.pytorch.probe import TaskHooks, TorchProbe

_PARTS = TaskHooks(apis=ApiStack, modules=ModuleStack)


class KernelProbe(TorchProbe):
    _apis: ApiStack

    def __init__(
        self,
        settings: Settings,
        writer: RankWriter,
        selection: Selection,
        table: ApiTable,
        spelling: OperatorNames,
        custom: CustomApis,
    ) -> None:
        super().__init__(settings, writer, selection, table, spelling, custom, _PARTS)
        self._kernels = Kernels(self.recorder, self._texts)
        section = settings.section
        named = getattr(section, "scope", ()) or getattr(section, "list", ())
        self._apis.attach(self._kernels, replay_of(settings, self._kernels), AscendDump(settings.acl_config, named))

    def _put_in(self, models: Sequence[Any]) -> None:
        modules: Optional[ModuleStack] = None
        if models:
            modules = ModuleStack(self.recorder, self._gradients, models)
            modules.attach(self._kernels)
        self._parts = [part for part in (modules, ApiModeScope(self._apis, modules), self._kernels) if part is not None]
        self._spelling.install()
        self._custom.attach(self._apis)
        for part in self._parts:
            part.install()
