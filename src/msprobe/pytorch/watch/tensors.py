"""Measures torch tensors. A tensor in host memory is read in place. On a device torch computes the figures, and one
copy at the end of the step moves all of them to the host."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch

from msprobe.collect import notices
from msprobe.frameworks.pytorch.tensors import CODES
from msprobe.pytorch.tensors.tensor_text import EXCHANGE
from msprobe.stats import gauge as write_figures
from msprobe.stats.samples import SAMPLE
from msprobe.watch import gauge
from msprobe.watch.step_figures import StepFigures
from msprobe.watch.targets import Figures

_HEADS = {dtype: (code, "") for dtype, code in CODES.items()}
_strided = torch.strided
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def local(tensor: Any) -> Any:
    """The part of a DTensor that this rank has; any other tensor as it is."""
    return tensor if type(tensor) in _PLAIN else getattr(tensor, "_local_tensor", tensor)


def shard_of(tensor: Any) -> str:
    """Which part of a DTensor this rank has; "" if complete. Ranks with the same text have the same part."""
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return ""
    coordinate = tensor.device_mesh.get_coordinate() or ()
    parts = [
        f"{placement.dim}:{index}/{tensor.device_mesh.size(dim)}"
        for dim, (placement, index) in enumerate(zip(placements, coordinate))
        if placement.is_shard()
    ]
    return ",".join(parts)


class Gauge:
    """Measures tensors; `resolve` finishes those on a device."""

    def __init__(self, outside: Optional[tuple[float, float]]) -> None:
        self._outside = outside
        self._pending: list[tuple[StepFigures, int, Any]] = []

    def read_all(self, tensors: list[Any], found: StepFigures, rows: list[int]) -> None:
        """Writes the figures of tensors into their rows, now or in `resolve`; skips None."""
        if rows:
            table = found.reserve(max(rows) + 1)
            for place in write_figures(tensors, rows, table, _HEADS, EXCHANGE, _strided, self._outside):
                self._read_other(tensors[place], found, rows[place], False)

    def read(self, tensor: Any, found: StepFigures, row: int, joined: bool = False) -> None:
        """Measures one tensor. `joined` combines it with the figures that the row already has."""
        before = found.get(row) if joined else None
        table = found.table if row < len(found.table) else found.reserve(row + 1)
        if write_figures([tensor], [row], table, _HEADS, EXCHANGE, _strided, self._outside):
            self._read_other(tensor, found, row, joined)
        elif before is not None:
            found[row] = gauge.combine(before, found[row])

    def _read_other(self, tensor: Any, found: StepFigures, row: int, joined: bool) -> None:
        """A tensor that the kernel cannot read as it is: a DTensor, sparse, negated, on a device."""
        tensor = local(tensor)
        code = CODES.get(tensor.dtype)
        if code is None:
            notices.warn_once(f"tensors of dtype {tensor.dtype} are not watched: msprobe has no statistics for them.")
            return
        if tensor.layout is not _strided:
            tensor = tensor.detach().coalesce()._values() if tensor.is_sparse else tensor.detach().to_dense()
        if not tensor.is_cpu:
            if not tensor.is_meta:
                self._pending.append((found, row, on_device(tensor, self._outside)))
            return
        if tensor.is_neg():
            tensor = tensor.detach().resolve_neg()
        address = tensor.data_ptr()
        if address:
            shape, strides = tuple(tensor.shape), tensor.stride()
            gauge.read_memory(address, code, shape, strides, self._outside, found, row, joined)

    def resolve(self) -> None:
        """Waits once for the devices."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        for device in {entry[2].device for entry in pending}:
            mine = [entry for entry in pending if entry[2].device == device]
            numbers = torch.stack([entry[2] for entry in mine]).cpu().tolist()
            for (found, row, _), values in zip(mine, numbers):
                figures = Figures(*values)
                found[row] = gauge.combine(found[row], figures) if row in found else figures


@torch.no_grad()
def on_device(tensor: Any, outside: Optional[tuple[float, float]]) -> Any:
    """The nine figures as one float32 tensor on the same device, computed without waiting."""
    values = tensor.detach()
    values = values.abs() if values.is_complex() else values
    values = values if values.dtype in (torch.float32, torch.float64) else values.float()
    count = max(values.numel(), 1)
    size = values.abs()
    nothing = values.new_tensor(math.nan)
    under = over = nothing
    if outside is not None:
        under = ((size < outside[0]) & (size > 0)).sum() / count
        over = (size >= outside[1]).sum() / count
    figures = [
        torch.linalg.vector_norm(values),
        values.max(),
        values.min(),
        values.mean(),
        torch.isnan(values).sum(),
        torch.isinf(values).sum(),
        (values == 0).sum() / count,
        under,
        over,
    ]
    return torch.stack([figure.float() for figure in figures])


@torch.no_grad()
def device_sample(tensor: Any) -> Any:
    """A copy of some elements of a parameter, on its device."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // SAMPLE)][:SAMPLE].float().clone()


@torch.no_grad()
def device_change(before: Any, tensor: Any) -> tuple[float, float]:
    """The norm of the change and of the weight before it, estimated from samples."""
    factor = math.sqrt(tensor.numel() / max(before.numel(), 1))
    moved = torch.linalg.vector_norm(device_sample(tensor) - before)
    numbers = torch.stack([moved, torch.linalg.vector_norm(before)]).tolist()
    return factor * numbers[0], factor * numbers[1]


def is_dense(tensor: Any) -> bool:
    """Whether the tensor is in host memory without gaps, in any order of axes (channels last)."""
    if tensor.dtype not in CODES or tensor.layout is not _strided or not tensor.is_cpu:
        return False
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True
