"""The hooks of free_benchmark: APIs and their backward run twice, and nothing is recorded."""

from __future__ import annotations

from functools import partial
from typing import Callable

from msprobe.collect.step_context import StepContext
from msprobe.pytorch.step_hooks import TaskHooks
from msprobe.pytorch.tasks.free_benchmark_calls import FreeBenchmarkApis
from msprobe.pytorch.tasks.free_benchmark_gradients import FreeBenchmarkGradients
from msprobe.pytorch.tasks.second_run import TorchSecondRun
from msprobe.tasks.free_benchmark import FreeBenchmark


def hooks_of(task: FreeBenchmark) -> Callable[[StepContext], TaskHooks]:
    def make_hooks(context: StepContext) -> TaskHooks:
        second = TorchSecondRun(task.run, context.step, context.rank or 0)
        return TaskHooks(
            gradients=partial(FreeBenchmarkGradients, second=second),
            apis=partial(FreeBenchmarkApis, second=second),
            defers=False,
        )

    return make_hooks
