"""Regions that must run without the API mode, and without our hooks on their modules.

MultiheadAttention and TransformerEncoderLayer leave their fused path if they see a mode or a hook, which changes the
last digits; compiled code breaks its graphs. Such a region runs without msprobe and is one opaque record. Its modules,
and those below them, have no hooks of their own: the global hooks in this file record them.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple, Optional

import torch

from msprobe.collect import notices
from msprobe.collect.records.recorder import Recorder
from msprobe.dump.plural import count
from msprobe.frameworks.pytorch.api_table import Api
from msprobe.pytorch.apis.api_calls import Apis
from msprobe.pytorch.apis.mode_stack import is_on, put_on, take_off
from msprobe.pytorch.compiled.global_hooks import GlobalHooks
from msprobe.pytorch.compiled.graph_breaks import graph_breaks
from msprobe.pytorch.compiled.open_regions import OpenScope, opened
from msprobe.pytorch.compiled.switch import CompilesUnseen, is_usual, module_of, name_region, never_compile
from msprobe.pytorch.features import disabling_uses_switch, eval_frame
from msprobe.pytorch.modules.copies import PlainCopies
from msprobe.pytorch.modules.model_tree import is_compiled_in_place, is_wrapper
from msprobe.pytorch.modules.module_calls import Modules, compiled_roots, is_traced

CLOSED, OPEN, EAGER = "closed", "open", "eager"
_FUSED = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer, torch.nn.TransformerEncoder)


class _Region(NamedTuple):
    owner: int
    """The id of the module, or of the frame that runs compiled code."""
    action: str
    """What to undo at the end: the mode was "entered" (it is on), "left", or "" for nothing."""
    record: Any = None
    depth: int = 0
    """The stack depth at which a module began: a later call at this depth or above shows that it was interrupted."""
    compiled: Any = None
    """The compiled function or module."""


class _OpenRegions(threading.local):
    """The regions that are open in this thread."""

    def __init__(self) -> None:
        self.regions: list[_Region] = []

    def without_us(self) -> bool:
        return bool(self.regions) and self.regions[-1].action != "entered"

    def ends_with(self, owner: Any) -> bool:
        return bool(self.regions) and self.regions[-1].owner == id(owner)


class OpaqueRegions:
    """Global module hooks and the entry to compiled functions, while a step is collected."""

    def __init__(
        self,
        mode: Optional[Apis],
        modules: Optional[Modules],
        recorder: Recorder,
        models: Sequence[Any] = (),
        compile: str = CLOSED,
    ) -> None:
        self._mode = mode
        self._models = models
        self._compile = compile
        self._roots = compiled_roots(models) if compile == OPEN else set()
        self._stance: Any = None
        self._modules = modules
        self._recorder = recorder
        self._open = _OpenRegions()
        self._ran: set[int] = set()  # ids of the open regions in which a call ran that msprobe sees
        self._hooks: dict[int, tuple[Any, Any]] = {}  # for modules without own hooks
        self._global_hooks = GlobalHooks()
        self._callbacks: dict[int, CompilesUnseen] = {}  # by the id of what it wraps
        self._dynamo: Any = None
        self._set_eval_frame: Any = None
        self._turn_off: Any = None

    def _install_hooks(self) -> None:
        """Installs the global hooks under the key of the module hooks, if there are any: torch passes kwargs to this
        key."""
        if self._modules is None:
            key = PlainCopies().key
        else:
            key = self._modules.key
            self._hooks = self._modules.take_off(self._may_run_without_modes)
        self._global_hooks.install(key, self._before, self._after)

    def _install_switch(self, around: Optional[Callable[[Any], Any]] = None) -> None:
        self._dynamo = eval_frame()
        if self._compile == EAGER and not hasattr(self._dynamo, "_stance"):
            notices.warn_once('"compile": "eager" has no effect: this version of PyTorch cannot run regions eagerly.')
        elif self._compile == EAGER:
            self._stance = self._dynamo._stance
            self._dynamo._stance = self._dynamo.DynamoStance("force_eager")
        elif self._dynamo is not None and self._compile == OPEN:
            OpenScope.current = OpenScope(self._recorder, self._modules)
        if hasattr(self._dynamo, "_maybe_set_eval_frame"):
            separate = self._compile == OPEN and not disabling_uses_switch()
            self._set_eval_frame = self._dynamo._maybe_set_eval_frame
            self._dynamo._maybe_set_eval_frame = around or self._around_compiled
            if separate:
                never_compile(OpaqueRegions._around_disabled)  # compiling is on when it is called
                self._turn_off = self._dynamo.set_eval_frame
                self._dynamo.set_eval_frame = self._around_disabled

    def remove(self) -> None:
        self._global_hooks.remove()
        if self._set_eval_frame is not None:
            self._dynamo._maybe_set_eval_frame = self._set_eval_frame
            self._set_eval_frame = None
        if self._turn_off is not None:
            self._dynamo.set_eval_frame, self._turn_off = self._turn_off, None
        if self._stance is not None:
            self._dynamo._stance, self._stance = self._stance, None
        OpenScope.current = None

    def _before(self, module: Any, args: Any, kwargs: Any = None) -> None:
        try:
            if is_traced() or (self._open.regions and self._open.without_us() and not self._was_interrupted(_depth())):
                return
            mode = self._mode
            on = mode is not None and is_on(mode)
            first = mode is not None and self._recorder.on_first_batch is not None
            hooks = self._hooks.get(id(module))
            apart = _runs_without_modes(module, self._compile == CLOSED)
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
        try:
            if is_traced():
                return
            hooks = self._hooks.get(id(module))
            if hooks is None and not self._open.regions:
                return
            ends = self._open.ends_with(module)
            if not ends and (hooks is None or self._open.without_us()):
                return
            output = kwargs_and_output[-1]
            with torch._C.DisableTorchFunction():
                if ends:
                    self._end(output)
                if hooks is not None:
                    hooks[1](module, args, {}, output)
        except Exception:
            self._recorder.fault("module hook", traceback.format_exc())

    def _may_run_without_modes(self, module: Any) -> bool:
        if isinstance(module, _FUSED) or self._compile == EAGER:
            return isinstance(module, _FUSED)
        if self._compile == OPEN:
            return id(module) in self._roots
        return is_wrapper(module) or is_compiled_in_place(module)

    def _was_interrupted(self, depth: int) -> bool:
        """Torch calls no hook if a KeyboardInterrupt ends a module: the mode is turned on again here."""
        regions = self._open.regions
        while regions and regions[-1].depth >= depth:
            if regions.pop().action == "left":
                put_on(self._mode)
        return not self._open.without_us()

    def _begin(self, region: Any, owner: int, on: bool, named: bool, args: Any, depth: int = 0) -> None:
        """msprobe ignores this thread from now on. A `named` module has its own record."""
        if on:
            take_off(self._mode)
        record = None
        try:
            api = _api_of(region, self._compile == OPEN, EAGER if self._mode is None else OPEN)
            is_open = self._compile == OPEN and api.prefix == "Compiled"
            if self._mode is not None and not named and not is_open and not self._mode.busy:
                record = self._mode.open_opaque(api, args)
        finally:
            self._open.regions.append(_Region(owner, "left" if on else "", record, depth, region))

    def _end(self, output: Any) -> None:
        region = self._open.regions.pop()
        if region.action == "entered":
            take_off(self._mode)
        elif region.action == "left":
            put_on(self._mode)
            if self._compile == OPEN and id(region.compiled) not in self._ran:
                _log_unseen(region.compiled)
        if region.record is not None and self._mode is not None:
            self._mode.close_opaque(region.record, output, graph_breaks(region.compiled))

    def _around_compiled(self, callback: Any) -> Any:
        """Replaces dynamo's switch: a compiled function turns it on when it begins and back when it ends."""
        set_eval_frame = self._set_eval_frame or self._dynamo._maybe_set_eval_frame  # stop() may come at any moment
        try:
            callback = self._switched(callback, sys._getframe(1))
        except Exception:
            self._recorder.fault("compiled function", traceback.format_exc())
        return set_eval_frame(callback)  # last: compiled code begins or ends here, and must not see msprobe

    def _switched(self, callback: Any, frame: FrameType) -> Any:
        """What to switch dynamo to in this frame, where compiled code begins or ends."""
        ends, begins = self._open.ends_with(frame), False
        if not ends and self._changes_nothing(callback) and not self._global_hooks.hides_for(frame):
            return callback
        if not ends and "fn" in frame.f_locals:
            if callable(callback) and not self._open.without_us():
                self._enter_compiled(frame)
                if self._compile == OPEN and self._open.ends_with(frame) and is_usual(callback):
                    callback = opened(callback)
            elif callback is None and self._compile == OPEN and self._open.without_us():
                self._enter_uncompiled(frame)
            elif callable(callback) and self._compile == OPEN and is_usual(callback):
                callback = opened(callback)  # a compiled function called inside another one
            if callable(callback):
                begins = self._global_hooks.hide(frame)
                if self._modules is not None:
                    callback = self._unseen(callback)
        if not begins:
            self._global_hooks.show(frame)
        if ends:
            self._leave_compiled(frame.f_locals)
        return callback

    def _around_disabled(self, callback: Any) -> Any:
        """Replaces `set_eval_frame`, with which a function begins for which compiling is disabled. If compiling was on,
        the switch turns it on again at the end of the function."""
        set_eval_frame = self._turn_off or self._dynamo.set_eval_frame  # stop() may come at any moment
        prior = set_eval_frame(callback)
        try:
            if callback is None and prior is not None and self._open.without_us():
                frame = sys._getframe(1)
                if type(frame.f_locals.get("self")).__name__ == "DisableContext" and "fn" in frame.f_locals:
                    self._enter_uncompiled(frame)
        except Exception:
            self._recorder.fault("compiled function", traceback.format_exc())
        return prior

    def _unseen(self, callback: Any) -> CompilesUnseen:
        known = self._callbacks.get(id(callback))
        if known is None:
            known = self._callbacks[id(callback)] = CompilesUnseen(callback, self._modules)
        return known

    def _changes_nothing(self, callback: Any) -> bool:
        """The compiler is turned off for a function of its own, or back on after it: many times in each region."""
        return self._compile != OPEN and (not callable(callback) or isinstance(callback, CompilesUnseen))

    def _enter_compiled(self, frame: FrameType) -> None:
        function, args = frame.f_locals["fn"], frame.f_locals.get("args", ())
        module = module_of(function)
        hooks = self._hooks.get(id(module))
        on = self._mode is not None and is_on(self._mode)
        if on or hooks is not None:
            with torch._C.DisableTorchFunction():
                if hooks is not None:
                    hooks[0](module, args, frame.f_locals.get("kwargs"))
                self._begin(function if module is None else module, id(frame), on, hooks is not None, args)

    def _enter_uncompiled(self, frame: FrameType) -> None:
        """Code that is not compiled runs inside an open region: an open graph, or a function of the script for which
        compiling is disabled."""
        compiling = torch._guards.TracingContext.try_get() is not None
        if self._mode is not None and self._open.regions[-1].action == "left" and not self._mode.busy and not compiling:
            put_on(self._mode)
            self._ran.add(id(self._open.regions[-1].compiled))
            self._open.regions.append(_Region(id(frame), "entered"))

    def _leave_compiled(self, scope: Mapping[str, Any]) -> None:
        module, output = module_of(scope["fn"]), scope.get("result")
        hooks = self._hooks.get(id(module))
        with torch._C.DisableTorchFunction():
            self._end(output)
            if hooks is not None:
                hooks[1](module, scope.get("args", ()), {}, output)


def _depth() -> int:
    """The number of frames below the caller."""
    depth, frame = 0, sys._getframe(1).f_back
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    return depth


def effective_mode(compile: str, with_apis: bool) -> str:
    """How compiled regions run at this level: an open region has only API records."""
    if compile == OPEN and not with_apis:
        notices.warn_once(
            '"compile": "open" records API calls: at level L0 compiled regions stay closed. '
            'Use level L1 or mix, or "compile": "eager" for records of the modules inside.'
        )
        return CLOSED
    return compile


def _api_of(region: Any, is_open: bool, advice: str) -> Api:
    compiled = not isinstance(region, _FUSED) or is_compiled_in_place(region)
    if compiled:
        name = name_region(getattr(region, "_orig_mod", region))
        log_compiled(name, region, is_open, advice)
        return Api("Compiled", name)
    name = type(region).__name__
    notices.warn_once(
        f"{name} is in eval mode and may use its fused path: it is recorded as one call; "
        "msprobe does not see the calls inside it."
    )
    return Api("Torch", f"_fused_{name}")


def _log_unseen(region: Any) -> None:
    if isinstance(region, _FUSED):
        return
    notices.warn_once(
        f"{name_region(getattr(region, '_orig_mod', region))} ran without a graph: torch compiled nothing of it, so it "
        "has no records of its calls. Torch before 2.14 does not compile its own containers in place: use "
        "torch.compile(module)."
    )


def log_compiled(name: str, region: Any, is_open: bool, advice: str) -> None:
    """`advice`: the value of `compile` with which the calls inside are seen; at L0 only the eager modules are."""
    if is_open:
        notices.warn_once(
            f"{name} is compiled (torch.compile) and opened: the graph of the compiler runs node by node. "
            "The numbers are those of the graph, not of the compiled kernels."
        )
    else:
        notices.warn_once(
            f"{name} is compiled (torch.compile): it runs as compiled and is recorded as one call; "
            f'msprobe does not see the calls inside it. With "compile": "{advice}" it does.'
        )
    breaks = graph_breaks(region)
    if breaks:
        unseen = " What runs between the graphs is not recorded." if is_open else ""
        notices.warn_once(f"{name} has {count(len(breaks), 'graph break')}: {'; '.join(breaks)}.{unseen}")


def _runs_without_modes(module: Any, closed: bool) -> bool:
    """Whether this call of the module runs without modes. The switch handles modules that are compiled in place."""
    if is_wrapper(module):
        return closed
    if not isinstance(module, _FUSED) or module.training:
        return False
    return not torch.is_grad_enabled() or not _needs_grad(module)


def _needs_grad(module: Any) -> Optional[bool]:
    return any(parameter.requires_grad for parameter in module.parameters())
