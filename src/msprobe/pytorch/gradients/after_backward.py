"""Gradients of parameters that no hook sees come: they are read from `.grad` when a backward pass is over.

FSDP2 computes with other tensors than the parameters and gives those their gradients itself. A hook on a parameter of
a compiled model would be compiled. The root of a model is not recorded, but it may have parameters of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Optional

import torch
from torch.nn.parameter import is_lazy

from msprobe.collect.probe import Companion
from msprobe.collect.records.recorder import Recorder
from msprobe.pytorch.gradients.call_gradients import Gradients
from msprobe.pytorch.modules.module_calls import class_of, named_below

_State = tuple[int, Optional[int]]


class GradientsAfterBackward(Companion):
    """Of one step. `begin` and `end` stand round each backward pass."""

    def __init__(self, recorder: Recorder, gradients: Gradients) -> None:
        self._recorder = recorder
        self._gradients = gradients
        self._parameters: list[tuple[str, str, Any]] = []
        self._before: dict[int, _State] = {}

    def install(self, models: Sequence[Any]) -> None:
        if self._recorder.selection.backward:
            self._parameters = list(_parameters(models))

    def begin(self) -> None:
        came = self._gradients.came
        self._before = {
            id(parameter): _state(parameter.grad)
            for _, _, parameter in self._parameters
            if id(parameter) not in came and parameter.grad is not None
        }

    def end(self) -> None:
        """The parameters that have a new gradient which no hook saw."""
        came = self._gradients.came
        if not self._recorder.with_outputs:
            return
        for record, name, parameter in self._parameters:
            if id(parameter) in came or is_lazy(parameter):
                continue
            gradient = parameter.grad
            if gradient is not None and self._before.get(id(parameter)) != _state(gradient):
                self._gradients.note_parameter(record, name, gradient)
        self._gradients.write_parameters()

    def read_all(self) -> None:
        """A pipeline has run all its microbatches: the gradient of a parameter is what they add up to."""
        if not self._recorder.with_outputs or self._recorder.closed:
            return
        for record, name, parameter in self._parameters:
            if not is_lazy(parameter) and parameter.grad is not None:
                self._gradients.note_parameter(record, name, parameter.grad)
        self._gradients.write_parameters()

    def remove(self) -> None:
        with torch._C.DisableTorchFunction():
            self.begin()  # a backward pass may still come before the step ends

    def close(self) -> list[str]:
        with torch._C.DisableTorchFunction():
            self.end()
        self._parameters = []
        self._before = {}
        return []


def _state(gradient: Any) -> _State:
    """What tells whether it was written since: a distributed tensor writes the one inside it."""
    inner = getattr(gradient, "_local_tensor", gradient)
    try:
        return id(gradient), inner._version
    except RuntimeError:  # an inference tensor counts no versions
        return id(gradient), None


def _parameters(models: Sequence[Any]) -> Iterator[tuple[str, str, Any]]:
    """(record, name in its module, parameter) of all that may need a look."""
    plain = [getattr(model, "_orig_mod", model) for model in models]
    for index, model in enumerate(plain):
        if not isinstance(model, torch.jit.ScriptModule):
            start = f"Module.{index}" if len(plain) > 1 else "Module"
            yield from _own(f"{start}.{class_of(model)}", model)
    for name, module in named_below(plain):
        if module not in plain and not isinstance(module, torch.jit.ScriptModule):
            yield from _own(name, module)


def _own(name: str, module: Any) -> Iterator[tuple[str, str, Any]]:
    for key, parameter in module._parameters.items():
        if parameter is not None:
            yield f"{name}.parameters_grad", key, parameter
