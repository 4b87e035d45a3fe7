"""What a step does to the parameters and buffers of the model: each before and after it, whichever class changes them.

An optimizer of torch reports its steps, so its parameters are read when the first step begins, and again at stop(). An
update by hand and an optimizer of another library report nothing. They are found at stop(): a parameter has changed
since the first backward pass. Its old value is then the one that msprobe has seen in the forward. A parameter that
no forward has shown (a moving average of the weights) has changed if it was written after start().

Texts are kept, never tensors, except the parameters themselves from start() to stop().
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Optional

from torch.nn.parameter import is_lazy

from msprobe.collect.records.recorder import Recorder
from msprobe.collect.records.values import key_text
from msprobe.pytorch.tensors.tensor_text import KnownText, TensorState, TensorTexts, state_of, storage_of

NamedTensors = Iterable[tuple[str, Any]]


@dataclass
class _Parameter:
    """One parameter between start() and stop()."""

    name: str
    tensor: Any
    begun: Optional[TensorState] = None  # at start()
    state: Optional[TensorState] = None
    known: Optional[KnownText] = None  # its text in the forward
    before: Optional[str] = None
    gradient: str = "null"
    stepped: bool = False  # an optimizer of torch has it
    waits: bool = False  # the closure of the optimizer computes its gradient


class ParameterUpdates:
    """The updates of one step, between each start() and stop()."""

    def __init__(self, recorder: Recorder, texts: TensorTexts) -> None:
        self._recorder = recorder
        self._texts = texts
        self._parameters: dict[int, _Parameter] = {}
        self._storages: dict[int, _Parameter] = {}
        self._buffers: dict[str, tuple[Optional[TensorState], str]] = {}
        self._optimizer_ran = False
        self._backward_ended = False

    def begin(self, parameters: NamedTensors) -> None:
        """start() with the parameters of the model."""
        for name, parameter in parameters:
            if not is_lazy(parameter):
                self._parameters.setdefault(id(parameter), _Parameter(name, parameter, state_of(parameter)))
        self._texts.follow(self._parameters)

    def add_buffer(self, name: str, buffer: Any, text: str) -> None:
        """A buffer of the model when the step begins."""
        self._buffers[name] = (state_of(buffer), text)

    def begin_backward(self) -> None:
        """A backward pass begins: the forward has shown the values of the parameters."""
        if not self._backward_ended:
            for parameter in self._parameters.values():
                if parameter.before is None:
                    parameter.state = state_of(parameter.tensor)
                    parameter.known = self._texts.known(parameter.tensor)

    def end_backward(self) -> bool:
        """A backward pass has ended. Returns whether `note_write` must be called for each write from now on."""
        self.take_late_gradients()
        if self._backward_ended or self._optimizer_ran:
            return False
        self._backward_ended = True
        for parameter in self._parameters.values():
            tensor = parameter.tensor
            if parameter.known is None and tensor.grad is not None and tensor.is_cpu:
                parameter.state = state_of(tensor)
                text = self._recorder.values.value(tensor, self._path(parameter.name, "before"))
                parameter.known = KnownText(text, 0, [])
            storage = storage_of(tensor) if self._texts.sees_writes else None
            if storage is not None:
                self._storages[storage] = parameter
        return bool(self._storages)

    def take_late_gradients(self) -> None:
        """Reads the gradients that the closure of an optimizer has just computed or clipped."""
        for parameter in self._parameters.values():
            if parameter.waits and state_of(parameter.tensor) == parameter.state:
                self._take_gradient(parameter)

    def begin_step(self, parameters: NamedTensors, has_closure: bool) -> None:
        """A step of an optimizer begins, which has these parameters."""
        self._optimizer_ran = True
        for name, tensor in parameters:
            parameter = self._parameters.setdefault(id(tensor), _Parameter(name, tensor))
            if parameter.stepped or is_lazy(tensor):
                continue
            parameter.stepped = True
            if parameter.before is None:
                known = self._texts.known(tensor)
                path = self._path(parameter.name, "before")
                value = self._recorder.values.value
                parameter.before = value(tensor, path) if known is None else self._texts.text_of(known, path)
                parameter.state = state_of(tensor)
                parameter.waits = has_closure
                self._take_gradient(parameter)
            elif state_of(tensor) == parameter.state:
                self._take_gradient(parameter)  # a call might have written it, but did not: later passes added to this

    def note_write(self, tensor: Any) -> None:
        """A call has written this memory, or may write it later."""
        parameter = self._storages.get(storage_of(tensor) or 0)
        if parameter is not None and parameter.before is None and parameter.known is not None:
            parameter.before = self._texts.text_of(parameter.known, self._path(parameter.name, "before"))
            self._take_gradient(parameter)

    def end(self, buffers: NamedTensors) -> str:
        """stop(), with the buffers of the model: the members of the event, "" if nothing has changed."""
        self._texts.follow({})
        parameters, changed = list(self._changed_parameters()), list(self._changed_buffers(buffers))
        self._parameters, self._storages = {}, {}
        self._optimizer_ran = self._backward_ended = False
        if not parameters and not changed:
            return ""
        more = f', "buffers": {{{", ".join(changed)}}}' if changed else ""
        return f'"parameters": {{{", ".join(parameters)}}}{more}'

    def _changed_parameters(self) -> Iterator[str]:
        for parameter in self._parameters.values():
            changed = self._has_changed(parameter)
            if not changed and not parameter.stepped:
                continue
            if parameter.before is None and parameter.known is not None:
                parameter.before = self._texts.text_of(parameter.known, self._path(parameter.name, "before"))
                self._take_gradient(parameter)
            after = self._recorder.values.value(parameter.tensor, self._path(parameter.name, "after"))
            before, name = parameter.before or "null", key_text(parameter.name)
            yield f'{name}: {{"before": {before}, "gradient": {parameter.gradient}, "after": {after}}}'

    def _has_changed(self, parameter: _Parameter) -> bool:
        """Whether a parameter may have another value than before.

        Code outside of torch may write it without a new version. Where that is possible and a cached text would be
        used, the parameter is measured.
        """
        tensor = parameter.tensor
        if parameter.before is None and parameter.known is None:  # nothing has shown its value
            now, begun = state_of(tensor), parameter.begun
            return now is not None and begun is not None and now[1] == begun[1] and now[0] != begun[0]
        if state_of(tensor) != parameter.state:
            return True
        if parameter.stepped:
            known = self._texts.cached(tensor) if parameter.gradient != "null" else None
        else:
            known = None if self._optimizer_ran or tensor.grad is None else parameter.known
        return known is not None and tensor.is_cpu and self._texts.differs(tensor, known)

    def _changed_buffers(self, buffers: NamedTensors) -> Iterator[str]:
        for name, buffer in buffers:
            state, before = self._buffers.get(name, (None, ""))
            now = state_of(buffer)
            if not before or (now == state and not buffer.is_floating_point()):
                continue
            after = self._recorder.values.value(buffer, self._path(name, "after"))
            if now != state or _figures(after) != _figures(before):
                self._buffers[name] = (now, after)
                yield f'{key_text(name)}: {{"before": {before}, "after": {after}}}'

    def _take_gradient(self, parameter: _Parameter) -> None:
        gradient, path = parameter.tensor.grad, self._path(parameter.name, "gradient")
        parameter.gradient = "null" if gradient is None else self._recorder.values.value(gradient, path)

    def _path(self, name: str, which: str) -> str:
        """An update is no call that a filter can name: it has files only if nothing is left out."""
        return f"update.{name}.{which}" if self._recorder.selection.saves_everything else ""


def _figures(text: str) -> str:
    """The text of a tensor up to its file and numbers, which change although the value does not."""
    return text.partition(', "data_name"')[0].partition(', "value_id"')[0].partition(', "memory"')[0].rstrip("}")
