"""`PrecisionDebugger` for PyTorch: the interface of the seeds over the common lifecycle.

One debugger a process. Its methods work on the instance and, as older scripts use them, on the class.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch

from msprobe.collect import notices
from msprobe.collect.lifecycle import Lifecycle, UsageError
from msprobe.collect.selection import Selection
from msprobe.config import Settings, load
from msprobe.config.settings import OverflowSettings
from msprobe.dump.writer import RankWriter
from msprobe.tasks.overflow import OverflowRun

from . import header
from .api_table import ApiTable, load_table
from .custom import CustomApis
from .dataloader import DataLoaderDriver
from .overflow_probe import OverflowProbe
from .probe import TorchProbe
from .seed import seed_all
from .spelling import Spelling

_TASKS = ("statistics", "tensor", "structure", "overflow_check")


class TorchFrontend:
    name = "pytorch"
    model_kind = "a torch.nn.Module"

    def __init__(self) -> None:
        self.custom = CustomApis()
        self._spelling = Spelling()
        self._table: Optional[ApiTable] = None
        self._overflows: Optional[OverflowRun] = None

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
        return TorchProbe(settings, writer, selection, table, self._spelling, self.custom)

    def facts(self) -> dict[str, Any]:
        return header.torch_facts()

    def parameter_bytes(self, models: Sequence[Any]) -> int:
        return sum(p.numel() * p.element_size() for model in models for p in model.parameters())

    def ending(self) -> list[str]:
        return self._overflows.summary() if self._overflows is not None else []


class _OnClassOrInstance:
    """A method that, called on the class, acts on the one debugger of the process."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, instance: Any, owner: type[PrecisionDebugger]) -> Callable[..., Any]:
        target = instance if instance is not None else owner._current
        if target is None:
            raise UsageError("There is no debugger yet: call PrecisionDebugger(config_path=…) first.")
        return self._method.__get__(target, owner)


class PrecisionDebugger:
    """Collects what modules and APIs receive and return. Arguments win over the configuration file."""

    _current: Optional[PrecisionDebugger] = None
    _lifecycle: Lifecycle
    _frontend: TorchFrontend

    def __new__(
        cls,
        config_path: Optional[str] = None,
        task: Optional[str] = None,
        dump_path: Optional[str] = None,
        level: Optional[str] = None,
        step: Any = None,
    ) -> PrecisionDebugger:
        settings = load("pytorch", config_path, task=task, dump_path=dump_path, level=level, step=step)
        current = cls._current
        if current is not None:
            if current._lifecycle.settings == settings and not current._lifecycle.closed:
                notices.warn_once("PrecisionDebugger was made again with the same settings: the first one goes on.")
                return current
            current._lifecycle.close()
        refuse_what_is_not_here(settings)
        debugger = cls._of(settings)
        if settings.seed is not None or settings.is_deterministic is not None:
            seed_all(1234 if settings.seed is None else settings.seed, bool(settings.is_deterministic))
        if settings.enable_dataloader:
            DataLoaderDriver(debugger._lifecycle).install()
        return debugger

    @classmethod
    def _of(cls, settings: Settings) -> PrecisionDebugger:
        """The one debugger of this process from now on; seeding and driving it is the caller's."""
        debugger = super().__new__(cls)
        debugger._frontend = TorchFrontend()
        debugger._lifecycle = Lifecycle(settings, debugger._frontend)
        cls._current = debugger
        return debugger

    @_OnClassOrInstance
    def start(self, model: Any = None, token_range: Any = None) -> None:
        """Collect from here on. L0 and mix need `model`: a Module, or a list of them; it is remembered.

        token_range [first, last], both included, collects only these forwards of the model, counted from 0 in a step.
        """
        self._lifecycle.start(model, token_range)

    @_OnClassOrInstance
    def stop(self) -> None:
        """Stop collecting. Gradients of what ran since start() are still recorded, until step()."""
        self._lifecycle.stop()

    @_OnClassOrInstance
    def step(self) -> None:
        """The step is over: its files are completed and the next one counts."""
        self._lifecycle.step()

    @_OnClassOrInstance
    def forward_backward_dump_end(self) -> None:
        """Deprecated: the same as stop()."""
        notices.warn_once("forward_backward_dump_end() is deprecated: use stop().")
        self._lifecycle.stop()

    @_OnClassOrInstance
    def save(self, variable: Any, name: str, save_backward: bool = True) -> None:
        """At level debug: keep this value, and the gradients of its tensors when they come."""
        self._lifecycle.save(variable, name, save_backward)

    @_OnClassOrInstance
    def set_init_step(self, step: int) -> None:
        """Count steps from here instead of 0; before the training loop."""
        self._lifecycle.set_init_step(step)

    @_OnClassOrInstance
    def register_custom_api(self, module: Any, api_name: str, api_prefix: Optional[str] = None) -> None:
        """Collect `module.api_name` as an API, called `{api_prefix or the module's name}.{api_name}`."""
        self._frontend.custom.register(module, api_name, api_prefix)

    @_OnClassOrInstance
    def restore_custom_api(self, module: Any, api_name: str) -> None:
        """Undo register_custom_api."""
        self._frontend.custom.restore(module, api_name)


def refuse_what_is_not_here(settings: Settings) -> None:
    if settings.task not in _TASKS:
        raise UsageError(
            f'task "{settings.task}" is not in this version of msprobe for PyTorch; it has: {", ".join(_TASKS)}.'
        )
    if settings.level == "L2":
        raise UsageError('level "L2" is not in this version of msprobe for PyTorch; it has: L0, L1, mix, debug.')
