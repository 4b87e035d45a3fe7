"""Keeps the API mode on where it should be, and off where it would change the result.

New threads begin without it. It must be out of the way: MultiheadAttention and TransformerEncoderLayer
leave their fused path when they see a mode or a hook, which changes the last digits, and compiled code
breaks its graphs. Such a region runs without us and is one opaque record. The modules in question, and
what is below them, have no hooks of their own: the global ones here call those.
"""

from __future__ import annotations

import importlib
import sys
import threading
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import Any, Optional

import torch
from torch.nn.modules import module as module_hooks

from msprobe.collect import notices
from msprobe.collect.recorder import Recorder

from .api_table import Api
from .apis import Apis
from .mode_stack import is_on, modes, put_on, take_off
from .modules import Modules, is_compiled_in_place, is_traced

_FUSED = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer, torch.nn.TransformerEncoder)


class _Region(NamedTuple):
    owner: int
    """The id of the module, or of the frame that runs compiled code."""
    action: str
    """What was done with the mode and has to be undone: "entered", "left", or "" for nothing."""
    record: Any = None


class _Open(threading.local):
    """The regions that this thread is in."""

    def __init__(self) -> None:
        self.regions: list[_Region] = []

    @property
    def without_us(self) -> bool:
        return bool(self.regions) and self.regions[-1].action != "entered"

    def is_of(self, owner: Any) -> bool:
        return bool(self.regions) and self.regions[-1].owner == id(owner)


class _Regions:
    """Global module hooks and the switch of dynamo."""

    def __init__(self, modules: Optional[Modules], recorder: Recorder) -> None:
        self._modules = modules
        self._recorder = recorder
        self._open = _Open()
        self._hooks: dict[int, tuple[Any, Any]] = {}  # of the modules that have none of their own
        self._key = 0
        self._dynamo: Any = None
        self._set_eval_frame: Any = None

    def _install_hooks(self) -> None:
        """Under the key of the modules' hooks, where there are any: for that they give their kwargs."""
        self._key = PlainCopies().key if self._modules is None else self._modules.key
        module_hooks._global_forward_pre_hooks[self._key] = self._before
        module_hooks._global_forward_hooks[self._key] = self._after
        module_hooks._global_forward_hooks_always_called[self._key] = True

    def _install_switch(self) -> None:
        self._dynamo = _eval_frame()
        if hasattr(self._dynamo, "_maybe_set_eval_frame"):
            self._set_eval_frame = self._dynamo._maybe_set_eval_frame
            self._dynamo._maybe_set_eval_frame = self._around_compiled

    def remove(self) -> None:
        module_hooks._global_forward_pre_hooks.pop(self._key, None)
        module_hooks._global_forward_hooks.pop(self._key, None)
        module_hooks._global_forward_hooks_always_called.pop(self._key, None)
        if self._set_eval_frame is not None:
            self._dynamo._maybe_set_eval_frame = self._set_eval_frame
            self._set_eval_frame = None

    def _take_hooks(self) -> None:
        if self._modules is not None:
            for module in self._modules.hooked:
                if may_run_without_us(module):
                    self._hooks.update(self._modules.take_off(module))

    def _before(self, module: Any, args: Any, kwargs: Any = None) -> None:
        raise NotImplementedError

    def _after(self, module: Any, args: Any, *kwargs_and_output: Any) -> None:
        raise NotImplementedError

    def _enter_compiled(self, frame: FrameType, module: Any) -> None:
        raise NotImplementedError

    def _leave_compiled(self, frame: FrameType, module: Any) -> None:
        raise NotImplementedError


    def install(self) -> None:
        for mode in modes():  # of a step that was ended inside of a backward pass, torch has put it back since
            if isinstance(mode, Apis) and mode.recorder.closed:
                take_off(mode)
        put_on(self._mode)
        self._handles = [
            module_hooks.register_module_forward_pre_hook(self._before),
            module_hooks.register_module_forward_hook(self._after, always_call=True),
        ]
        self._dynamo = _eval_frame()
        if hasattr(self._dynamo, "_maybe_set_eval_frame"):
            self._set_eval_frame = self._dynamo._maybe_set_eval_frame
            self._dynamo._maybe_set_eval_frame = self._around_compiled

        self._swap_tensors, torch.utils.swap_tensors = torch.utils.swap_tensors, self._around_swap

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if torch.utils.swap_tensors == self._around_swap:
            torch.utils.swap_tensors = self._swap_tensors
        if self._set_eval_frame is not None:
            self._dynamo._maybe_set_eval_frame = self._set_eval_frame
            self._set_eval_frame = None
        if is_on(self._mode):
            take_off(self._mode)
        else:
            notices.warn_once(
                "Something in the script took msprobe's mode off torch's stack of modes between start() and stop(): "
                "APIs called after that were seen only inside modules."
            )

    def _before(self, module: Any, args: Any) -> None:
        if is_traced():
            return
        try:
            on = is_on(self._mode)
            if on and self._mode.recorder.on_first_batch is None and not _may_run_without_modes(module):
                return
            with torch._C.DisableTorchFunction():
                if self._mode.recorder.on_first_batch is not None:
                    self._mode.recorder.first_batch(args, {})
                if not on and not self._mode.busy:
                    put_on(self._mode)
                    self._regions.open.append((id(module), "entered", None))
                elif on and _runs_without_modes(module):
                    take_off(self._mode)
                    record = None
                    try:
                        api = _api_of(module, compiled=hasattr(module, "_orig_mod"))
                        if self._modules is None:
                            record = self._mode.open_opaque(api, args)
                        else:
                            self._modules.hide(module)
                    finally:
                        self._regions.open.append((id(module), "left", record))
        except Exception:
            self._mode.recorder.fault("module hook", traceback.format_exc())

    def _after(self, module: Any, args: Any, output: Any) -> None:
        if is_traced():
            return
        opened = self._regions.open
        if not opened or opened[-1][0] != id(module):
            return
        try:
            with torch._C.DisableTorchFunction():
                _, action, record = opened.pop()
                if action == "entered":
                    take_off(self._mode)
                else:
                    put_on(self._mode)
                    if self._modules is not None:
                        self._modules.show(module, output)
                    if record is not None:
                        self._mode.close_opaque(record, output)
        except Exception:
            self._mode.recorder.fault("module hook", traceback.format_exc())

    def _around_swap(self, *tensors: Any) -> None:
        """Stands for torch.utils.swap_tensors, which refuses a tensor that somebody refers to weakly, as we do."""
        self._mode.let_go()
        self._swap_tensors(*tensors)

    def _around_compiled(self, callback: Any) -> Any:
        """Stands for dynamo's switch: a compiled function turns it on when it is entered and back when it ends."""
        frame = sys._getframe(1)
        opened = self._regions.open
        ends = bool(opened) and opened[-1][0] == id(frame)
        try:
            if not ends and callable(callback) and is_on(self._mode) and "fn" in frame.f_locals:
                self._enter_compiled(frame)
        except Exception:
            self._mode.recorder.fault("compiled function", traceback.format_exc())
        result = self._set_eval_frame(callback)  # from here on, or up to here, what runs is compiled: nothing of ours
        try:
            if ends:
                _, _, record = opened.pop()
                put_on(self._mode)
                if record is not None:
                    with torch._C.DisableTorchFunction():
                        self._mode.close_opaque(record, frame.f_locals.get("result"))
        except Exception:
            self._mode.recorder.fault("compiled function", traceback.format_exc())
        return result

    def _enter_compiled(self, frame: FrameType) -> None:
        take_off(self._mode)
        record = None
        try:
            with torch._C.DisableTorchFunction():
                api = _api_of(frame.f_locals["fn"], compiled=True)
                record = self._mode.open_opaque(api, frame.f_locals.get("args", ()))
        finally:
            self._regions.open.append((id(frame), "left", record))


class FusedPaths:
    """Level L0, where there is no mode: our hooks are off a module that would leave its fused or compiled path for
    them, and off what is below it, while it runs. Nothing is installed where the models have no such module."""

    def __init__(self, modules: Modules, models: Sequence[Any], recorder: Recorder) -> None:
        self._modules = modules
        self._models = models
        self._recorder = recorder
        self._open: list[int] = []
        self._handles: list[Any] = []

    def install(self) -> None:
        if any(map(_may_run_without_modes, (*self._models, *self._modules.hooked))):
            self._handles = [
                module_hooks.register_module_forward_pre_hook(self._before),
                module_hooks.register_module_forward_hook(self._after, always_call=True),
            ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before(self, module: Any, args: Any) -> None:
        if is_traced() or self._open:
            return
        try:
            if not _runs_without_modes(module):
                return
            _api_of(module, compiled=hasattr(module, "_orig_mod"))
            self._open.append(id(module))
            self._modules.hide(module)
        except Exception:
            self._recorder.fault("module hook", traceback.format_exc())

    def _after(self, module: Any, args: Any, output: Any) -> None:
        if is_traced() or not self._open or self._open[-1] != id(module):
            return
        try:
            self._open.pop()
            self._modules.show(module, output)
        except Exception:
            self._recorder.fault("module hook", traceback.format_exc())


def _eval_frame() -> Any:
    """The module of dynamo that enters compiled code. Imported here (making an optimizer imports it too): were it
    imported later, by the first torch.compile of the script, that would run into our mode."""
    try:
        return importlib.import_module("torch._dynamo.eval_frame")
    except ImportError:
        return None


def _api_of(region: Any, compiled: bool) -> Api:
    region = getattr(region, "_orig_mod", region)
    name = str(getattr(region, "__name__", type(region).__name__))
    if compiled:
        notices.warn_once(
            f"{name} is compiled (torch.compile): it runs as compiled and is recorded as one call; "
            "what happens inside it is not seen."
        )
        return Api("Compiled", name)
    notices.warn_once(
        f"{name} is in eval mode and may use its fused path: it is recorded as one call; "
        "what happens inside it is not seen."
    )
    return Api("Torch", f"_fused_{name}")


def _may_run_without_modes(module: Any) -> bool:
    return isinstance(module, _FUSED) or type(module).__name__ == "OptimizedModule"


def _runs_without_modes(module: Any) -> bool:
    if type(module).__name__ == "OptimizedModule":
        return True
    if not isinstance(module, _FUSED) or module.training:
        return False
    return not torch.is_grad_enabled() or not _needs_grad(module)


def _needs_grad(module: Any) -> Optional[bool]:
    return any(parameter.requires_grad for parameter in module.parameters())
