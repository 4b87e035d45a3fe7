"""Statistics of tensors on an accelerator, without a synchronisation at every call.

The four reductions run on the device, and their results stay there; the record has a mark in their place. At a flush,
one copy reads all results back, and the marks become numbers before the records are written. If the bytes are needed
anyway (md5, xor, tensor files), the tensor is copied to the host and measured there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch

from msprobe.pytorch.tensors import nonplain_tensors

FLUSH = 256
_MARK = re.compile("\x00(\\d+)\x00")
_HALVES = frozenset(
    dtype
    for dtype in (
        torch.float16,
        torch.bfloat16,
        getattr(torch, "float8_e4m3fn", None),
        getattr(torch, "float8_e5m2", None),
    )
    if dtype is not None
)


def device_kinds() -> frozenset[str]:
    """The accelerators of this process, as device types of tensors."""
    found = (kind for kind in ("cuda", "npu", "xpu", "mps") if getattr(torch, kind, None) is not None)
    return frozenset(kind for kind in found if getattr(torch, kind).is_available())


class DeviceStatistics:
    """Reductions that are not read back yet. `kinds` are the supported device types."""

    def __init__(self, kinds: frozenset[str]) -> None:
        self.kinds = kinds
        self._pending: list[tuple[int, Any, Any]] = []
        self._known: dict[int, str] = {}
        self._next = 0

    def mark(self, tensor: Any) -> str:
        """Starts the reductions of a tensor and returns a mark for their text, until `read_back`."""
        with torch.no_grad(), torch._C.DisableTorchFunction(), nonplain_tensors.without_modes():
            numbers = _reduce(tensor.detach()) if tensor.numel() else None
        number = self._next
        self._next += 1
        if numbers is None:
            self._known[number] = '"Max": null, "Min": null, "Mean": null, "Norm": null'
        else:
            self._pending.append((number, tensor.dtype, numbers))
        return f"\x00{number}\x00"

    def read_back(self) -> None:
        """Reads all pending results with one copy per device."""
        by_device: dict[Any, list[tuple[int, Any, Any]]] = {}
        for entry in self._pending:
            by_device.setdefault(entry[2].device, []).append(entry)
        self._pending = []
        for entries in by_device.values():
            with torch.no_grad(), torch._C.DisableTorchFunction(), nonplain_tensors.without_modes():
                rows = torch.stack([numbers for _, _, numbers in entries]).cpu().tolist()
            for (number, dtype, _), row in zip(entries, rows):
                self._known[number] = _text(dtype, row)

    def resolve(self, text: str) -> str:
        if "\x00" not in text:
            return text
        return _MARK.sub(lambda mark: self._known[int(mark[1])], text)


def _reduce(tensor: Any) -> Any:
    """Max, min, mean and norm as one small tensor on the same device."""
    values = tensor.abs() if tensor.is_complex() else tensor
    if values.dtype in _HALVES:
        values = values.float()
    elif values.dtype is torch.bool:
        values = values.to(torch.uint8)
    low, high = torch.aminmax(values)
    wide = values if values.is_floating_point() else values.to(_widest(values.device))
    norm = torch.linalg.vector_norm(wide)
    kind = torch.promote_types(wide.dtype, torch.float32)
    return torch.stack([high.to(kind), low.to(kind), wide.mean().to(kind), norm.to(kind)]).to(_widest(wide.device))


def _widest(device: Any) -> Any:
    """float64 if the device supports it; Ascend computes in float32."""
    return torch.float32 if device.type == "npu" else torch.float64


def _text(dtype: Any, row: Sequence[float]) -> str:
    high, low, mean, norm = row
    if dtype is torch.bool:
        return f'"Max": {_json(bool(high))}, "Min": {_json(bool(low))}, "Mean": {_json(mean)}, "Norm": null'
    if not dtype.is_floating_point and not dtype.is_complex:
        return f'"Max": {int(high)}, "Min": {int(low)}, "Mean": {_json(mean)}, "Norm": {_json(norm)}'
    return f'"Max": {_json(high)}, "Min": {_json(low)}, "Mean": {_json(mean)}, "Norm": {_json(norm)}'


def _json(value: object) -> str:
    return json.dumps(value)


class DeferredWriter:
    """A writer that holds records back until the numbers for their marks are known."""

    def __init__(self, writer: Any, statistics: DeviceStatistics) -> None:
        self._writer = writer
        self._statistics = statistics
        self._held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.stack = writer.stack
        self.error = writer.error
        self.tensor = writer.tensor
        self.link = writer.link
        self.place = writer.place
        self.made = writer.made

    def begin(self, call: int, name: str, parent: Optional[str], stack: Optional[int], text: str) -> None:
        self._hold(self._writer.begin, call, name, parent, stack, text)

    def end(self, call: int, text: str) -> None:
        self._hold(self._writer.end, call, text)

    def record(self, name: str, parent: Optional[str], stack: Optional[int], text: str) -> None:
        self._hold(self._writer.record, name, parent, stack, text)

    def debug(self, name: str, text: str) -> None:
        self._hold(self._writer.debug, name, text)

    def phase(self, text: str) -> None:
        self._hold(self._writer.phase, text)

    def training(self, text: str, frames: Optional[Callable[[], Sequence[str]]] = None) -> None:
        self._hold(lambda known: self._writer.training(known, frames), text)

    def settle(self) -> None:
        """Reads all pending results back and writes the held records."""
        held, self._held = self._held, []
        self._statistics.read_back()
        for write, arguments in held:
            write(*arguments[:-1], self._statistics.resolve(arguments[-1]))

    def _hold(self, write: Callable[..., None], *arguments: Any) -> None:
        self._held.append((write, arguments))
        if len(self._held) >= FLUSH:
            self.settle()
