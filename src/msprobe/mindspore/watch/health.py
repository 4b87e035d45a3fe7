"""Hooks for outliers of cell outputs, and for the factors of matrix products in low-precision formats."""

from __future__ import annotations

import functools
from typing import Any, Callable

import mindspore
import numpy as np
from mindspore import mint, nn

from msprobe.mindspore.executor import backward_pass, requires_grad
from msprobe.mindspore.header import in_graph_mode
from msprobe.mindspore.watch.cells import float_tensors
from msprobe.mindspore.watch.tensors import dtype_name, floats
from msprobe.watch.health import put_damage, put_outliers, sample_step
from msprobe.watch.recording import Recording
from msprobe.watch.selection import Filter
from msprobe.watch.step_figures import StepFigures
from msprobe.watch.targets import GRADIENT_ROLE, INPUT_ROLE, OUTLIERS, WEIGHT_ROLE, Target, quantised_kind

Array = np.ndarray[Any, Any]
_NOT_PRODUCTS = (nn.Embedding, mint.nn.Embedding)


class HealthHooks:
    """Hooks on cells, installed only during watched steps."""

    def __init__(self, models: list[Any], recording: Recording, guarded: Callable[[Any], Any]) -> None:
        self._recording, self._settings, self._guarded = recording, recording.settings, guarded
        chosen = Filter(recording.settings)
        named = (pair for model in models for pair in model.cells_and_names())
        self._cells = [(name, cell) for name, cell in named if chosen.wants(name) and self._takes(cell)]
        self._handles: list[Any] = []
        self._rows: dict[tuple[Any, ...], int] = {}
        self._found = StepFigures(0)

    def _takes(self, cell: Any) -> bool:
        return True

    def install(self, found: StepFigures) -> None:
        self._found = found
        if not self._handles and not in_graph_mode():
            self._put_hooks()

    def _put_hooks(self) -> None:
        raise NotImplementedError

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def prepare(self, step: int) -> None:
        """The next step is about to begin; every watched step is measured."""

    def finish(self) -> None:
        """The step ends."""

    def _row(self, key: tuple[Any, ...], kind: str, name: str, tensor: Any) -> int:
        row = self._rows.get(key)
        if row is None:
            target = Target(kind, name, len(self._rows), tuple(tensor._shape), dtype_name(tensor))
            row = self._rows[key] = self._recording.row(target)
        return row


class OutlierHooks(HealthHooks):
    """The largest magnitude and the median magnitude of each cell's outputs."""

    def _put_hooks(self) -> None:
        returned = self._guarded(self._returned)
        for name, cell in self._cells:
            self._handles.append(cell.register_forward_hook(without_result(functools.partial(returned, name))))

    def _returned(self, name: str, cell: Any, args: Any, output: Any) -> None:
        if backward_pass() >= 0:
            return
        for number, tensor in enumerate(float_tensors(output)):
            values = floats(tensor)
            if values is not None:
                shown = name if not number else f"{name}.{number}" if name else str(number)
                put_outliers(self._found, self._row((name, number), OUTLIERS, shown, tensor), *_extremes(values))


def _extremes(values: Array) -> tuple[float, float]:
    """The largest magnitude, and the median of the nonzero magnitudes of a sample."""
    sample = np.abs(values.reshape(-1)[:: sample_step(values.size)])
    sample = np.sort(sample[sample > 0])
    return float(np.abs(values).max()), float(sample[(len(sample) - 1) // 2]) if len(sample) else 0.0


class QuantisationHooks(HealthHooks):
    """Weights, inputs and output gradients of the cells that have a weight matrix, in each format."""

    _wanted = False

    def _takes(self, cell: Any) -> bool:
        weight = getattr(cell, "weight", None)
        is_matrix = isinstance(weight, mindspore.Parameter) and len(weight.shape) >= 2
        return is_matrix and not isinstance(cell, _NOT_PRODUCTS)

    def prepare(self, step: int) -> None:
        self._wanted = self._settings.wants_each(step, self._settings.quantisation.every)

    def install(self, found: StepFigures) -> None:
        if not self._wanted:
            self.remove()
            return
        super().install(found)

    def _put_hooks(self) -> None:
        entered, returned = self._guarded(self._entered), self._guarded(self._returned)
        for name, cell in self._cells:
            self._handles.append(cell.register_forward_pre_hook(without_result(functools.partial(entered, name))))
            self._handles.append(cell.register_forward_hook(without_result(functools.partial(returned, name))))

    def _entered(self, name: str, cell: Any, args: Any) -> None:
        if backward_pass() < 0:
            for tensor in list(float_tensors(args))[:1]:
                self._measure(name, INPUT_ROLE, tensor)

    def _returned(self, name: str, cell: Any, args: Any, output: Any) -> None:
        if not requires_grad():
            return
        came = self._guarded(self._came)
        for tensor in list(float_tensors(output))[:1]:
            tensor.register_hook(without_result(functools.partial(came, name)))

    def _came(self, name: str, gradient: Any) -> None:
        if self._handles and gradient is not None:
            self._measure(name, GRADIENT_ROLE, gradient)

    def finish(self) -> None:
        for name, cell in self._cells if self._wanted and self._handles else ():
            self._measure(name, WEIGHT_ROLE, cell.weight)

    def _measure(self, name: str, role: str, tensor: Any) -> None:
        values = floats(tensor)
        for form in self._settings.quantisation.formats if values is not None else ():
            shown = f"{name}.{role}" if name else role
            row = self._row((form, shown), quantised_kind(form), shown, tensor)
            put_damage(values, form, role == WEIGHT_ROLE, self._found, row)


def without_result(act: Callable[..., None]) -> Callable[..., None]:
    """MindSpore reads the code of a hook: it must be a plain function."""

    def hook(*call: Any) -> None:
        act(*call)

    return hook
