"""A torch tensor's figures. In host memory it is read where it lies; on a device torch computes, and one copy at the
end of the step brings all of them to the host."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch

from msprobe.collect import notices
from msprobe.stats import dtypes
from msprobe.watch import gauge
from msprobe.watch.targets import Figures

CODES: dict[Any, int] = {
    getattr(torch, row.name): row.code for row in dtypes.TABLE if row.torch is not None and hasattr(torch, row.name)
}
_strided = torch.strided


def local(tensor: Any) -> Any:
    """The part of a DTensor that this rank has; any other tensor as it is."""
    return getattr(tensor, "_local_tensor", tensor)


def shard_of(tensor: Any) -> str:
    """Which part of a DTensor this rank has, "" for all of it: ranks with the same text have the same part."""
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
    """Measures tensors; those on a device are finished by `resolve`."""

    def __init__(self, outside: Optional[tuple[float, float]]) -> None:
        self._outside = outside
        self._pending: list[tuple[dict[int, Figures], int, Any]] = []

    def read(self, tensor: Any, found: dict[int, Figures], row: int, joined: bool = False) -> None:
        """Puts the figures of a tensor into `found[row]`, now or when resolved; `joined` with those already there."""
        tensor = local(tensor)
        code = CODES.get(tensor.dtype)
        if code is None:
            notices.warn_once(f"tensors of dtype {tensor.dtype} have no statistics; they are not watched.")
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
        if not address:
            return
        figures = gauge.read_memory(address, code, tensor.shape, tensor.stride(), self._outside)
        if figures is None:
            return
        found[row] = gauge.combine(found[row], figures) if joined and row in found else figures

    def resolve(self) -> None:
        """Waits for the devices, once."""
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
    """The nine figures as one float32 tensor on the tensor's device; nothing waits for them."""
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


def sample(tensor: Any) -> Optional[Any]:
    """Some elements of a parameter, copied to numpy; None where that is not possible."""
    tensor = local(tensor)
    code = CODES.get(tensor.dtype)
    if code is None or tensor.layout is not _strided or tensor.is_meta:
        return None
    if not tensor.is_cpu:
        flat = tensor.detach().reshape(-1)
        step = max(1, flat.numel() // gauge.SAMPLE)
        return flat[::step][: gauge.SAMPLE].float().cpu().numpy()
    if not tensor.is_contiguous() and not _is_dense(tensor):
        return None
    return gauge.sample(tensor.data_ptr(), code, tensor.numel())


def _is_dense(tensor: Any) -> bool:
    """Whether its elements fill their memory without gaps, in any order (channels last, transposed)."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True
