"""Inputs and outputs of cells, and the gradients of these tensors, in PyNative mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable

from mindspore._c_expression import TensorPy

from msprobe.mindspore.executor import backward_pass, requires_grad
from msprobe.mindspore.header import in_graph_mode
from msprobe.mindspore.watch.tensors import dtype_name, is_float, read
from msprobe.watch.gauge import Outside
from msprobe.watch.recording import Recording
from msprobe.watch.selection import Filter
from msprobe.watch.step_figures import StepFigures
from msprobe.watch.targets import INPUT, INPUT_GRAD, OUTPUT, OUTPUT_GRAD, Target

_GRADIENTS = {INPUT: INPUT_GRAD, OUTPUT: OUTPUT_GRAD}


class CellHooks:
    """Hooks on all selected cells, installed only during watched steps."""

    def __init__(
        self, models: list[Any], recording: Recording, outside: Outside, guarded: Callable[[Any], Any]
    ) -> None:
        settings = recording.settings
        self._kinds = frozenset(settings.targets) & {INPUT, OUTPUT, INPUT_GRAD, OUTPUT_GRAD}
        self._recording, self._outside, self._guarded = recording, outside, guarded
        chosen = Filter(settings)
        named = (pair for model in models for pair in model.cells_and_names()) if self._kinds else ()
        self._cells = [(name, cell) for name, cell in named if chosen.wants(name)]
        self._rows: dict[tuple[str, str, int], int] = {}
        self._handles: list[Any] = []
        self._found = StepFigures(0)
        self._position = 0

    def install(self, found: StepFigures) -> None:
        self._found = found
        self._position = 0
        if self._handles or in_graph_mode():
            return
        for name, cell in self._cells:
            if self._kinds & {INPUT, INPUT_GRAD}:
                self._handles.append(cell.register_forward_pre_hook(self._entered(name)))
            if self._kinds & {OUTPUT, OUTPUT_GRAD}:
                self._handles.append(cell.register_forward_hook(self._returned(name)))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _entered(self, name: str) -> Callable[..., None]:
        saw = self._guarded(self._saw)

        def entered(cell: Any, arguments: Any) -> None:
            saw(INPUT, name, arguments)

        return entered

    def _returned(self, name: str) -> Callable[..., None]:
        saw = self._guarded(self._saw)

        def returned(cell: Any, arguments: Any, output: Any) -> None:
            saw(OUTPUT, name, output)

        return returned

    def _saw(self, kind: str, name: str, value: Any) -> None:
        recomputed = backward_pass() >= 0
        for number, tensor in enumerate(float_tensors(value)):
            if kind in self._kinds and not recomputed:
                self._put(self._row(kind, name, number, tensor), tensor)
            if _GRADIENTS[kind] in self._kinds and requires_grad():
                self._follow(self._row(_GRADIENTS[kind], name, number, tensor), tensor)

    def _put(self, row: int, tensor: Any) -> None:
        read(tensor, self._outside, self._found, row, joined=True)

    def _follow(self, row: int, tensor: Any) -> None:
        put = self._guarded(self._put)

        def came(gradient: Any) -> None:
            if self._handles and gradient is not None:
                put(row, gradient)

        tensor.register_hook(came)

    def _row(self, kind: str, name: str, number: int, tensor: Any) -> int:
        key = (kind, name, number)
        row = self._rows.get(key)
        if row is None:
            self._position += 1
            shown = name if not number else f"{name}.{number}" if name else str(number)
            target = Target(kind, shown, self._position, tuple(tensor._shape), dtype_name(tensor))
            row = self._rows[key] = self._recording.row(target)
        return row


def float_tensors(value: Any) -> Iterator[Any]:
    """The tensors of floating-point numbers in a value."""
    if isinstance(value, TensorPy):
        if is_float(value):
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from float_tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from float_tensors(item)
