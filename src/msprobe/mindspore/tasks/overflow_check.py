"""The hooks of overflow_check: they inspect calls and gradients instead of recording them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

from msprobe.collect.records.values import Values
from msprobe.collect.step_context import StepContext
from msprobe.mindspore.step_hooks import TaskHooks, digest_texts
from msprobe.mindspore.tasks.overflow_calls import (
    OverflowApis,
    OverflowCells,
    OverflowGradients,
    OverflowParameterGradients,
)
from msprobe.mindspore.tasks.overflow_inspector import MindSporeTensorInspector, OverflowTexts
from msprobe.mindspore.tasks.overflow_scaler import ScalerWatch
from msprobe.mindspore.tensors.tensor_text import TensorTexts
from msprobe.tasks.overflow_check import OverflowCheck
from msprobe.tasks.overflow_check.recorder import OverflowRecorder


def hooks_of(task: OverflowCheck) -> Callable[[StepContext], TaskHooks]:
    def make_recorder(context: StepContext, texts: TensorTexts) -> OverflowRecorder:
        values = Values(OverflowTexts(context.task.statistics, context.writer))
        return OverflowRecorder(context, task.run, values, MindSporeTensorInspector(), Values(digest_texts()))

    def make_companions(hooks: Any) -> Sequence[ScalerWatch]:
        return [ScalerWatch(hooks.recorder, task.run)]

    hooks = TaskHooks(
        make_recorder, OverflowGradients, OverflowParameterGradients, OverflowApis, OverflowCells, make_companions
    )
    return lambda context: hooks
