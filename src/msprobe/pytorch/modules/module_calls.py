"""Modules (level L0 and mix): forward pre- and post-hooks on every module below the model.

The backward of a module is read from the graph, like that of an API: a full backward hook would break in-place modules
and lose data.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Callable, Optional

import torch
from torch.fx import _symbolic_trace
from torch.nn.modules import module as module_hooks
from torch.nn.parameter import is_lazy

from msprobe.collect.calls.module_calls import ModuleCalls
from msprobe.collect.calls.module_names import ModuleFacts, name_modules
from msprobe.collect.records.recorder import Recorder
from msprobe.pytorch.compiled.graph_breaks import breaks_member, graph_breaks
from msprobe.pytorch.gradients.call_gradients import Gradients
from msprobe.pytorch.modules.copies import HOOKS, PlainCopies
from msprobe.pytorch.modules.model_tree import (
    ModelTree,
    is_compiled_in_place,
    is_opaque,
    is_wrapper,
    uncompiled,
    without_disabling,
)
from msprobe.pytorch.modules.own_calls import OwnCalls
from msprobe.pytorch.parallel.flat_parameters import FLAT, hidden_parameters

_NoTorchFunction = torch._C.DisableTorchFunction
_tracing_state = torch._C._get_tracing_state
_is_fx_tracing = getattr(_symbolic_trace, "is_fx_symbolic_tracing", None) or _symbolic_trace.is_fx_tracing


def is_traced() -> bool:
    """Whether the running code is being traced (dynamo, torch.jit.trace, torch.fx): the trace must not see msprobe."""
    return torch.compiler.is_compiling() or _tracing_state() is not None or _is_fx_tracing()


def named_below(models: Sequence[Any], inside: bool = False) -> Iterator[tuple[str, Any]]:
    """The name of every module below the models, and the module.

    An opaque model has a record itself, because nothing below it can have one; so does a model that is compiled in
    place. With `inside`, torch.compile changes no name: modules have the names of a run without it.
    torch.compiler.disable(module) never changes one.
    """
    describe = _describe_inside if inside else _describe
    models = [(uncompiled if inside else without_disabling)(model) for model in models]
    for title, module, _ in name_modules(models, "Module", len(models) > 1, describe):
        yield title, module


def _describe_inside(module: Any) -> ModuleFacts:
    if isinstance(module, torch.jit.ScriptModule):
        return _describe(module)
    children = [(name, uncompiled(child)) for name, child in reversed(module._modules.items())]
    return ModuleFacts(class_of(module), False, children)


def compiled_roots(models: Sequence[Any]) -> set[int]:
    """The ids of the modules that run compiled, with all below them."""
    found = (module for model in models for module in model.modules())
    return {id(uncompiled(module)) for module in found if is_wrapper(module) or is_compiled_in_place(module)}


def _describe(module: Any) -> ModuleFacts:
    if is_opaque(module):
        return ModuleFacts(class_of(module), True, ())
    children = [(name, without_disabling(child)) for name, child in reversed(module._modules.items())]
    return ModuleFacts(class_of(module), is_compiled_in_place(module), children)


def class_of(module: Any) -> str:
    if is_wrapper(module):
        return type(module._orig_mod).__name__
    return str(module.original_name) if isinstance(module, torch.jit.ScriptModule) else type(module).__name__


class Modules(ModuleCalls):
    """Installs the hooks on the models of one step and removes them."""

    def __init__(self, recorder: Recorder, gradients: Gradients, models: Sequence[Any]) -> None:
        super().__init__(recorder, gradients)
        self._models = models
        self.inside = False  # whether modules inside compiled ones have names
        self.tree = ModelTree()
        self._opaque: set[int] = set()
        self._names: dict[int, str] = {}
        self._at: dict[str, str] = {}  # the name of a module without its class -> its name
        self.hooked: list[Any] = []
        self._scripted: list[Any] = []
        self._watched: set[tuple[str, str]] = set()
        self._later: set[str] = set()
        self._hidden: dict[int, tuple[str, ...]] = {}  # the id of a module -> its parameters that FSDP1 hides
        self._own_calls = OwnCalls()
        self._copies = PlainCopies()
        self.key = self._copies.key

    def install(self) -> None:
        self._recorder.parents.clear()  # an interrupt may have left some calls open
        self._gradients.return_to_parameters()
        self._copies.install()
        backward = self._recorder.selection.backward
        named = self._named()
        self._hidden = hidden_parameters([*self._models, *(module for _, module in named)])
        for name, module in named:
            self._names[id(module)] = name
            self._at[name.rpartition(".")[0]] = name
            if isinstance(module, torch.jit.ScriptModule):
                self._hook_scripted()
            else:
                self._hook(module, name)
                self.hooked.append(module)
                self._own_calls.add(name, module)
            if backward and module._parameters and id(module) not in self._opaque:
                self._watch_parameters(name, module._parameters)

    def named(self) -> Iterator[tuple[str, Any]]:
        """The name and the object of each module that has hooks."""
        return ((self._names[id(module)], module) for module in self.hooked)

    def _named(self) -> Sequence[tuple[str, Any]]:
        tree = self.tree.plain(self._models)
        if tree is not None:
            return [(one.title, one.module) for one in tree if not one.is_model]
        named = list(named_below(self._models, self.inside))
        self._opaque = {id(module) for _, module in named if is_opaque(module)}
        return named

    def _watch_parameters(self, module: str, parameters: dict[str, Any]) -> None:
        """Hooks parameters. Parameters without a gradient (frozen or lazy ones) are tried again when the module is
        called."""
        selection = self._recorder.selection
        above = () if selection.everything else self._above(module)
        if not selection.may_want(f"{module}.parameters_grad", above):
            return
        for name, parameter in parameters.items():
            if parameter is None or (module, name) in self._watched or name == FLAT:
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

    def name_of(self, module: int) -> Optional[str]:
        """The name of a module, by its id."""
        return self._names.get(module)

    def remove(self) -> None:
        self._own_calls.report(self.name_of, self._recorder.numbers.has_taken)
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
        """Does the same as register_forward_pre_hook and register_forward_hook (with kwargs, always called), without
        a handle for each of thousands of modules."""
        key = self.key
        module._forward_pre_hooks[key] = partial(type(self)._before, self, name)
        module._forward_pre_hooks_with_kwargs[key] = True
        module._forward_hooks[key] = partial(type(self)._after, self, name)
        module._forward_hooks_with_kwargs[key] = True
        module._forward_hooks_always_called[key] = True

    def _hook_scripted(self) -> None:
        """Scripted modules have no hooks of their own, but torch calls the global ones for them."""
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

    @contextmanager
    def out_of_sight(self) -> Iterator[None]:
        """Removes our hooks from all modules meanwhile: code that is compiled now would have guards on them."""
        key = self.key
        tables = [getattr(module, kind) for module in self.hooked for kind in HOOKS]
        away = [(table, table.pop(key)) for table in tables if key in table]
        try:
            yield
        finally:
            for table, hook in away:
                table[key] = hook

    def take_off(self, is_apart: Callable[[Any], bool]) -> dict[int, tuple[Any, Any]]:
        """Removes the hooks from these modules and those below them, because torch leaves a fused path if it sees a
        hook.

        Returns the hooks by the id of their module; the caller runs them. A global hook under `key` still gets the
        kwargs of these modules.
        """
        key = self.key
        return {
            id(module): (module._forward_pre_hooks.pop(key), module._forward_hooks.pop(key))
            for root in (*self._models, *self.hooked)
            if is_apart(root)
            for module in root.modules()
            if id(module) in self._names and key in module._forward_hooks
        }

    def _before(self, title: str, module: Any, args: Any, kwargs: Any = None) -> None:
        """Torch omits the last argument if an earlier hook called stop()."""
        recorder = self._recorder
        try:
            if recorder.closed or is_traced():
                return
            with _NoTorchFunction():
                if title in self._later and recorder.selection.backward:
                    self._later.discard(title)
                    self._watch_parameters(title, module._parameters)
                self._enter(title, list(recorder.parents), args, kwargs or {})
        except Exception:
            recorder.fault(title, traceback.format_exc())

    def _after(self, title: str, module: Any, args: Any, *kwargs_and_output: Any) -> Any:
        """There may be no kwargs, as in `_before`. Returns None: the output stays as it is."""
        output = kwargs_and_output[-1]
        recorder = self._recorder
        try:
            if recorder.closed or is_traced():
                return None
            with _NoTorchFunction():
                self._leave(title, module, output)
        except Exception:
            recorder.fault(title, traceback.format_exc())
        return None

    def _with_parameters(self, name: str, module: Any, extra: str) -> str:
        compiled = id(module) in self._opaque or module._compiled_call_impl is not None
        if not module._parameters and not compiled and id(module) not in self._hidden:
            return extra
        if compiled:
            extra = ", ".join(filter(None, (extra, breaks_member(graph_breaks(module)))))
        return super()._with_parameters(name, module, extra)

    def _parameters_of(self, module: Any) -> Mapping[str, Any]:
        if id(module) in self._hidden:
            return {name: getattr(module, name) for name in self._hidden[id(module)]}
        parameters: Mapping[str, Any] = module._parameters
        return parameters if parameters and id(module) not in self._opaque else {}
