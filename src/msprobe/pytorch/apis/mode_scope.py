"""Keeps the API mode on while a step is collected, and off where it would change results.

A new thread starts without the mode: the global hooks of `OpaqueRegions` turn it on when a module is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch

from msprobe.collect import notices
from msprobe.collect.records.recorder import Recorder
from msprobe.pytorch.apis.api_calls import Apis
from msprobe.pytorch.apis.mode_stack import is_on, modes, put_on, take_off
from msprobe.pytorch.apis.opaque_regions import EAGER, OpaqueRegions
from msprobe.pytorch.apis.wrapped_methods import wrapped_methods
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
        put_on(self._apis)
        self._install_hooks()
        self._install_switch()
        self._swap_tensors, torch.utils.swap_tensors = torch.utils.swap_tensors, self._around_swap

    def remove(self) -> None:
        super().remove()
        if torch.utils.swap_tensors == self._around_swap:
            torch.utils.swap_tensors = self._swap_tensors
        if is_on(self._apis):
            take_off(self._apis)
        else:
            notices.warn_once(
                "The script removed msprobe's mode from torch's stack of modes between start() and stop(): "
                "later API calls were recorded only inside modules."
            )

    def _around_swap(self, *tensors: Any) -> None:
        """Replaces torch.utils.swap_tensors, which refuses a tensor with weak references, such as ours."""
        self._apis.drop_tensors()
        self._swap_tensors(*tensors)


class FusedPaths(OpaqueRegions):
    """For level L0, which has no mode. Installs something only if the models have modules that may run without
    modes."""

    def __init__(self, modules: Modules, models: Sequence[Any], recorder: Recorder, compile: str) -> None:
        super().__init__(None, modules, recorder, models, compile)
        self._hooked = modules.hooked

    def install(self) -> None:
        every = (*self._models, *self._hooked)
        if any(map(self._may_run_without_modes, every)):
            self._install_hooks()
            self._install_switch()
        elif self._compile == EAGER:
            self._install_switch()
