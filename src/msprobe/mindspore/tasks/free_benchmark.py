"""The hooks of free_benchmark: APIs and their backward run twice, and nothing is recorded."""

from __future__ import annotations

from functools import partial
from typing import Callable

from msprobe.collect.step_context import StepContext
from msprobe.mindspore.step_hooks import TaskHooks
from msprobe.mindspore.tasks.dry_runs import DryRuns
from msprobe.mindspore.tasks.free_benchmark_calls import FreeBenchmarkApis
from msprobe.mindspore.tasks.free_benchmark_gradients import FreeBenchmarkGradients
from msprobe.mindspore.tasks.second_run import MindSporeSecondRun, warn_of_device
from msprobe.tasks.free_benchmark import FreeBenchmark


def hooks_of(task: FreeBenchmark) -> Callable[[StepContext], TaskHooks]:
    dry_runs = DryRuns()

    def make_hooks(context: StepContext) -> TaskHooks:
        warn_of_device(task.run.section.pert_mode)
        second = MindSporeSecondRun(task.run, dry_runs, context.step, context.rank or 0)
        return TaskHooks(
            gradients=partial(FreeBenchmarkGradients, second=second), apis=partial(FreeBenchmarkApis, second=second)
        )

    return make_hooks
