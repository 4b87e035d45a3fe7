"""Gradients of parameters that no hook sees: they are read from `.grad` after a backward pass.

FSDP computes with other tensors than the parameters and sets their gradients itself. A hook on a parameter of a
compiled model would be compiled. The root of a model has no record, but it may have its own parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import torch
from torch.nn.parameter import is_lazy

from msprobe.collect.probe import Companion
from msprobe.collect.records.recorder import Recorder
from msprobe.pytorch.gradients.call_gradients import Gradients
from msprobe.pytorch.modules.model_tree import ModelTree, uncompiled
from msprobe.pytorch.modules.module_calls import class_of, named_below
from msprobe.pytorch.parallel.flat_parameters import FLAT, parts_by_module

_State = tuple[int, Optional[int]]


class GradientsAfterBackward(Companion):
    """The gradients of one step. `begin` and `end` are called around each backward pass."""

    def __init__(self, recorder: Recorder, gradients: Gradients, tree: ModelTree) -> None:
        self._recorder = recorder
        self._gradients = gradients
        self._tree = tree
        self._owners: list[tuple[str, Mapping[str, Any]]] = []  # the title of a module, its parameters
        self._before: dict[int, _State] = {}

    def install(self, models: Sequence[Any]) -> None:
        if self._recorder.selection.backward:
            tree = self._tree.plain(models)
            if tree is None:
                owners = list(_owners(models))
            else:
                owners = [(one.title, one.module) for one in tree if one.is_model]
                owners += [(one.title, one.module) for one in tree if not one.is_model]
            self._owners = [(title, module._parameters) for title, module in owners]
            self._owners += parts_by_module(owners)

    def _unseen(self) -> Iterator[tuple[str, str, Any]]:
        """(title of the module, name in it, parameter) for each parameter whose gradient reached no hook."""
        came = self._gradients.came
        for title, parameters in self._owners:
            for name, parameter in parameters.items():
                if parameter is not None and id(parameter) not in came and name != FLAT:
                    yield title, name, parameter

    def begin(self) -> None:
        self._before = {
            id(parameter): _state(parameter.grad) for _, _, parameter in self._unseen() if parameter.grad is not None
        }

    def end(self) -> None:
        """The parameters that have a new gradient which no hook saw."""
        if not self._recorder.with_outputs:
            return
        for title, name, parameter in self._unseen():
            gradient = None if is_lazy(parameter) else parameter.grad
            if gradient is not None and self._before.get(id(parameter)) != _state(gradient):
                self._gradients.note_parameter(f"{title}.parameters_grad", name, gradient)
        self._gradients.write_parameters()

    def read_all(self) -> None:
        """A pipeline has run all its microbatches: the gradient of a parameter is their sum."""
        if not self._recorder.with_outputs or self._recorder.closed:
            return
        for title, parameters in self._owners:
            for name, parameter in parameters.items():
                if parameter is None or is_lazy(parameter) or name == FLAT:
                    continue
                if parameter.grad is not None:
                    self._gradients.note_parameter(f"{title}.parameters_grad", name, parameter.grad)
        self._gradients.write_parameters()

    def remove(self) -> None:
        with torch._C.DisableTorchFunction():
            self.begin()  # a backward pass may still follow before the step ends

    def close(self) -> list[str]:
        with torch._C.DisableTorchFunction():
            self.end()
        self._owners = []
        self._before = {}
        return []


def _state(gradient: Any) -> _State:
    """The state that shows whether a gradient was written since: a distributed tensor writes the one inside it, a view
    may have been made anew."""
    inner = getattr(gradient, "_local_tensor", gradient)
    try:
        return id(gradient if gradient._base is None else gradient._base), inner._version
    except RuntimeError:  # an inference tensor counts no versions
        return id(gradient), None


def _owners(models: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """The title of every module, where some are compiled."""
    plain = [uncompiled(model) for model in models]
    for index, model in enumerate(plain):
        if not isinstance(model, torch.jit.ScriptModule):
            start = f"Module.{index}" if len(plain) > 1 else "Module"
            yield f"{start}.{class_of(model)}", model
    for title, module in named_below(plain):
        if module not in plain and not isinstance(module, torch.jit.ScriptModule):
            yield title, module
