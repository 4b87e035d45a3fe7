"""`PrecisionDebugger` for MindSpore: what the framework adds to the common lifecycle."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Callable, Optional

from mindspore import nn

from msprobe.collect import notices
from msprobe.collect.custom import CustomApis
from msprobe.collect.levels import LEVELS
from msprobe.collect.probe import StepHooks
from msprobe.collect.run.debugger import Debugger, OnClassOrInstance, RunControl
from msprobe.collect.run.lifecycle import Lifecycle, UsageError
from msprobe.collect.step_context import StepContext
from msprobe.collect.task import Task, find_hooks
from msprobe.config import Settings, load
from msprobe.frameworks.mindspore.api_table import Api, load_table
from msprobe.graphdump.dumping.running import is_scheduler
from msprobe.mindspore import header
from msprobe.mindspore.apis.api_patches import ApiPatches
from msprobe.mindspore.cells.cell_calls import Models, is_compiled, named_below
from msprobe.mindspore.graph.acl_kernels import AclKernels, is_sunk_here, refuse_for_acl
from msprobe.mindspore.graph.graph_hooks import GraphHooks, recording_hooks
from msprobe.mindspore.graph.graph_hooks import refuse as refuse_cells_in_graph
from msprobe.mindspore.graph.graph_kernels import GraphKernels
from msprobe.mindspore.graph.graph_kernels import refuse as refuse_kernels_in_graph
from msprobe.mindspore.graph.tapped_lifecycle import TappedLifecycle
from msprobe.mindspore.header import in_graph_mode
from msprobe.mindspore.kernels.kernel_calls import HAS_DISPATCH
from msprobe.mindspore.kernels.kernel_hooks import kernel_hooks
from msprobe.mindspore.kernels.region_kernels import RegionLifecycle
from msprobe.mindspore.scheduler import SchedulerLifecycle
from msprobe.mindspore.step_hooks import ApiSources, MindSporeHooks, TaskHooks
from msprobe.mindspore.tensors.late_errors import raise_kept
from msprobe.tasks import make_task, refuse_other_tasks

_PYNATIVE = "pynative"
_CUSTOM_APIS = CustomApis(lambda prefix, name: Api(f"{prefix}.{name}", name))


class MindSporeFrontend:
    name = "mindspore"
    model_kind = "a mindspore.nn.Cell"
    numbers_values = False

    def __init__(self, task: Task) -> None:
        self._task = task
        self._level = LEVELS[task.settings.level]
        self._make_hooks: Callable[[StepContext], TaskHooks] = (
            kernel_hooks if self._level.kernels else find_hooks("msprobe.mindspore.tasks", task, recording_hooks)
        )
        self._patches: Optional[ApiPatches] = None

    def rank(self) -> Optional[int]:
        return header.rank()

    def filter_rank(self) -> int:
        return header.local_rank()

    def listed_models(self, model: Any) -> Optional[list[Any]]:
        models: list[Any] = Models(model) if isinstance(model, (list, tuple)) else [model]
        return models if models and all(isinstance(one, nn.Cell) for one in models) else None

    def mode_directory(self, models: Sequence[Any]) -> Optional[str]:
        """`pynative` if some Cell is compiled: the calls inside it are recorded in `graph`, next to it."""
        if not self._level.modules or in_graph_mode():
            return None
        if not any(is_compiled(each.cell) for each in named_below(models)):
            return None
        if not self._task.records_every_call:
            notices.warn_once(
                "the model has Cells whose construct is under mindspore.jit: this task checks each of them as "
                "one call, in pynative/. It does not check what runs inside."
            )
        return _PYNATIVE

    def hooks(self, context: StepContext) -> StepHooks:
        if in_graph_mode() and self._level.modules and not self._level.apis and self._task.records_every_call:
            return GraphHooks(context)
        if in_graph_mode():
            notices.warn_once(
                "MindSpore is in graph mode now: Cells and APIs run compiled and are not seen. "
                "Call mindspore.set_context(mode=mindspore.PYNATIVE_MODE) before the model runs."
            )
        if self._level.apis and self._patches is None:
            self._patches = ApiPatches(load_table())
        return MindSporeHooks(context, self._make_hooks(context), ApiSources(self._patches, _CUSTOM_APIS))

    def explain_unmatched(self, entry: str) -> Optional[str]:
        return None

    def facts(self) -> dict[str, Any]:
        return header.mindspore_facts()

    def parameter_bytes(self, models: Sequence[Any]) -> int:
        return sum(int(parameter.nbytes) for model in models for parameter in model.get_parameters())


class PrecisionDebugger(Debugger):
    framework = "mindspore"
    custom_apis = _CUSTOM_APIS

    @classmethod
    def _load(cls, config_path: Optional[str], **arguments: Any) -> Settings:
        return load(cls.framework, config_path, graph_mode=in_graph_mode(), **arguments)

    @classmethod
    def _refuse(cls, settings: Settings) -> None:
        kernels = LEVELS[settings.level].kernels
        if in_graph_mode() and kernels:
            refuse_kernels_in_graph(settings)
            if is_sunk_here():
                refuse_for_acl(settings, has_acl=find_spec("acl") is not None)
            return
        if in_graph_mode():
            refuse_cells_in_graph(settings)
            return
        refuse_other_tasks(settings)
        if kernels and not HAS_DISPATCH:
            raise UsageError('level "L2" needs MindSpore 2.8 or later; this version has L0, L1, mix and debug.')

    @classmethod
    def _make_lifecycle(cls, settings: Settings) -> RunControl:
        level = LEVELS[settings.level]
        if is_scheduler():
            return SchedulerLifecycle(settings)
        task = make_task(settings)
        if in_graph_mode() and level.kernels:
            return AclKernels(task) if is_sunk_here() else GraphKernels(task)
        frontend = MindSporeFrontend(task)
        if level.kernels:
            return RegionLifecycle(task, frontend)
        if level.modules and task.records_every_call:
            return TappedLifecycle(task, frontend)
        return Lifecycle(task, frontend)

    @OnClassOrInstance
    def stop(self) -> None:
        """Stops collecting. Gradients of calls since start() are still recorded, until step()."""
        self._lifecycle.stop()
        raise_kept()

    @OnClassOrInstance
    def step(self) -> None:
        """Ends the step: completes its files; the next step begins."""
        self._lifecycle.step()
        raise_kept()

    @OnClassOrInstance
    def forward_backward_dump_end(self) -> None:
        """Deprecated: like stop(), except that L1 records compiled regions until the step ends."""
        notices.warn_once("forward_backward_dump_end() is deprecated: use stop().")
        lifecycle = self._lifecycle
        lifecycle.stop()
        probe = lifecycle.probe
        if lifecycle.settings.level == "L1" and probe is not None and isinstance(probe.hooks, MindSporeHooks):
            probe.hooks.keep_jit()
        raise_kept()
