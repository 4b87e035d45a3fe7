"""Parameters, their gradients and their optimizer state.

Gradients are the arguments of the optimizer: after reduction and clipping. In graph mode msprobe cannot see this call:
it watches weights, optimizer state and the loss there, and logs this once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable

from mindspore import Parameter as MindSporeParameter
from mindspore import nn

from msprobe.collect import notices
from msprobe.mindspore.executor import EXECUTOR
from msprobe.mindspore.header import in_graph_mode
from msprobe.mindspore.watch.tensors import dtype_name, locate, read
from msprobe.stats.samples import Place
from msprobe.watch.gauge import Outside, Samples
from msprobe.watch.recording import Recording, put_updates
from msprobe.watch.selection import Filter
from msprobe.watch.step_figures import StepFigures
from msprobe.watch.targets import GRAD, GRAD_BEFORE_CLIP, GRAD_LOCAL, LEARNING_RATE, UPDATE, WEIGHT, Target

NAMES = {
    "moment1": "exp_avg",
    "moments1": "exp_avg",
    "moment2": "exp_avg_sq",
    "moments2": "exp_avg_sq",
    "moments": "momentum_buffer",
    "accum": "momentum_buffer",
}
"""From MindSpore's names of optimizer state to PyTorch's: the same run has the same targets on both."""


class Parameter:
    """One watched parameter with the rows of its figures."""

    __slots__ = ("name", "position", "rows", "tensor")

    def __init__(self, name: str, tensor: Any, position: int) -> None:
        self.name, self.tensor, self.position = name, tensor, position
        self.rows: dict[str, int] = {}

    def row(self, kind: str, recording: Recording) -> int:
        row = self.rows.get(kind)
        if row is None:
            target = Target(kind, self.name, self.position, tuple(self.tensor._shape), dtype_name(self.tensor))
            row = self.rows[kind] = recording.row(target)
        return row


class Parameters:
    """All watched parameters of the models."""

    def __init__(self, models: list[Any], recording: Recording, outside: Outside) -> None:
        self._recording, self._outside = recording, outside
        self._samples = Samples()
        chosen = Filter(recording.settings)
        named = {id(one): one for model in models for one in model.get_parameters()}
        self.all = [
            Parameter(tensor.name, tensor, position)
            for position, tensor in enumerate(named.values())
            if chosen.wants(tensor.name)
        ]
        chosen.report()
        self.by_id = {id(one.tensor): one for one in self.all}
        recording.trainable = frozenset(one.name for one in self.all if one.tensor.requires_grad)

    def put(self, one: Parameter, kinds: Sequence[str], tensor: Any, found: StepFigures) -> None:
        """Reads a tensor once, for all its kinds."""
        first, *others = (one.row(kind, self._recording) for kind in kinds)
        read(tensor, self._outside, found, first)
        for row in others:
            if first in found:
                found.copy([first], [row])

    def read_weights(self, found: StepFigures) -> None:
        for one in self.all:
            self.put(one, (WEIGHT,), one.tensor, found)

    def sample(self, unchanged: bool) -> None:
        """Remembers weights before a step. `unchanged`: they are still those that `read_updates` saw."""
        if not unchanged:
            self._samples.take(self._located())

    def _located(self) -> list[Place]:
        """Number, address, dtype code and size of the parameters in host memory."""
        places = ((number, locate(one.tensor)) for number, one in enumerate(self.all) if one.tensor.requires_grad)
        return [(number, *place) for number, place in places if place is not None]

    def read_updates(self, found: StepFigures) -> None:
        numbers, moved, weights = self._samples.changes(self._located())
        put_updates(found, [self.all[number].row(UPDATE, self._recording) for number in numbers], moved, weights)

    def read_state(self, optimizers: Iterable[Any], found: StepFigures) -> None:
        for optimizer in optimizers:
            for name, state, parameter in _state_of(optimizer):
                one = self.by_id.get(id(parameter))
                if one is not None and tuple(state._shape) == tuple(parameter._shape):
                    self.put(one, (f"state.{NAMES.get(name, name)}",), state, found)


def _state_of(optimizer: Any) -> Iterator[tuple[str, Any, Any]]:
    """Name, tensor and parameter: an optimizer keeps state in tuples that are as long as the list of parameters."""
    parameters = tuple(getattr(optimizer, "parameters", ()))
    for name, value in vars(optimizer).items():
        if isinstance(value, tuple) and len(value) == len(parameters) and name not in ("parameters", "_parameters"):
            for state, parameter in zip(value, parameters):
                if isinstance(state, MindSporeParameter) and state is not parameter:
                    yield name, state, parameter


class OptimizerHooks:
    """Calls `before` with the gradients when an optimizer is called."""

    def __init__(self, optimizers: list[Any], before: Callable[[Any, Any], None]) -> None:
        self.optimizers = optimizers
        self._before = before
        self._handles: list[Any] = []
        if in_graph_mode():
            notices.warn_once(
                "MindSpore is in graph mode: msprobe watches weights, optimizer state and the loss, but not gradients "
                "and cells."
            )
        else:
            self._handles = [one.register_forward_pre_hook(self._called) for one in optimizers]

    @property
    def sees_steps(self) -> bool:
        return bool(self._handles)

    def _called(self, optimizer: Any, arguments: Any) -> None:
        self._before(optimizer, arguments[0] if arguments else ())

    def learning_rates(self) -> dict[str, float]:
        rates: dict[str, float] = {}
        for optimizer in self.optimizers:
            rate = getattr(optimizer, "learning_rate", None)
            if isinstance(rate, (list, tuple)):  # groups with their own rates
                listed = list(rate)
            elif isinstance(rate, nn.Cell):
                listed = [_scheduled(rate, optimizer)]
            else:
                listed = [rate]
            for one in listed:
                if one is not None and not isinstance(one, nn.Cell):
                    name = f"{LEARNING_RATE}.{len(rates)}" if rates else LEARNING_RATE
                    rates[name] = float(one.asnumpy()) if hasattr(one, "asnumpy") else float(one)
        return rates

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


def _scheduled(schedule: Any, optimizer: Any) -> Any:
    """The rate of a schedule at the optimizer's present step; a table of rates is indexed, others are called."""
    step = int(optimizer.global_step.asnumpy().reshape(-1)[0])
    table: Any = getattr(schedule, "learning_rate", None)
    if hasattr(table, "asnumpy"):
        values = table.asnumpy().reshape(-1)
        return float(values[min(max(step - 1, 0), len(values) - 1)])
    return None


class DifferentiationHook:
    """Gradients as differentiation returns them: before clipping, and before the reduction of a gradient reducer."""

    def __init__(self, parameters: Parameters, targets: Iterable[str], guarded: Callable[[Any], Any]) -> None:
        self._parameters = parameters
        self._kinds = [kind for kind in (GRAD_LOCAL, GRAD_BEFORE_CLIP) if kind in targets]
        self._take_guarded = guarded(self._take)
        self._original: Any = None
        self._ours: Any = None
        self._found = StepFigures(0)

    def install(self, found: StepFigures) -> None:
        self._found = found
        if self._original is not None or not self._kinds or in_graph_mode():
            return
        original = self._original = EXECUTOR.grad

        def grad(executor: Any, function: Any, operation: Any, weights: Any, *rest: Any) -> Any:
            result = original(executor, function, operation, weights, *rest)
            self._take_guarded(operation, weights, result)
            return result

        self._ours = EXECUTOR.grad = grad

    def remove(self) -> None:
        if self._original is not None and EXECUTOR.grad is self._ours:
            EXECUTOR.grad = self._original
            self._original = None

    def _take(self, operation: Any, weights: Any, result: Any) -> None:
        if not operation.get_by_list or weights is None:
            return
        after_inputs = operation.get_all or getattr(operation, "get_by_position", False)
        gradients = result[1] if after_inputs else result
        pairs = zip(weights, gradients) if isinstance(weights, (list, tuple)) else [(weights, gradients)]
        for parameter, gradient in pairs:
            one = self._parameters.by_id.get(id(parameter))
            if one is not None and gradient is not None:
                self._parameters.put(one, self._kinds, gradient, self._found)


def gradients_of(optimizer: Any, gradients: Any, parameters: Parameters, found: StepFigures) -> None:
    """The gradients that an optimizer is called with, in the order of its parameters."""
    for parameter, gradient in zip(optimizer.parameters, gradients):
        one = parameters.by_id.get(id(parameter))
        if one is not None and hasattr(gradient, "_dtype"):
            parameters.put(one, (GRAD,), gradient, found)
