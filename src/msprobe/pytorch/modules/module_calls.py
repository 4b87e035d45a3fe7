"""Modules (level L0 and mix): forward pre- and post-hooks on every module below the model.

The backward of a module is read off the graph like that of an API (gradients.py): no full backward
hook, which breaks in-place modules and loses data.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Callable, Optional

import torch
from torch.nn.modules import module as module_hooks
from torch.nn.parameter import is_lazy

from msprobe.collect.names import FORWARD
from msprobe.collect.recorder import Recorder
from msprobe.collect.values import key_text
from msprobe.pytorch.gradients.backward_graph import Inputs
from msprobe.pytorch.gradients.call_gradients import Gradients
from msprobe.pytorch.modules.copies import HOOKS, PlainCopies

_NoTorchFunction = torch._C.DisableTorchFunction
_tracing_state = torch._C._get_tracing_state
_graph_task = torch._C._current_graph_task_id


def is_traced() -> bool:
    """Whether a compiler follows what runs (dynamo, torch.jit.trace): there must be nothing of ours to see."""
    return torch.compiler.is_compiling() or _tracing_state() is not None


def is_opaque(module: Any) -> bool:
    """Modules whose inside is compiled: they are recorded whole, and nothing below them is hooked."""
    return isinstance(module, torch.jit.ScriptModule) or type(module).__name__ == "OptimizedModule"


def is_compiled_in_place(module: Any) -> bool:
    """By `module.compile()`. What is below it keeps its name: it has parameters, and may be called by itself."""
    return getattr(module, "_compiled_call_impl", None) is not None


def named_below(models: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """`Module[.{index}].{path}.{Class}` of every module below the models. A shared module has its first path.

    An opaque model is itself recorded, because nothing below it can be; so is one that is compiled in place.
    """
    seen: set[int] = set()
    for index, model in enumerate(models):
        start = f"Module.{index}" if len(models) > 1 else "Module"
        waiting = [("", model)]
        while waiting:
            path, module = waiting.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            opaque = is_opaque(module)
            if path or opaque or is_compiled_in_place(module):
                yield (
                    f"{start}.{path}.{class_of(module)}" if path else f"{start}.{class_of(module)}",
                    module,
                )
            if not opaque:
                below = [(f"{path}.{name}" if path else name, child) for name, child in module._modules.items()]
                waiting.extend((name, child) for name, child in reversed(below) if child is not None)


def class_of(module: Any) -> str:
    if type(module).__name__ == "OptimizedModule":
        return type(module._orig_mod).__name__
    return str(module.original_name) if isinstance(module, torch.jit.ScriptModule) else type(module).__name__


class _Call:
    """One call of a module, between its two hooks."""

    __slots__ = ("call", "error", "inputs", "name", "parents", "title")

    def __init__(self, title: str, name: str, parents: list[str], error: Any) -> None:
        self.title = title
        self.name = name
        self.parents = parents
        self.error = error
        self.call: Optional[int] = None
        self.inputs: Optional[Inputs] = None


class _Calls(threading.local):
    def __init__(self) -> None:
        self.open: list[_Call] = []


class Modules:
    """Installs the hooks on the models of one step and takes them off again."""

    def __init__(self, recorder: Recorder, gradients: Gradients, models: Sequence[Any]) -> None:
        self._recorder = recorder
        self._gradients = gradients
        self._models = models
        self._calls = _Calls()
        self._names: dict[int, str] = {}
        self._at: dict[str, str] = {}  # the place of a module, without its class: its name
        self.hooked: list[Any] = []
        self._scripted: list[Any] = []
        self._watched: set[tuple[str, str]] = set()
        self._later: set[str] = set()
        self._copies = PlainCopies()
        self.key = self._copies.key

    def install(self) -> None:
        self._recorder.parents.clear()  # an interrupt may have left some open
        self._gradients.return_to_parameters()
        self._copies.install()
        backward = self._recorder.selection.backward
        for name, module in named_below(self._models):
            self._names[id(module)] = name
            self._at[name.rpartition(".")[0]] = name
            if isinstance(module, torch.jit.ScriptModule):
                self._hook_scripted()
            else:
                self._hook(module, name)
                self.hooked.append(module)
            if backward and module._parameters and not is_opaque(module):
                self._watch_parameters(name, module._parameters)

    def _watch_parameters(self, module: str, parameters: dict[str, Any]) -> None:
        """Those without a gradient yet (frozen, or of a lazy module) are looked at again when the module is called."""
        selection = self._recorder.selection
        above = () if selection.everything else self._above(module)
        if not selection.may_want(f"{module}.parameters_grad", above):
            return
        for name, parameter in parameters.items():
            if parameter is None or (module, name) in self._watched:
                continue
            if parameter.requires_grad and not is_lazy(parameter):
                self._watched.add((module, name))
                self._gradients.watch_parameter(module, name, parameter, above)
            else:
                self._later.add(module)

    def _above(self, module: str) -> tuple[str, ...]:
        """The modules around one, outermost first, by their names."""
        parts = module.split(".")[:-1]
        places = (".".join(parts[:length]) for length in range(2, len(parts)))
        return tuple(self._at[place] for place in places if place in self._at)

    def remove(self) -> None:
        key = self.key
        for module in self.hooked:
            for kind in HOOKS:
                getattr(module, kind).pop(key, None)
        self.hooked.clear()
        for handle in self._scripted:
            handle.remove()
        self._scripted.clear()
        self._copies.remove()
        self._gradients.leave_parameters()

    def _hook(self, module: Any, name: str) -> None:
        """register_forward_pre_hook and register_forward_hook with kwargs, always called: what they write, without a
        handle for each of thousands of modules."""
        key = self.key
        module._forward_pre_hooks[key] = partial(Modules._before, self, name)
        module._forward_pre_hooks_with_kwargs[key] = True
        module._forward_hooks[key] = partial(Modules._after, self, name)
        module._forward_hooks_with_kwargs[key] = True
        module._forward_hooks_always_called[key] = True

    def _hook_scripted(self) -> None:
        """Scripted modules take no hooks of their own: the global ones, which they answer to, look for them."""
        if self._scripted:
            return

        def enter(module: Any, args: Any) -> None:
            if isinstance(module, torch.jit.ScriptModule) and id(module) in self._names:
                self._before(self._names[id(module)], module, args, {})

        def leave(module: Any, args: Any, output: Any) -> None:
            if isinstance(module, torch.jit.ScriptModule) and id(module) in self._names:
                self._after(self._names[id(module)], module, args, {}, output)

        self._scripted = [
            module_hooks.register_module_forward_pre_hook(enter),
            module_hooks.register_module_forward_hook(leave, always_call=True),
        ]

    def take_off(self, is_apart: Callable[[Any], bool]) -> dict[int, tuple[Any, Any]]:
        """The hooks of such modules and of what is below them, by the id of their module, for the caller to call: torch
        leaves a fused path where it sees one. A global hook under `key` is still given the kwargs of these modules."""
        key = self.key
        return {
            id(module): (module._forward_pre_hooks.pop(key), module._forward_hooks.pop(key))
            for root in (*self._models, *self.hooked)
            if is_apart(root)
            for module in root.modules()
            if id(module) in self._names and key in module._forward_hooks
        }

    def _before(self, title: str, module: Any, args: Any, kwargs: Any = None) -> None:
        """Torch leaves the last argument out where stop() was called by a hook before this one."""
        recorder = self._recorder
        if recorder.closed or is_traced():
            return
        try:
            with _NoTorchFunction():
                if recorder.on_first_batch is not None:
                    recorder.first_batch(args, kwargs or {})
                if title in self._later and recorder.selection.backward:
                    self._later.discard(title)
                    self._watch_parameters(title, module._parameters)
                self._enter(title, args, kwargs or {})
        except Exception:
            recorder.fault(title, traceback.format_exc())

    def _after(self, title: str, module: Any, args: Any, *kwargs_and_output: Any) -> None:
        """`_before` says where there are no kwargs."""
        output = kwargs_and_output[-1]
        recorder = self._recorder
        if recorder.closed or is_traced():
            return
        try:
            with _NoTorchFunction():
                self._leave(title, module, output)
        except Exception:
            recorder.fault(title, traceback.format_exc())

    def _enter(self, title: str, args: Any, kwargs: Any) -> None:
        recorder = self._recorder
        name = f"{title}.{FORWARD}.{recorder.numbers.take(title)}"
        call = _Call(title, name, list(recorder.parents), sys.exc_info()[1])
        self._calls.open.append(call)
        recorder.push(name)
        selection = recorder.selection
        wanted = selection.everything or selection.enter(name, call.parents)
        if wanted and selection.forward:
            parent = call.parents[-1] if call.parents else None
            call.call = recorder.enter(name, parent, args, kwargs, 2)
        if selection.backward and torch.is_grad_enabled():
            call.inputs = Inputs(args, kwargs)

    def _leave(self, title: str, module: Any, output: Any) -> None:
        recorder = self._recorder
        calls = self._calls.open
        if not calls or calls[-1].title != title:
            if not any(call.title == title for call in calls):
                return  # entered before the hooks were there
            while calls[-1].title != title:  # what an exception left open inside ends here too
                calls.pop()
        call = calls.pop()
        recorder.pop(call.name)
        error = sys.exc_info()[1]
        if call.call is not None:
            extra = '"is_recompute": true' if _graph_task() >= 0 and self._gradients.is_recomputing() else ""
            if error is not None and error is not call.error:
                recorder.fail(call.call, error, extra)
            else:
                recorder.leave(call.call, call.name, output, self._with_parameters(call.name, module, extra))
        if not recorder.selection.everything:
            recorder.selection.leave(call.name)
        if call.inputs is not None and output is not None:
            self._gradients.watch(call.name, call.parents, call.inputs, output)

    def _with_parameters(self, name: str, module: Any, extra: str) -> str:
        recorder = self._recorder
        if not recorder.with_inputs or not module._parameters or is_opaque(module):
            return extra
        path = recorder.tensors_path(name, "parameters")
        value = recorder.values.value
        members = [
            f"{key_text(key)}: {value(parameter, f'{path}.{key}' if path else '')}"
            for key, parameter in module._parameters.items()
            if parameter is not None
        ]
        text = f'"parameters": {{{", ".join(members)}}}'
        return f"{text}, {extra}" if extra else text
