"""Keeps the API mode on while a step is collected, and off where it would change results.

A new thread starts without the mode: the global hooks of `OpaqueRegions` turn it on when a module is called.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Any, Optional

import torch

from msprobe.collect import notices
from msprobe.collect.records.recorder import Recorder
from msprobe.pytorch.apis.api_calls import Apis
from msprobe.pytorch.apis.mode_stack import is_on, is_set_aside, modes, put_on, take_off
from msprobe.pytorch.apis.opaque_regions import CLOSED, EAGER, OpaqueRegions, log_compiled
from msprobe.pytorch.apis.wrapped_methods import wrapped_methods
from msprobe.pytorch.compiled.switch import CompilesUnseen, name_region
from msprobe.pytorch.modules.model_tree import is_wrapper
from msprobe.pytorch.modules.module_calls import Modules


class ApiModeScope(OpaqueRegions):
    """Levels with a mode: L1, mix, L2."""

    def __init__(self, mode: Apis, modules: Optional[Modules], models: Sequence[Any], compile: str) -> None:
        super().__init__(mode, modules, mode.recorder, models, compile)
        self._apis = mode
        self._swap_tensors: Any = None

    def install(self) -> None:
        for mode in modes():  # a step ended inside a backward pass, and torch has restored its mode since
            if isinstance(mode, Apis) and mode.recorder.closed:
                take_off(mode)
        self._apis.wrapped = wrapped_methods()
        self._apis.resting, Apis.current = False, self._apis
        if not is_on(self._apis) and not is_set_aside(self._apis):
            put_on(self._apis)
        self._install_hooks()
        self._install_switch()
        self._swap_tensors, torch.utils.swap_tensors = torch.utils.swap_tensors, self._around_swap

    def remove(self) -> None:
        super().remove()
        if torch.utils.swap_tensors == self._around_swap:
            torch.utils.swap_tensors = self._swap_tensors
        # Torch may put it back: after the call in which a signal handler runs, and after a backward pass.
        self._apis.resting, Apis.current = True, None
        if is_on(self._apis):
            take_off(self._apis)
        elif not is_set_aside(self._apis):
            notices.warn_once(
                "The script removed msprobe's mode from torch's stack of modes between start() and stop(): "
                "later API calls were recorded only inside modules."
            )

    def _around_swap(self, *tensors: Any) -> None:
        """Replaces torch.utils.swap_tensors, which refuses a tensor with weak references, such as ours."""
        try:
            self._apis.drop_tensors()
        except Exception:
            self._recorder.fault("swap_tensors", traceback.format_exc())
        self._swap_tensors(*tensors)


class FusedPaths(OpaqueRegions):
    """For level L0, which has no mode. Installs something only if the models have modules that may run without
    modes."""

    def __init__(self, modules: Modules, models: Sequence[Any], recorder: Recorder, compile: str) -> None:
        super().__init__(None, modules, recorder, models, compile)
        self._hooked = modules.hooked
        self._wrappers: list[Any] = []  # of torch.compile(module): they keep their own hooks

    def install(self) -> None:
        apart = [module for module in (*self._models, *self._hooked) if self._may_run_without_modes(module)]
        if self._compile == CLOSED and apart and self._are_wrappers(apart):
            self._wrappers = apart
            self._install_switch(self._compile_unseen)
        elif apart:
            self._install_hooks()
            self._install_switch()
        elif self._compile == EAGER:
            self._install_switch()

    def remove(self) -> None:
        super().remove()
        for module in self._wrappers:
            title = None if self._modules is None else self._modules.name_of(id(module))
            if title is not None and self._recorder.numbers.has_taken(title):
                log_compiled(name_region(module._orig_mod), module, False, EAGER)

    def _are_wrappers(self, modules: Sequence[Any]) -> bool:
        """Whether all are wrappers of torch.compile(module), and msprobe has no hook on a module inside them. Compiled
        code then sees no hook of ours, and global hooks would only cost time."""
        inside = {id(inner) for module in modules for inner in module.modules() if inner is not module}
        return all(map(is_wrapper, modules)) and not any(id(module) in inside for module in self._hooked)

    def _compile_unseen(self, callback: Any) -> Any:
        """Replaces dynamo's switch if there are only wrappers: what is compiled now must not see our module hooks."""
        set_eval_frame = self._set_eval_frame or self._dynamo._maybe_set_eval_frame
        if callable(callback) and not isinstance(callback, CompilesUnseen) and "fn" in sys._getframe(1).f_locals:
            callback = self._unseen(callback)
        return set_eval_frame(callback)
