"""The gradients of parameters: a hook on each; the last values are written when the backward pass ends."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from msprobe.collect.gradients.backward_record import BackwardRecord
from msprobe.collect.gradients.call_gradients import BackwardEngine, CallGradients
from msprobe.collect.records.recorder import Recorder
from msprobe.collect.records.values import key_text

_NoTorchFunction = torch._C.DisableTorchFunction
_gradient_edge = torch.autograd.graph.get_gradient_edge
_ENGINE = BackwardEngine(
    running_pass=torch._C._current_graph_task_id,
    when_pass_ends=torch.autograd.Variable._execution_engine.queue_callback,
    differentiates=torch.is_grad_enabled,
    aside=_NoTorchFunction,
)


class ParameterGradients(CallGradients):
    """Records `{module}.parameters_grad` of one step, and distinguishes a recomputation from a pass that makes a
    graph."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder, _ENGINE)
        self._parameters: dict[str, dict[str, str]] = {}
        self._changed: dict[str, None] = {}
        self._watched: list[tuple[Any, Any, Any]] = []
        self._forwards = 0
        self.came: dict[int, int] = {}  # id of a parameter: the forward after which its gradient came
        self._left: list[Any] = []
        self._graph_making: set[int] = set()

    def watch_parameter(self, module: str, name: str, parameter: Any, above: Sequence[str] = ()) -> None:
        """Keeps the last local gradient of a parameter for `{module}.parameters_grad`. `above`: the modules around
        it."""
        record = f"{module}.parameters_grad"
        self._parameters.setdefault(record, {})
        hook = partial(ParameterGradients._take_parameter, self, record, name, id(parameter), above)
        self._watched.append((parameter, hook, parameter.register_hook(hook)))

    def leave_parameters(self) -> None:
        """stop(): removes the hooks from parameters. A graph that waits for its backward keeps our hook, on the node
        that receives the gradient of the parameter. Without a graph, that node is freed at once."""
        with torch.inference_mode(False), torch.enable_grad(), _NoTorchFunction():
            for parameter, hook, handle in self._watched:
                handle.remove()
                has_come = self.came.get(id(parameter)) == self._forwards  # since the last forward
                if parameter.requires_grad and not has_come:
                    node = _gradient_edge(parameter).node
                    self._left.append(node.register_prehook(_on_first(hook)))
        self._watched.clear()

    def drop_parameters(self) -> None:
        """Removes all hooks from parameters, and from the nodes that receive their gradients."""
        for _, _, handle in self._watched:
            handle.remove()
        self._watched.clear()
        self.return_to_parameters()

    def return_to_parameters(self) -> None:
        """start() again, or the end of the step: removes the hooks on those nodes."""
        for handle in self._left:
            handle.remove()
        self._left.clear()

    def close(self) -> None:
        self.return_to_parameters()
        super().close()

    def _take_parameter(self, record: str, name: str, parameter: int, above: Sequence[str], gradient: Any) -> None:
        recorder = self._recorder
        if recorder.closed or not self._with_outputs:
            return
        if not recorder.selection.everything and not recorder.selection.enter(record, above):
            return
        try:
            with _NoTorchFunction():
                self.came[parameter] = self._forwards
                self._note_parameter(record, name, gradient)
                number = self.running_pass()
                if number not in self._pending:
                    self._begin_pass(number)
        except Exception:
            recorder.fault(record, traceback.format_exc())

    def note_parameter(self, record: str, name: str, gradient: Any) -> None:
        """Notes the gradient of a parameter that none of our hooks has seen."""
        selection = self._recorder.selection
        if selection.everything or selection.enter(record, ()):
            self._note_parameter(record, name, gradient)

    def _note_parameter(self, record: str, name: str, gradient: Any) -> None:
        path = self._recorder.tensors_path(record, "")[:-1]
        text = self._recorder.values.value(gradient, f"{path}.{name}" if path else "")
        self._parameters.setdefault(record, {})[name] = f"{key_text(name)}: [{text}]"
        self._changed[record] = None

    def write_parameters(self) -> None:
        for name in self._changed:
            self._recorder.write_record(name, None, ", ".join(self._parameters[name].values()))
        self._changed.clear()

    def _begin_pass(self, number: int) -> dict[int, BackwardRecord]:
        if torch.is_grad_enabled():
            self._graph_making.add(number)
        return super()._begin_pass(number)

    def recomputes(self) -> bool:
        """In a backward pass, gradients are on for a recomputation (checkpointing), or because the pass itself makes
        a graph (create_graph)."""
        return torch.is_grad_enabled() and self.running_pass() not in self._graph_making


def _on_first(hook: Any) -> Any:
    def prehook(grads: Any) -> None:
        if grads[0] is not None:
            hook(grads[0])

    return prehook
