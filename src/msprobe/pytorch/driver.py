"""Drives the debugger from outside the script: what `msprobe run` puts in place of the calls nobody wrote.

A step begins when a module that has parameters is called and ends with the next `optimizer.step()`, or before the
next call of the model where that was inside of the backward pass.
So nothing is opened before the model runs (ranks are known by then, and a debugger that the script makes
itself is there and wins), and nothing is left open after the last step.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from typing import Any, Callable, Optional

import torch
from torch.nn.modules import module as module_hooks
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from msprobe.collect import notices
from msprobe.collect.levels import LEVELS
from msprobe.collect.lifecycle import UsageError
from msprobe.config import Settings
from msprobe.pytorch.debugger import PrecisionDebugger
from msprobe.pytorch.kernels.kernel_replay import dumped_gradients
from msprobe.pytorch.seed import seed_all
from msprobe.tasks import refuse_other_tasks

_graph_task = torch._C._current_graph_task_id


class StepDriver:
    """Put in once, when torch has been imported; takes itself out after the last wanted step."""

    def __init__(self, settings: Settings) -> None:
        refuse_other_tasks(settings)
        if LEVELS[settings.level].kernels:
            dumped_gradients(settings)
        self._settings = settings
        self._needs_model = LEVELS[settings.level].needs_model
        self._debugger: Optional[PrecisionDebugger] = None
        self._aside = False
        self._without_modules = False
        self._optimizer: Any = None  # the outermost one whose step() is running
        self._late = False  # the step ends when the model is called again: the backward pass was not over
        self._model: Any = None
        self._hooks: list[Any] = []
        self._put_back: Optional[Callable[[], None]] = None  # while waiting for the model
        self._over_ours: Any = None  # what the script put over our `__call__`, which then stays and passes on
        self._looking_on: Any = None
        self._pid = os.getpid()

    def install(self) -> None:
        settings = self._settings
        if settings.seed is not None or settings.is_deterministic is not None:
            seed_all(1234 if settings.seed is None else settings.seed, bool(settings.is_deterministic))
        if settings.enable_dataloader:
            notices.warn_once("enable_dataloader does nothing under `msprobe run`: optimizer steps are the steps.")
        self._hooks = [
            register_optimizer_step_pre_hook(self._guarded(self._optimizer_begins)),
            register_optimizer_step_post_hook(self._guarded(self._optimizer_ended)),
        ]
        self._wait_for_model()

    def tell_if_nothing_ran(self) -> None:
        """After the script: the one case that the debugger cannot tell, because there is none."""
        if self._debugger is None and not self._aside:
            notices.warn(
                "nothing was collected: the script called no torch.nn.Module that has parameters "
                "(inside compiled functions calls are not seen)."
            )

    # The model is called: a step begins.

    def _wait_for_model(self) -> None:
        """A hook would run inside the call, too late for the hooks that start() puts on the called module itself."""
        original = torch.nn.Module.__call__
        model_called = self._guarded(self._model_called)

        @functools.wraps(original)
        def called(module: Any, *args: Any, **kwargs: Any) -> Any:
            model_called(module)
            return original(module, *args, **kwargs)

        def put_back() -> None:
            if torch.nn.Module.__call__ is called:
                torch.nn.Module.__call__ = original
            else:
                self._over_ours = torch.nn.Module.__call__
            self._put_back = None

        self._put_back = put_back
        if torch.nn.Module.__call__ is not self._over_ours:
            torch.nn.Module.__call__ = called

    def _model_called(self, module: Any) -> None:
        if self._put_back is None or next(module.parameters(), None) is None or self._taken_over():
            return
        self._put_back()
        if self._late:
            self._late = False
            if not self._end_step():
                return
        if self._debugger is None:
            self._debugger = PrecisionDebugger._of(self._settings)
        if not self._needs_model or self._model is not None:
            self._debugger.start()
            return
        self._model = module
        notices.inform(f"collecting the modules of {type(module).__name__} ({_size(module)}), called first.")
        self._debugger.start(module)
        known = {id(one) for one in module.modules()}
        self._looking_on = module_hooks.register_module_forward_pre_hook(
            self._guarded(lambda other, args: self._tell_other_model(other, known))
        )

    def _tell_other_model(self, module: Any, known: set[int]) -> None:
        if id(module) not in known and next(module.parameters(), None) is not None:
            notices.warn_once(
                f"{type(module).__name__} is called too and is not part of {type(self._model).__name__}: its modules "
                "are not collected. To collect both, call PrecisionDebugger.start(model=[…]) in the script."
            )
            self._looking_on.remove()

    # The optimizer steps: a step ends.

    def _optimizer_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._optimizer is None or not _inside_another_step():  # a step that raised has no end
            self._optimizer = optimizer

    def _optimizer_ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if optimizer is not self._optimizer:
            return  # an optimizer that another one wraps
        self._optimizer = None
        if self._taken_over():
            return
        if self._debugger is None and not self._needs_model:
            self._without_modules = True
            if self._put_back is not None:
                self._put_back()
            self._debugger = PrecisionDebugger._of(self._settings)
            notices.warn(
                "no torch.nn.Module was called before the first optimizer step, or only inside a compiled function: "
                "step 0 has no records; from here on everything between two optimizer steps is collected."
            )
        elif self._debugger is None or self._put_back is not None:
            return  # a second optimizer: the model was not called since the first one
        elif _graph_task() >= 0 and not self._without_modules:  # parameters are stepped as their gradients come
            self._late = True
            self._wait_for_model()
            return
        if not self._end_step():
            return
        if self._without_modules:
            self._debugger.start()
        else:
            self._wait_for_model()

    def _end_step(self) -> bool:
        """Whether another step may be wanted."""
        assert self._debugger is not None
        self._debugger.step()
        if self._looking_on is not None:
            self._looking_on.remove()
            self._looking_on = None
        if not self._debugger._lifecycle.wants_more:
            self._remove()
            return False
        return True

    # Stepping aside.

    def _taken_over(self) -> bool:
        """Whether this call is not ours to handle: a forked worker's, or the script has a debugger of its own."""
        if os.getpid() != self._pid:
            return True
        if PrecisionDebugger._current is self._debugger:
            return False
        self._aside = True
        self._remove()
        notices.inform(
            "the script makes a PrecisionDebugger of its own: that one collects, and the configuration of "
            "`msprobe run` is not used."
        )
        return True

    def _guarded(self, act: Callable[..., None]) -> Callable[..., None]:
        """Nothing of ours reaches the script: after a fault it runs on, without us, and the fault is told."""

        def hook(*call: Any) -> None:
            if torch.compiler.is_compiling():
                return  # the compiler traces the hooks of what it compiles: there must be nothing to see
            try:
                act(*call)
            except UsageError as error:
                self._remove()
                notices.warn(f"`msprobe run` stopped collecting, the script goes on: {error}")
            except Exception:
                self._remove()
                notices.warn(f"`msprobe run` stopped collecting, the script goes on:\n{traceback.format_exc()}")

        return hook

    def _remove(self) -> None:
        if self._put_back is not None:
            self._put_back()
        for handle in self._hooks:
            handle.remove()
        self._hooks = []
        if self._looking_on is not None:
            self._looking_on.remove()
            self._looking_on = None


def _inside_another_step() -> bool:
    """Whether the optimizer step whose hook this is, runs inside another one in this thread."""
    step = sys._getframe(3)
    frame = step.f_back
    while frame is not None and frame.f_code is not step.f_code:
        frame = frame.f_back
    return frame is not None


def _size(module: Any) -> str:
    parameters = list(module.parameters())
    known = [parameter.numel() for parameter in parameters if not is_lazy(parameter)]
    text = f"{sum(known):,} parameters"
    return text if len(known) == len(parameters) else f"{text}, and {len(parameters) - len(known)} without a shape yet"
