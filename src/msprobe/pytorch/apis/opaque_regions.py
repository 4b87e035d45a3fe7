"""Regions that must run without the API mode, and without hooks of ours on their modules.

MultiheadAttention and TransformerEncoderLayer leave their fused path when they see a mode or a hook, which changes the
last digits; compiled code breaks its graphs. Such a region runs without us and is one opaque record. The modules in
question, and those below them, have no hooks of their own: the global ones here call them.
"""

from __future__ import annotations

import importlib
import sys
import threading
import traceback
from collections.abc import Mapping
from types import FrameType
from typing import Any, NamedTuple, Optional

import torch
from torch.nn.modules import module as module_hooks

from msprobe.collect import notices
from msprobe.collect.records.recorder import Recorder
from msprobe.frameworks.pytorch.api_table import Api
from msprobe.pytorch.apis.api_calls import Apis
from msprobe.pytorch.apis.mode_stack import is_on, put_on, take_off
from msprobe.pytorch.modules.copies import PlainCopies
from msprobe.pytorch.modules.module_calls import Modules, is_compiled_in_place, is_traced

_FUSED = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer, torch.nn.TransformerEncoder)


class _Region(NamedTuple):
    owner: int
    """The id of the module, or of the frame that runs compiled code."""
    action: str
    """What was done with the mode, to be undone: "entered" (then it is on), "left", or "" for nothing."""
    record: Any = None
    depth: int = 0
    """The depth of the stack where a module began: a call from no deeper shows that it was interrupted."""


class _Open(threading.local):
    """The regions that this thread is in."""

    def __init__(self) -> None:
        self.regions: list[_Region] = []

    def without_us(self) -> bool:
        return bool(self.regions) and self.regions[-1].action != "entered"

    def ends_with(self, owner: Any) -> bool:
        return bool(self.regions) and self.regions[-1].owner == id(owner)


class OpaqueRegions:
    """Global module hooks and the entry to compiled functions, while a step is collected."""

    def __init__(self, mode: Optional[Apis], modules: Optional[Modules], recorder: Recorder) -> None:
        self._mode = mode
        self._modules = modules
        self._recorder = recorder
        self._open = _Open()
        self._hooks: dict[int, tuple[Any, Any]] = {}  # for the modules that have none of their own
        self._key = 0
        self._dynamo: Any = None
        self._set_eval_frame: Any = None

    def _install_hooks(self) -> None:
        """Under the key of the module hooks, where there are any: torch hands those modules' kwargs to this key."""
        if self._modules is None:
            self._key = PlainCopies().key
        else:
            self._key = self._modules.key
            self._hooks = self._modules.take_off(may_run_without_modes)
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

    def _before(self, module: Any, args: Any, kwargs: Any = None) -> None:
        if is_traced() or (self._open.regions and self._open.without_us() and not self._was_interrupted(_depth())):
            return
        try:
            mode = self._mode
            on = mode is not None and is_on(mode)
            first = mode is not None and self._recorder.on_first_batch is not None
            hooks = self._hooks.get(id(module))
            apart = _runs_without_modes(module)
            if (on or mode is None) and not first and hooks is None and not apart:
                return
            with torch._C.DisableTorchFunction():
                if first:
                    self._recorder.first_batch(args, kwargs or {})
                if hooks is not None:
                    hooks[0](module, args, kwargs)
                if apart:
                    self._begin(module, id(module), on, hooks is not None, args, _depth())
                elif mode is not None and not on and not mode.busy:
                    put_on(mode)
                    self._open.regions.append(_Region(id(module), "entered"))
        except Exception:
            self._recorder.fault("module hook", traceback.format_exc())

    def _after(self, module: Any, args: Any, *kwargs_and_output: Any) -> None:
        if is_traced():
            return
        hooks = self._hooks.get(id(module))
        if hooks is None and not self._open.regions:
            return
        ends = self._open.ends_with(module)
        if not ends and (hooks is None or self._open.without_us()):
            return
        output = kwargs_and_output[-1]
        try:
            with torch._C.DisableTorchFunction():
                if ends:
                    self._end(output)
                if hooks is not None:
                    hooks[1](module, args, {}, output)
        except Exception:
            self._recorder.fault("module hook", traceback.format_exc())

    def _was_interrupted(self, depth: int) -> bool:
        """Torch calls no hook at the end of a module that a KeyboardInterrupt ended: the mode is put on again here."""
        regions = self._open.regions
        while regions and regions[-1].depth >= depth:
            if regions.pop().action == "left":
                put_on(self._mode)
        return not self._open.without_us()

    def _begin(self, region: Any, owner: int, on: bool, named: bool, args: Any, depth: int = 0) -> None:
        """From here on msprobe ignores this thread. A `named` module has its own record."""
        if on:
            take_off(self._mode)
        record = None
        try:
            api = _api_of(region)
            if self._mode is not None and not named and not self._mode.busy:
                record = self._mode.open_opaque(api, args)
        finally:
            self._open.regions.append(_Region(owner, "left" if on else "", record, depth))

    def _end(self, output: Any) -> None:
        region = self._open.regions.pop()
        if region.action == "entered":
            take_off(self._mode)
        elif region.action == "left":
            put_on(self._mode)
        if region.record is not None and self._mode is not None:
            self._mode.close_opaque(region.record, output)

    def _around_compiled(self, callback: Any) -> Any:
        """Replaces dynamo's switch: a compiled function turns it on when it begins and back when it ends."""
        set_eval_frame = self._set_eval_frame or self._dynamo._maybe_set_eval_frame  # stop() may come at any moment
        frame = sys._getframe(1)
        ends = self._open.ends_with(frame)
        try:
            if not ends and callable(callback) and "fn" in frame.f_locals and not self._open.without_us():
                self._enter_compiled(frame)
        except Exception:
            self._recorder.fault("compiled function", traceback.format_exc())
        result = set_eval_frame(callback)  # compiled code begins or ends here: it must see nothing of ours
        try:
            if ends:
                self._leave_compiled(frame.f_locals)
        except Exception:
            self._recorder.fault("compiled function", traceback.format_exc())
        return result

    def _enter_compiled(self, frame: FrameType) -> None:
        function, args = frame.f_locals["fn"], frame.f_locals.get("args", ())
        module = _module_of(function)
        hooks = self._hooks.get(id(module))
        on = self._mode is not None and is_on(self._mode)
        if on or hooks is not None:
            with torch._C.DisableTorchFunction():
                if hooks is not None:
                    hooks[0](module, args, frame.f_locals.get("kwargs"))
                self._begin(function if module is None else module, id(frame), on, hooks is not None, args)

    def _leave_compiled(self, scope: Mapping[str, Any]) -> None:
        module, output = _module_of(scope["fn"]), scope.get("result")
        hooks = self._hooks.get(id(module))
        with torch._C.DisableTorchFunction():
            self._end(output)
            if hooks is not None:
                hooks[1](module, scope.get("args", ()), {}, output)


def _eval_frame() -> Any:
    """The module of dynamo that enters compiled code. It is imported here (making an optimizer imports it too): a later
    import, by the first torch.compile of the script, would run inside our mode."""
    try:
        return importlib.import_module("torch._dynamo.eval_frame")
    except ImportError:
        return None


def _depth() -> int:
    """How many frames are below that of the caller."""
    depth, frame = 0, sys._getframe(1).f_back
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    return depth


def _module_of(function: Any) -> Any:
    """The module that was compiled in place, from the function that runs for it."""
    return getattr(function, "__self__", None) if getattr(function, "__name__", "") == "_call_impl" else None


def _api_of(region: Any) -> Api:
    compiled = not isinstance(region, _FUSED) or is_compiled_in_place(region)
    region = getattr(region, "_orig_mod", region)
    name = str(getattr(region, "__name__", type(region).__name__))
    if compiled:
        notices.warn_once(
            f"{name} is compiled (torch.compile): it runs as compiled and is recorded as one call; "
            "msprobe does not see the calls inside it."
        )
        return Api("Compiled", name)
    notices.warn_once(
        f"{name} is in eval mode and may use its fused path: it is recorded as one call; "
        "msprobe does not see the calls inside it."
    )
    return Api("Torch", f"_fused_{name}")


def may_run_without_modes(module: Any) -> bool:
    return isinstance(module, _FUSED) or type(module).__name__ == "OptimizedModule" or is_compiled_in_place(module)


def _runs_without_modes(module: Any) -> bool:
    """Whether this call of the module does. The switch handles modules that are compiled in place."""
    if type(module).__name__ == "OptimizedModule":
        return True
    if not isinstance(module, _FUSED) or module.training:
        return False
    return not torch.is_grad_enabled() or not _needs_grad(module)


def _needs_grad(module: Any) -> Optional[bool]:
    return any(parameter.requires_grad for parameter in module.parameters())
