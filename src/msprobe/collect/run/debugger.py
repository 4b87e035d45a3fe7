"""The part of `PrecisionDebugger` that is the same for both frameworks: one per process, called on class or instance.

A framework subclasses `Debugger`, names itself and makes the lifecycle.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, ClassVar, Optional, Protocol, TypeVar

from msprobe.collect import notices
from msprobe.collect.guard import guarded
from msprobe.collect.probe import Probe
from msprobe.collect.run.embedding import DebuggerConfig, Service, explain_method
from msprobe.collect.run.lifecycle import UsageError
from msprobe.config import Settings, load
from msprobe.dump import layout

_D = TypeVar("_D", bound="Debugger")


class Custom(Protocol):
    """Where user-registered APIs are kept."""

    def register(self, module: Any, name: str, prefix: Optional[str]) -> None: ...

    def restore(self, module: Any, name: str) -> None: ...


class RunControl(Protocol):
    """What a debugger controls: a `Lifecycle`, or an object with the same methods if no hooks are installed."""

    settings: Settings
    closed: bool

    @property
    def probe(self) -> Optional[Probe]: ...

    def start(self, model: Any = None, token_range: Any = None) -> None: ...

    def stop(self) -> None: ...

    def step(self) -> None: ...

    def save(self, variable: Any, name: str, save_backward: bool = True) -> None: ...

    def set_init_step(self, step: int) -> None: ...

    def close(self) -> None: ...

    def close_replaced(self) -> None: ...

    def use_model(self, model: Any) -> None: ...

    def use_rank(self, rank: int) -> None: ...

    def use_dump_path(self, dump_path: Path) -> None: ...

    def finish_step(self) -> None: ...

    @property
    def wants_more(self) -> bool: ...

    def give_up(self) -> None: ...


class OnClassOrInstance:
    """A method that, called on the class, acts on the one debugger of the process."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, instance: Any, owner: type[Debugger]) -> Callable[..., Any]:
        target = instance if instance is not None else owner._current
        if target is None:
            raise UsageError("There is no debugger yet: call PrecisionDebugger(config_path=…) first.")
        return guarded("msprobe", self._method.__get__(target, owner), target._lifecycle.give_up)


class Debugger:
    """Collects the inputs and outputs of modules and APIs. Arguments override the configuration file."""

    framework: ClassVar[str]
    custom_apis: ClassVar[Custom]
    _current: ClassVar[Optional[Debugger]] = None
    _lifecycle: RunControl
    _settings: Settings  # as given; the lifecycle may write to another directory

    def __new__(
        cls: type[_D],
        config_path: Optional[str] = None,
        task: Optional[str] = None,
        dump_path: Optional[str] = None,
        level: Optional[str] = None,
        step: Any = None,
        model: Any = None,
    ) -> _D:
        settings = cls._load(config_path, task=task, dump_path=dump_path, level=level, step=step)
        current = cls._current
        if current is not None:
            if isinstance(current, cls) and current._settings == settings and not current._lifecycle.closed:
                notices.warn_once(
                    "PrecisionDebugger was created again with the same settings: the first one continues."
                )
                if model is not None:
                    current._lifecycle.use_model(model)
                return current
            if not current._lifecycle.closed:
                notices.inform(_takes_over(current._lifecycle.settings.dump_path, settings.dump_path))
            current._lifecycle.close_replaced()
        cls._refuse(settings)
        if settings.rank is None and settings.task != "run_ut":  # else another rank may be the one that writes
            layout.check_writable(settings.dump_path)
        debugger = cls._create(settings)
        debugger._apply_settings(settings)
        if model is not None:
            debugger._lifecycle.use_model(model)
        return debugger

    @classmethod
    def _create(cls: type[_D], settings: Settings) -> _D:
        """Makes the debugger of this process, which replaces an earlier one. It does not seed."""
        for warning in settings.warnings:
            notices.warn_once(f"{warning}.")
        debugger = super().__new__(cls)
        debugger._settings = settings
        debugger._lifecycle = cls._make_lifecycle(settings)
        cls._current = debugger
        return debugger

    # What a framework defines.

    @classmethod
    def _load(cls, config_path: Optional[str], **arguments: Any) -> Settings:
        return load(cls.framework, config_path, **arguments)

    @classmethod
    def _refuse(cls, settings: Settings) -> None:
        """Raises UsageError for settings that this version does not support."""

    @classmethod
    def _make_lifecycle(cls, settings: Settings) -> RunControl:
        raise NotImplementedError

    def _apply_settings(self, settings: Settings) -> None:
        """Applies further settings when the debugger is created."""

    # What programs that embed a debugger read.

    @property
    def config(self) -> DebuggerConfig:
        return DebuggerConfig(self._lifecycle)

    @property
    def service(self) -> Service:
        return Service(self._lifecycle)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(explain_method(name))

    # A process has one debugger: copies of an object that holds it hold the same debugger.

    def __copy__(self: _D) -> _D:
        return self

    def __deepcopy__(self: _D, memo: Any) -> _D:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("A PrecisionDebugger cannot be pickled: it belongs to its process. Create one in each process.")

    # What the user calls.

    @OnClassOrInstance
    def start(
        self,
        model: Any = None,
        token_range: Any = None,
        rank_id: Optional[int] = None,
        scheduled_tokens: Optional[Mapping[str, int]] = None,
    ) -> None:
        """Starts collecting. L0 and mix need `model`: one model or a list; it is remembered.

        token_range [first, last], both included, collects only these forwards of the model, counted from 0 in a step.
        rank_id is the rank of this process if the framework does not know it: replicas that serve requests.
        scheduled_tokens is what vLLM-Ascend passes, the tokens of each request: msprobe records all rows of the batch.
        """
        if scheduled_tokens is not None:
            notices.warn_once(
                "scheduled_tokens has no effect: records have the rows of all requests, in the order of this mapping."
            )
        if rank_id is not None:
            self._lifecycle.use_rank(rank_id)
        self._lifecycle.start(model, token_range)

    @OnClassOrInstance
    def stop(self) -> None:
        """Stops collecting. Gradients of calls since start() are still recorded, until step()."""
        self._lifecycle.stop()

    @OnClassOrInstance
    def step(self) -> None:
        """Ends the step: completes its files; the next step begins."""
        self._lifecycle.step()

    @OnClassOrInstance
    def forward_backward_dump_end(self) -> None:
        """Deprecated: the same as stop()."""
        notices.warn_once("forward_backward_dump_end() is deprecated: use stop().")
        self._lifecycle.stop()

    @OnClassOrInstance
    def save(self, variable: Any, name: str, save_backward: bool = True) -> None:
        """At level debug: saves this value, and the gradients of its tensors when they come."""
        self._lifecycle.save(variable, name, save_backward)

    @OnClassOrInstance
    def set_init_step(self, step: int) -> None:
        """Counts steps from this number instead of 0. Call it before the training loop."""
        self._lifecycle.set_init_step(step)

    @OnClassOrInstance
    def register_custom_api(self, module: Any, api_name: str, api_prefix: Optional[str] = None) -> None:
        """Collects `module.api_name` as an API with the name `{api_prefix or the module's name}.{api_name}`."""
        self.custom_apis.register(module, api_name, api_prefix)

    @OnClassOrInstance
    def restore_custom_api(self, module: Any, api_name: str) -> None:
        """Undoes register_custom_api."""
        self.custom_apis.restore(module, api_name)


def _takes_over(before: Path, now: Path) -> str:
    if before == now:
        return f"a second PrecisionDebugger with other settings takes over from the first, in {now}."
    if not os.path.exists(before):  # noqa: PTH110 - Path.exists raises for a name that is too long
        return f"the earlier PrecisionDebugger ends here, with nothing in {before}; the new one writes to {now}."
    return f"the dump in {before} is finished; the new PrecisionDebugger writes to {now}."
