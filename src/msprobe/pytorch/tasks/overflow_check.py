"""The hooks of overflow_check: they inspect calls and gradients instead of recording them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

from msprobe.collect.records.values import Values
from msprobe.collect.step_context import StepContext
from msprobe.pytorch.step_hooks import TaskHooks, digest_texts
from msprobe.pytorch.tasks.overflow_calls import OverflowApis, OverflowGradients, OverflowModules
from msprobe.pytorch.tasks.overflow_inspector import TorchTensorInspector
from msprobe.pytorch.tasks.overflow_scaler import ScalerWatch
from msprobe.pytorch.tensors.tensor_text import TensorTexts
from msprobe.tasks.overflow_check import OverflowCheck
from msprobe.tasks.overflow_check.recorder import OverflowRecorder


def hooks_of(task: OverflowCheck) -> Callable[[StepContext], TaskHooks]:
    def make_recorder(context: StepContext, writer: Any, texts: TensorTexts) -> OverflowRecorder:
        return OverflowRecorder(context, task.run, Values(texts), TorchTensorInspector(texts), Values(digest_texts()))

    def make_companions(hooks: Any) -> Sequence[ScalerWatch]:
        return [ScalerWatch(hooks.recorder, task.run)]

    hooks = TaskHooks(make_recorder, OverflowGradients, OverflowApis, OverflowModules, make_companions, defers=False)
    return lambda context: hooks
