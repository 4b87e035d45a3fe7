"""Everything that is hooked into MindSpore for one step of level L2 in dynamic mode."""

from __future__ import annotations

from typing import Any

from msprobe.collect import notices
from msprobe.mindspore.apis.jit_regions import JitRegions
from msprobe.mindspore.cells.cell_calls import named_below
from msprobe.mindspore.graph.graph_dump import is_on
from msprobe.mindspore.kernels.kernel_calls import ApiStack, Kernels, ModuleStack
from msprobe.mindspore.kernels.optimizer_kernels import Optimizers
from msprobe.mindspore.probe import MindSporeProbe


class KernelProbe(MindSporeProbe):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._kernels = Kernels(self.recorder, self._gradients)
        self._apis = callers = ApiStack(self.recorder, self._gradients)
        callers.kernels = self._kernels
        self._jit = JitRegions(self._apis, self._suspend, self._resume)
        self._optimizers = Optimizers(self.recorder)

    def close(self) -> list[str]:
        unseen = self._kernels.unseen()
        told = [f"level L2: the backward of {', '.join(unseen)} was not seen."] if unseen else []
        return [*told, *super().close()]

    def _put_in(self) -> None:
        named = list(named_below(self._models))
        self._cells = ModuleStack(self.recorder, self._gradients, named)
        self._cells.install()
        if self._sites is not None and self._apis is not None:
            self._sites.put_in(self._apis, [*self._models, *(each.cell for each in named)])
            self._custom.attach(self._apis)
        self._jit.install()
        self._optimizers.install()
        self._kernels.install()

    def _take_out(self) -> None:
        self._kernels.remove()
        self._optimizers.remove()
        super()._take_out()

    def _suspend(self) -> None:
        if not is_on():
            notices.warn_once(
                "level L2: what runs inside a compiled region (mindspore.jit, optimizers) is not seen; the region is "
                "recorded whole."
            )
        self._kernels.remove()
        self._optimizers.remove()
        super()._suspend()

    def _resume(self) -> None:
        super()._resume()
        self._optimizers.install()
        self._kernels.install()
