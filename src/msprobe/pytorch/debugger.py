"""`PrecisionDebugger` for PyTorch: what the framework adds to the common lifecycle."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch
from torch.nn.parameter import is_lazy

from msprobe.collect.levels import LEVELS
from msprobe.collect.records.stacks import hide_files
from msprobe.collect.run.debugger import Debugger
from msprobe.collect.run.lifecycle import Lifecycle
from msprobe.collect.step_context import StepContext
from msprobe.collect.task import Task, find_hooks
from msprobe.config import Settings
from msprobe.frameworks.pytorch.api_table import ApiTable, load_table
from msprobe.pytorch import header
from msprobe.pytorch.apis.custom import CUSTOM_APIS
from msprobe.pytorch.apis.operator_names import OperatorNames
from msprobe.pytorch.dataloader import DataLoaderDriver
from msprobe.pytorch.kernels.acl_config import check_acl_config
from msprobe.pytorch.kernels.kernel_hooks import kernel_hooks
from msprobe.pytorch.parallel.topology import LivingObjects
from msprobe.pytorch.seed import seed_all
from msprobe.pytorch.step_hooks import ApiSources, TaskHooks, TorchHooks
from msprobe.tasks import make_task, refuse_other_tasks


class TorchFrontend:
    name = "pytorch"
    model_kind = "a torch.nn.Module"
    numbers_values = True

    def __init__(self, task: Task) -> None:
        hide_files("torch/overrides.py", "torch/_ops.py")
        self._level = LEVELS[task.settings.level]
        self._make_hooks: Callable[[StepContext], TaskHooks] = (
            kernel_hooks if self._level.kernels else find_hooks("msprobe.pytorch.tasks", task, lambda _: TaskHooks())
        )
        section = task.settings.section
        self._named = (*getattr(section, "scope", ()), *getattr(section, "list", ()))
        self._names = OperatorNames()
        self._table: Optional[ApiTable] = None
        self._living = LivingObjects()

    def rank(self) -> Optional[int]:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return int(torch.distributed.get_rank())
        launched = os.environ.get("RANK", "")
        return int(launched) if launched.isdigit() and "WORLD_SIZE" in os.environ else None

    def filter_rank(self) -> int:
        return self.rank() or 0

    def listed_models(self, model: Any) -> Optional[list[Any]]:
        models = list(model) if isinstance(model, (list, tuple)) else [model]
        return models if models and all(isinstance(one, torch.nn.Module) for one in models) else None

    def mode_directory(self, models: Sequence[Any]) -> Optional[str]:
        return None

    def hooks(self, context: StepContext) -> TorchHooks:
        if self._level.apis and self._table is None:
            self._table = load_table(named=self._named)
        return TorchHooks(
            context, self._make_hooks(context), ApiSources(self._table, self._names, CUSTOM_APIS), self._living
        )

    def explain_unmatched(self, entry: str) -> Optional[str]:
        return None if self._table is None else self._table.explain(entry)

    def facts(self) -> dict[str, Any]:
        return header.torch_facts()

    def parameter_bytes(self, models: Sequence[Any]) -> int:
        there = (p for model in models for p in model.parameters() if not is_lazy(p))
        return sum(p.numel() * p.element_size() for p in there)


class PrecisionDebugger(Debugger):
    framework = "pytorch"
    custom_apis = CUSTOM_APIS
    _lifecycle: Lifecycle

    @classmethod
    def _refuse(cls, settings: Settings) -> None:
        refuse_other_tasks(settings)
        if settings.acl_config is not None and LEVELS[settings.level].kernels:
            check_acl_config(settings.acl_config)

    @classmethod
    def _make_lifecycle(cls, settings: Settings) -> Lifecycle:
        task = make_task(settings)
        return Lifecycle(task, TorchFrontend(task))

    def _apply_settings(self, settings: Settings) -> None:
        if settings.seed is not None or settings.is_deterministic:
            seed_all(1234 if settings.seed is None else settings.seed, bool(settings.is_deterministic))
        if settings.enable_dataloader:
            DataLoaderDriver(self._lifecycle).install()
