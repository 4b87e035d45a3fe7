"""The hooks of level L2 in MindSpore's dynamic graph: kernels, and the Cells and APIs around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msprobe.collect import notices
from msprobe.collect.probe import Companion
from msprobe.collect.step_context import StepContext
from msprobe.mindspore.graph.graph_dump import is_on
from msprobe.mindspore.kernels.kernel_calls import ApiStack, Kernels, ModuleStack
from msprobe.mindspore.kernels.optimizer_kernels import Optimizers
from msprobe.mindspore.step_hooks import MindSporeHooks, TaskHooks


class _KernelMode(Companion):
    """The dispatch mode that sees the kernels, and the optimizers, which are compiled."""

    def __init__(self, hooks: MindSporeHooks) -> None:
        assert isinstance(hooks.apis, ApiStack)
        self._kernels = hooks.apis.kernels
        self._optimizers = Optimizers(hooks.recorder)

    def install(self, models: Sequence[Any]) -> None:
        self.resume()

    def remove(self) -> None:
        self._kernels.remove()
        self._optimizers.remove()

    def suspend(self) -> None:
        if not is_on():
            notices.warn_once(
                "level L2: kernels inside a compiled region (mindspore.jit, optimizers) are not seen; the region is "
                "one record."
            )
        self.remove()

    def resume(self) -> None:
        self._optimizers.install()
        self._kernels.install()

    def close(self) -> list[str]:
        unseen = self._kernels.unseen()
        return [f"level L2: the backward of {', '.join(unseen)} was not seen."] if unseen else []


def _make_apis(recorder: Any, gradients: Any) -> ApiStack:
    apis = ApiStack(recorder, gradients)
    apis.kernels = Kernels(recorder, gradients)
    return apis


def kernel_hooks(context: StepContext) -> TaskHooks:
    """The hooks of one step. Gradients of parameters are outputs of kernels here."""
    return TaskHooks(parameters=None, apis=_make_apis, cells=ModuleStack, companions=lambda hooks: [_KernelMode(hooks)])
