"""Hooks for outliers of module outputs, and for the factors of matrix products in low-precision formats."""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch

from msprobe.pytorch.watch.modules import _floats, _graph_task, _is_compiling, _named
from msprobe.pytorch.watch.tensors import local
from msprobe.watch.health import put_damage, put_outliers, sample_step
from msprobe.watch.recording import Recording
from msprobe.watch.selection import Filter
from msprobe.watch.step_figures import StepFigures
from msprobe.watch.targets import GRADIENT_ROLE, INPUT_ROLE, OUTLIERS, WEIGHT_ROLE, Target, quantised_kind

_NOT_PRODUCTS = (torch.nn.Embedding, torch.nn.EmbeddingBag)


class OutlierHooks:
    """The largest magnitude and the median magnitude of each module's outputs, installed only during watched steps."""

    def __init__(self, models: list[Any], recording: Recording, guarded: Callable[[Any], Any]) -> None:
        self._recording, self._guarded = recording, guarded
        chosen = Filter(recording.settings)
        self._modules = [(name, module) for name, module in _named(models) if chosen.wants(name)]
        self._handles: list[Any] = []
        self._rows: dict[tuple[str, int], int] = {}
        self._measured: list[tuple[int, Any]] = []
        self._found = StepFigures(0)

    def prepare(self, step: int) -> None:
        """Every watched step is measured."""

    def install(self, found: StepFigures) -> None:
        self._found, self._measured = found, []
        if not self._handles:
            returned = self._guarded(self._returned)
            for name, module in self._modules:
                self._handles.append(module.register_forward_hook(functools.partial(returned, name)))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _returned(self, name: str, module: Any, args: Any, output: Any) -> None:
        if _is_compiling() or _graph_task() >= 0:
            return
        for number, tensor in enumerate(_floats(output)):
            if not tensor.is_meta and tensor.numel():
                row = self._rows.get((name, number))
                if row is None:
                    shown = name if not number else f"{name}.{number}" if name else str(number)
                    shape, dtype = tuple(tensor.shape), str(tensor.dtype).partition(".")[2]
                    row = self._recording.row(Target(OUTLIERS, shown, len(self._rows), shape, dtype))
                    self._rows[name, number] = row
                self._measured.append((row, largest_and_median(tensor)))

    def finish(self) -> None:
        """The step ends: waits for the devices."""
        for row, numbers in self._measured:
            put_outliers(self._found, row, *numbers.tolist())
        self._measured = []


@torch.no_grad()
def largest_and_median(tensor: Any) -> Any:
    """Two numbers on the same device: the largest magnitude, and the median of the nonzero magnitudes of a sample."""
    values = local(tensor).detach()
    values = values.abs() if values.is_complex() else values
    flat = values.permute(sorted(range(values.dim()), key=lambda axis: -values.stride(axis))).reshape(-1)
    low, high = torch.aminmax(flat)
    sample = flat[:: sample_step(flat.numel())].abs().float()
    median = torch.where(sample > 0, sample, float("nan")).nanmedian().nan_to_num(0.0)
    return torch.stack([torch.maximum(-low, high).float(), median])


class QuantisationHooks:
    """Weights, inputs and output gradients of the modules that have a weight matrix, in each format."""

    def __init__(self, models: list[Any], recording: Recording, guarded: Callable[[Any], Any]) -> None:
        settings = recording.settings
        self._recording, self._settings, self._guarded = recording, settings, guarded
        self._formats = settings.quantisation.formats
        chosen = Filter(settings)
        self._modules = [(name, one) for name, one in _named(models) if _is_product(one) and chosen.wants(name)]
        self._handles: list[Any] = []
        self._rows: dict[tuple[str, str], int] = {}
        self._found = StepFigures(0)
        self._wanted = False

    def prepare(self, step: int) -> None:
        self._wanted = self._settings.wants_each(step, self._settings.quantisation.every)

    def install(self, found: StepFigures) -> None:
        self._found = found
        if not self._wanted:
            self.remove()
        elif not self._handles:
            entered, returned = self._guarded(self._entered), self._guarded(self._returned)
            for name, module in self._modules:
                self._handles.append(module.register_forward_pre_hook(functools.partial(entered, name)))
                self._handles.append(module.register_forward_hook(functools.partial(returned, name)))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _entered(self, name: str, module: Any, args: Any) -> None:
        if not _is_compiling() and _graph_task() < 0:
            for tensor in _floats(args)[:1]:
                self._measure(name, INPUT_ROLE, tensor)

    def _returned(self, name: str, module: Any, args: Any, output: Any) -> None:
        if not _is_compiling():
            for tensor in _floats(output)[:1]:
                if tensor.requires_grad:
                    tensor.register_hook(functools.partial(self._guarded(self._came), name))

    def _came(self, name: str, gradient: Any) -> None:
        if self._handles and gradient is not None:
            self._measure(name, GRADIENT_ROLE, gradient)

    def finish(self) -> None:
        """The step ends: reads the weights."""
        for name, module in self._modules if self._wanted else ():
            self._measure(name, WEIGHT_ROLE, module.weight)

    def _measure(self, name: str, role: str, tensor: Any) -> None:
        tensor = local(tensor).detach()
        if tensor.is_meta or not tensor.numel() or tensor.is_complex():
            return
        values = tensor.to("cpu", torch.float32).numpy()
        for form in self._formats:
            put_damage(values, form, role == WEIGHT_ROLE, self._found, self._row(form, name, role, tensor))

    def _row(self, form: str, name: str, role: str, tensor: Any) -> int:
        key = (form, f"{name}.{role}" if name else role)
        row = self._rows.get(key)
        if row is None:
            shape, dtype = tuple(tensor.shape), str(tensor.dtype).partition(".")[2]
            row = self._rows[key] = self._recording.row(
                Target(quantised_kind(form), key[1], len(self._rows), shape, dtype)
            )
        return row


def _is_product(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, torch.nn.Parameter) and weight.dim() >= 2 and not isinstance(module, _NOT_PRODUCTS)
