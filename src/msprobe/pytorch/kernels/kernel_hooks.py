"""The hooks of level L2 in PyTorch: kernels, and the modules and APIs around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msprobe.collect.probe import Companion
from msprobe.collect.step_context import StepContext
from msprobe.pytorch.kernels.ascend_dump import AscendDump
from msprobe.pytorch.kernels.kernel_calls import ApiStack, Kernels, ModuleStack
from msprobe.pytorch.kernels.kernel_replay import replay_of
from msprobe.pytorch.step_hooks import TaskHooks
from msprobe.pytorch.tensors.tensor_text import TensorTexts


class _KernelMode(Companion):
    """The dispatch mode that sees the kernels."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def install(self, models: Sequence[Any]) -> None:
        self._kernels.install()

    def remove(self) -> None:
        self._kernels.remove()


def kernel_hooks(context: StepContext) -> TaskHooks:
    settings = context.settings
    made: list[Kernels] = []

    def make_apis(recorder: Any, gradients: Any, texts: TensorTexts, *sources: Any) -> ApiStack:
        kernels = Kernels(recorder, texts)
        made.append(kernels)
        section = settings.section
        named = getattr(section, "scope", ()) or getattr(section, "list", ())
        apis = ApiStack(recorder, gradients, texts, *sources)
        apis.attach(kernels, replay_of(settings, kernels), AscendDump(settings.acl_config, named))
        return apis

    def make_modules(*arguments: Any) -> ModuleStack:
        modules = ModuleStack(*arguments)
        modules.attach(made[0])
        return modules

    return TaskHooks(
        apis=make_apis, modules=make_modules, companions=lambda hooks: [_KernelMode(kernels) for kernels in made]
    )
