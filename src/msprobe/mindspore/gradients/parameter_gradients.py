"""The gradients of parameters: what MindSpore returns when a function is differentiated.

Every way to differentiate ends in one call of the executor, which returns the gradients of the requested weights. They
are recorded there: after hooks of the user, before any reduction over ranks. Hooks on the parameters would work too,
but removing them waits for the runtime and is impossible after an operator has failed.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence
from typing import Any, Callable, Optional

from mindspore._c_expression import TensorPy

from msprobe.collect.records.recorder import Recorder
from msprobe.collect.records.values import quoted
from msprobe.mindspore.executor import EXECUTOR


class ParameterGradients:
    """Records `{Cell}.parameters_grad` of one step, for the watched parameters."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._places: dict[int, tuple[str, str]] = {}
        self._above: dict[str, Sequence[str]] = {}  # record -> the Cells around its Cell
        self._original: Optional[Callable[..., Any]] = None
        self._depth = 0

    def watch(self, cell: str, parameters: dict[str, Any], above: Sequence[str]) -> None:
        """Parameters of one Cell, by their names in it. A shared parameter belongs to its first Cell. `above` are the
        Cells around it."""
        record = f"{cell}.parameters_grad"
        self._above[record] = above
        selection = self._recorder.selection
        if parameters and selection.outputs and selection.may_want(record, above):
            for name, parameter in parameters.items():
                self._places.setdefault(id(parameter), (record, name))

    def install(self) -> None:
        """Records until `remove`: the backward may come after the hooks of the forward were removed."""
        if self._original is not None or not self._places:
            return
        original = self._original = EXECUTOR.grad

        def grad(executor: Any, function: Any, operation: Any, weights: Any, *rest: Any) -> Any:
            self._depth += 1
            try:
                result = original(executor, function, operation, weights, *rest)
            finally:
                self._depth -= 1
            if not self._depth and not self._recorder.closed:
                self._take(operation, weights, result)
            return result

        EXECUTOR.grad = grad

    def remove(self) -> None:
        if self._original is not None:
            EXECUTOR.grad = self._original
            self._original = None

    def _take(self, operation: Any, weights: Any, result: Any) -> None:
        """`result` has the gradients of the weights, or (of the inputs, of the weights), or of the inputs alone."""
        recorder = self._recorder
        try:
            if not operation.get_by_list or weights is None:
                return
            after_inputs = operation.get_all or getattr(operation, "get_by_position", False)
            gradients = result[1] if after_inputs else result
            pairs = [(weights, gradients)] if isinstance(weights, TensorPy) else zip(weights, gradients)
            self._keep(pairs)
        except Exception:
            recorder.fault("parameters_grad", traceback.format_exc())

    def _keep(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        recorder, selection = self._recorder, self._recorder.selection
        found: dict[str, list[tuple[str, Any]]] = {}
        for parameter, gradient in pairs:
            place = self._places.get(id(parameter))
            if place is not None and gradient is not None:
                found.setdefault(place[0], []).append((place[1], gradient))
        for record, members in found.items():
            if not selection.enter(record, self._above[record]):
                continue  # a scope has ended
            texts = [
                f"{quoted(name)}: [{recorder.values.value(gradient, recorder.tensors_path(record, name))}]"
                for name, gradient in (members if recorder.with_outputs else ())
            ]
            recorder.write_record(record, None, ", ".join(texts))
