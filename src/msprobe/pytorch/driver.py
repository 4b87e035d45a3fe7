"""Controls the debugger for `msprobe run`, so that the script needs no calls of its own.

A step begins when a module with parameters is called. It ends with the next `optimizer.step()`, or, if that runs inside
the backward pass, before the next call of the model. So nothing starts before the model runs: by then ranks are known,
and a debugger that the script created exists and takes precedence. Nothing stays open after the last step.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import traceback
from collections.abc import Iterator
from multiprocessing import process
from pathlib import Path
from typing import Any, Callable, Optional

import torch
from torch.nn.modules import module as module_hooks
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from msprobe.collect import notices
from msprobe.collect.levels import LEVELS
from msprobe.collect.run.lifecycle import UsageError
from msprobe.config import Settings
from msprobe.dump.plural import count
from msprobe.pytorch.debugger import PrecisionDebugger
from msprobe.pytorch.kernels.kernel_replay import dumped_gradients
from msprobe.pytorch.seed import seed_all
from msprobe.tasks import refuse_other_tasks

_graph_task = torch._C._current_graph_task_id


class StepDriver:
    """Installed once, after torch is imported; removes itself after the last wanted step."""

    def __init__(self, settings: Settings) -> None:
        refuse_other_tasks(settings)
        if LEVELS[settings.level].kernels:
            dumped_gradients(settings)
        self._settings = settings
        self._needs_model = LEVELS[settings.level].needs_model
        self._debugger: Optional[PrecisionDebugger] = None
        self._script_collects = False
        self._without_modules = False
        self._optimizer: Any = None  # the outermost one whose step() is running
        self._late = False  # the step ends at the next call of the model: the backward pass was not over
        self._model: Any = None
        self._hooks: list[Any] = []
        self._put_back: Optional[Callable[[], None]] = None  # while waiting for the model
        self._script_patch: Any = None  # a patch of the script over our `__call__`: ours stays and calls the original
        self._other_model_hook: Any = None
        self._pid = os.getpid()

    def install(self) -> None:
        settings = self._settings
        if settings.seed is not None or settings.is_deterministic:
            seed_all(1234 if settings.seed is None else settings.seed, bool(settings.is_deterministic))
        if settings.enable_dataloader:
            notices.warn_once("enable_dataloader has no effect in `msprobe run`: a step ends at optimizer.step().")
        self._hooks = [
            register_optimizer_step_pre_hook(self._guard(self._optimizer_begins)),
            register_optimizer_step_post_hook(self._guard(self._optimizer_ended)),
        ]
        self._wait_for_model()

    def _make_debugger(self, settings: Settings) -> PrecisionDebugger:
        return PrecisionDebugger._create(settings)

    def say_result(self) -> None:
        """Called after the script: what was written, and the next command."""
        self.warn_if_nothing_ran()
        if self._debugger is not None:
            self._say_next(self._debugger)

    def warn_if_nothing_ran(self) -> None:
        """If no debugger was ever created, nothing else can give this warning."""
        if self._debugger is None and not self._script_collects:
            notices.warn(_explain_nothing())

    def _say_next(self, debugger: PrecisionDebugger) -> None:
        summary = debugger._lifecycle.summary
        if PrecisionDebugger._current is not debugger or not summary.steps or os.environ.get("RANK", "0") != "0":
            return
        path = summary.settings.dump_path
        shown = os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
        notices.inform(
            f"{count(len(summary.steps), 'step')} written to {path}. Next: msprobe show {shown}. With the dump of the "
            "other run: msprobe compare TARGET GOLDEN, the good run last."
        )

    def finish(self) -> None:
        """Ends the run before the process ends: completes an open step and removes everything."""
        self._remove()
        if self._debugger is not None:
            self._debugger._lifecycle.close()

    # The model is called: a step begins.

    def _wait_for_model(self) -> None:
        """Patches `Module.__call__`. A hook would run inside the call, too late for hooks that start() adds to it."""
        original = torch.nn.Module.__call__
        model_called = self._guard(self._model_called)

        @functools.wraps(original)
        def called(module: Any, *args: Any, **kwargs: Any) -> Any:
            model_called(module)
            return original(module, *args, **kwargs)

        def put_back() -> None:
            if torch.nn.Module.__call__ is called:
                torch.nn.Module.__call__ = original
            else:
                self._script_patch = torch.nn.Module.__call__
            self._put_back = None

        self._put_back = put_back
        if torch.nn.Module.__call__ is not self._script_patch:
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
            self._debugger = self._make_debugger(self._settings)
        if not self._needs_model or self._model is not None:
            self._debugger.start()
            return
        self._model = module
        notices.inform(f"collecting the modules of {type(module).__name__} ({_size(module)}), the first module called.")
        self._debugger.start(module)
        known = {id(one) for one in module.modules()}
        self._other_model_hook = module_hooks.register_module_forward_pre_hook(
            self._guard(lambda other, args: self._warn_of_other_model(other, known))
        )

    def _warn_of_other_model(self, module: Any, known: set[int]) -> None:
        if id(module) not in known and next(module.parameters(), None) is not None:
            notices.warn_once(
                f"the script also calls {type(module).__name__}, which is not part of {type(self._model).__name__}: "
                "its modules are not collected. To collect both, call PrecisionDebugger.start(model=[…]) in the script."
            )
            self._other_model_hook.remove()

    # The optimizer steps: a step ends.

    def _optimizer_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._optimizer is None or not _inside_another_step():  # a step that raised never ends
            self._optimizer = optimizer

    def _optimizer_ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if optimizer is not self._optimizer:
            return  # an optimizer inside another one
        self._optimizer = None
        if self._taken_over():
            return
        if self._debugger is None and not self._needs_model:
            self._without_modules = True
            if self._put_back is not None:
                self._put_back()
            self._debugger = self._make_debugger(self._settings)
            notices.warn(
                "no torch.nn.Module was called before the first optimizer step, or only inside a compiled function: "
                "step 0 has no records. From now on msprobe collects everything between two optimizer steps."
            )
        elif self._debugger is None or self._put_back is not None:
            return  # a second optimizer: the model was not called after the first one
        elif _graph_task() >= 0 and not self._without_modules:  # the optimizer steps inside the backward pass
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
        """Ends the step. Returns whether more steps may be wanted."""
        assert self._debugger is not None
        self._debugger.step()
        self._remove_other_model_hook()
        if not self._debugger._lifecycle.wants_more:
            self._remove()
            return False
        return True

    # Leaving the script alone.

    def _taken_over(self) -> bool:
        """Whether to ignore this call: it runs in a forked worker, or the script has its own debugger."""
        if os.getpid() != self._pid:
            return True
        if PrecisionDebugger._current is self._debugger:
            return False
        self._script_collects = True
        self._remove()
        notices.inform(
            "the script creates its own PrecisionDebugger: that one collects, and the configuration of "
            "`msprobe run` is ignored."
        )
        return True

    def _guard(self, act: Callable[..., None]) -> Callable[..., None]:
        """Keeps our errors away from the script: logs the error and stops collecting; the script continues."""

        def hook(*call: Any) -> None:
            if torch.compiler.is_compiling():
                return  # the compiler traces hooks too: they must do nothing then
            try:
                act(*call)
            except UsageError as error:
                self._remove()
                notices.warn(f"`msprobe run` stopped collecting; the script continues: {error}")
            except Exception:
                self._remove()
                notices.warn(f"`msprobe run` stopped collecting; the script continues:\n{traceback.format_exc()}")

        return hook

    def _remove(self) -> None:
        if self._put_back is not None:
            self._put_back()
        for handle in self._hooks:
            handle.remove()
        self._hooks = []
        self._remove_other_model_hook()

    def _remove_other_model_hook(self) -> None:
        if self._other_model_hook is not None:
            self._other_model_hook.remove()
            self._other_model_hook = None


@contextlib.contextmanager
def collecting(settings: Settings) -> Iterator[None]:
    """Collects what runs inside, as `msprobe run` collects a script. A debugger that exists already rests meanwhile."""
    earlier = PrecisionDebugger._current
    PrecisionDebugger._current = None
    driver = StepDriver(settings)
    driver.install()
    try:
        yield
    finally:
        driver.finish()
        PrecisionDebugger._current = earlier


def _inside_another_step() -> bool:
    """Whether the optimizer step of this hook runs inside another optimizer step in this thread."""
    step = sys._getframe(3)
    frame = step.f_back
    while frame is not None and frame.f_code is not step.f_code:
        frame = frame.f_back
    return frame is not None


def _explain_nothing() -> str:
    text = "nothing was collected: the script called no torch.nn.Module with parameters "
    if _has_started_processes():
        return f"{text}in this process, and msprobe does not follow processes that it starts: use torchrun."
    return f"{text}(msprobe does not see calls inside compiled functions)."


def _has_started_processes() -> bool:
    """Whether the script has started processes with multiprocessing, which numbers them from 1."""
    return next(process._process_counter) > 1  # type: ignore[attr-defined]


def _size(module: Any) -> str:
    parameters = list(module.parameters())
    known = [parameter.numel() for parameter in parameters if not is_lazy(parameter)]
    text = f"{sum(known):,} parameters"
    return text if len(known) == len(parameters) else f"{text}, and {len(parameters) - len(known)} without a shape yet"
