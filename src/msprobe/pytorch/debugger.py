"""`PrecisionDebugger` for PyTorch: what the framework brings to the common lifecycle."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch.nn.parameter import is_lazy

from msprobe.collect.debugger import Custom, Debugger
from msprobe.collect.lifecycle import Frontend, UsageError
from msprobe.collect.online import OnlineSender
from msprobe.collect.selection import Selection
from msprobe.collect.stacks import hide_files
from msprobe.config import Settings
from msprobe.config.settings import FreeBenchmarkSettings, OverflowSettings, TensorSettings
from msprobe.dump import layout
from msprobe.dump.writer import RankWriter
from msprobe.frameworks.pytorch.api_table import ApiTable, load_table
from msprobe.pytorch import header
from msprobe.pytorch.apis.custom import CUSTOM_APIS
from msprobe.pytorch.apis.operator_names import OperatorNames
from msprobe.pytorch.dataloader import DataLoaderDriver
from msprobe.pytorch.kernels.kernel_probe import KernelProbe
from msprobe.pytorch.probe import TorchProbe
from msprobe.pytorch.seed import seed_all
from msprobe.pytorch.tasks.free_benchmark_probe import FreeBenchmarkProbe
from msprobe.pytorch.tasks.overflow_probe import OverflowProbe
from msprobe.tasks.free_benchmark.run import FreeBenchmarkRun
from msprobe.tasks.overflow_check.run import OverflowRun

_TASKS = ("statistics", "tensor", "structure", "overflow_check", "free_benchmark")


class TorchFrontend:
    name = "pytorch"
    model_kind = "a torch.nn.Module"

    def __init__(self) -> None:
        hide_files("torch/overrides.py", "torch/_ops.py")
        self.custom = CUSTOM_APIS
        self._spelling = OperatorNames()
        self._table: Optional[ApiTable] = None
        self._overflows: Optional[OverflowRun] = None
        self._benchmark: Optional[FreeBenchmarkRun] = None
        self._sender: Optional[OnlineSender] = None

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

    def mode_directory(self, settings: Settings, models: Sequence[Any]) -> Optional[str]:
        return None

    def probe(self, settings: Settings, writer: RankWriter, selection: Selection) -> TorchProbe:
        wants_calls = settings.level != "debug"
        if wants_calls and self._table is None:
            self._table = load_table()
        table = self._table if wants_calls else None
        if isinstance(settings.section, OverflowSettings):
            self._overflows = self._overflows or OverflowRun(settings.section.overflow_nums)
            return OverflowProbe(settings, writer, selection, table, self._spelling, self.custom, self._overflows)
        if isinstance(settings.section, FreeBenchmarkSettings):
            self._benchmark = self._benchmark or FreeBenchmarkRun(settings.section, settings.dump_path)
            step = layout.parse_step(writer.directory.parent.name) or 0
            return FreeBenchmarkProbe(
                settings, writer, selection, table, self._spelling, self.custom, self._benchmark, step, self.rank() or 0
            )
        if isinstance(settings.section, TensorSettings) and settings.section.online_run_ut:
            self._sender = self._sender or OnlineSender(settings.section, self.rank())
            self._sender.opened(writer.directory)
        if settings.level == "L2" and table is not None:
            return KernelProbe(settings, writer, selection, table, self._spelling, self.custom)
        return TorchProbe(settings, writer, selection, table, self._spelling, self.custom)

    def facts(self) -> dict[str, Any]:
        return header.torch_facts()

    def parameter_bytes(self, models: Sequence[Any]) -> int:
        there = (p for model in models for p in model.parameters() if not is_lazy(p))
        return sum(p.numel() * p.element_size() for p in there)

    def ending(self) -> list[str]:
        if self._sender is not None:
            self._sender.end()
        return [line for run in (self._overflows, self._benchmark) if run is not None for line in run.summary()]


class PrecisionDebugger(Debugger):
    framework = "pytorch"

    @classmethod
    def _refuse(cls, settings: Settings) -> None:
        refuse_what_is_not_here(settings)

    @classmethod
    def _frontend(cls) -> tuple[Frontend, Custom]:
        frontend = TorchFrontend()
        return frontend, frontend.custom

    def _made(self, settings: Settings) -> None:
        if settings.seed is not None or settings.is_deterministic is not None:
            seed_all(1234 if settings.seed is None else settings.seed, bool(settings.is_deterministic))
        if settings.enable_dataloader:
            DataLoaderDriver(self._lifecycle).install()


def refuse_what_is_not_here(settings: Settings) -> None:
    if settings.task == "run_ut":
        raise UsageError('task "run_ut" checks a dump and collects nothing: use msprobe run_ut -api_info DUMP.')
    if settings.task not in _TASKS:
        raise UsageError(
            f'task "{settings.task}" is not in this version of msprobe for PyTorch; it has: {", ".join(_TASKS)}.'
        )
