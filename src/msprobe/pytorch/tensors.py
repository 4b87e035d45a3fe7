"""Tensors as text: the adapter between PyTorch and the statistics, the rendering and the tensor files.

A tensor is measured at most once while it does not change: its text is remembered by identity,
version, memory and requires_grad, and the tensor itself is held weakly. What changes memory without
moving the version counter (collectives, fused optimizers) must call `forget`; what hands out a way to
do so later (`.data`, `data_ptr()`) must call `expose`. Memory shared with numpy is never trusted.
Plain CPU tensors are read where they are, by no operator of torch; everything else goes through
`unusual`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from ctypes import c_char
from typing import Any, Callable, Optional, Protocol
from weakref import ref

import numpy as np
import torch

from msprobe.collect.values import quoted, scalar_text
from msprobe.dump.tensors import Payload
from msprobe.stats import describe, dtypes

from . import unusual
from .accelerators import DeviceStatistics

CODES: dict[Any, int] = {
    getattr(torch, row.name): row.code for row in dtypes.TABLE if row.torch is not None and hasattr(torch, row.name)
}
_NAMES = {dtype: dtypes.BY_CODE[code].name for dtype, code in CODES.items()}
_SIZES = {dtype: dtypes.BY_CODE[code].itemsize for dtype, code in CODES.items()}
_HEADS = {dtype: (code, f'{{"type": "torch.Tensor", "dtype": "{dtype}", "shape": ') for dtype, code in CODES.items()}
_strided = torch.strided
EXCHANGE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
"""torch 2.10 and later: C functions of which one describes a tensor; see exchange.h."""
_FLAGS = ('"requires_grad": false', '"requires_grad": true')


class FileWriter(Protocol):
    """The part of `RankWriter` that saves tensors."""

    def tensor(self, name: str, payload: Payload) -> str: ...

    def link(self, name: str, existing_data_name: str) -> str: ...


class TensorTexts:
    """The adapter of one step: what it remembers is dropped with it."""

    tensor_types = frozenset({torch.Tensor, torch.nn.Parameter})

    def __init__(
        self,
        want: int,
        files: Optional[FileWriter],
        device_statistics: Optional[DeviceStatistics] = None,
        remembers: bool = True,
    ) -> None:
        """Without `remembers` every tensor is measured each time: where no mode sees what makes an answer stale."""
        self._want = want
        self._files = files
        self._device_statistics = device_statistics
        self._known: dict[int, tuple[Any, int, int, bool, str, str, list[str]]] = {}
        self._exposed: set[int] = set()
        self.dependents: list[dict[Any, Any]] = []  # what others remember of tensors, for as long as we do
        self._remembers = remembers
        self._check = os.environ.get("MSPROBE_CHECK_CACHE") == "1" and device_statistics is None

    def forget(self) -> None:
        """Memory may have changed behind the version counters: measure everything again."""
        self._known.clear()
        for dependent in self.dependents:
            dependent.clear()

    def drop(self, changed: Iterable[Any]) -> None:
        """These tensors (or lists of some) have just been written, and their version counters have yet to move."""
        for value in changed:
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                self._known.pop(id(tensor), None)

    def expose(self, tensor: Any) -> None:
        """From now on this memory may change behind the version counters: it is measured each time."""
        try:
            address = tensor.untyped_storage().data_ptr()
        except RuntimeError:  # it has no memory of its own
            address = 0
        if address not in self._exposed:
            self._exposed.add(address)
            self.forget()

    def tensor_text(self, tensor: Any, path: str) -> str:
        if not self._remembers and self._device_statistics is None:
            found = self._measure(tensor)
            if found is None:
                return self._fresh(tensor, path)
            body, digest = found
            file = f", {self._file(tensor, path, [])}" if path and self._files is not None else ""
            return f"{body}{_FLAGS[tensor.requires_grad]}{file}{digest}}}"
        try:
            version = tensor._version
            pointer = tensor.data_ptr()
        except RuntimeError:  # an inference tensor, a functorch wrapper, a tensor without memory
            return self._fresh(tensor, path)
        grad = tensor.requires_grad
        key = id(tensor)
        known = self._known.get(key)
        if (
            known is not None
            and known[0]() is tensor
            and known[1] == version
            and known[2] == pointer
            and known[3] is grad
        ):
            if self._check:
                self._compare(tensor, known)
            body, digest, saved = known[4], known[5], known[6]
        else:
            found = self._measure(tensor) if self._device_statistics is None else self._mark(tensor, path)
            if found is None:
                return self._fresh(tensor, path)
            body, digest = found
            saved = []
            if self._remembers and self.is_ours_to_remember(tensor):
                self._known[key] = (ref(tensor), version, pointer, grad, body, digest, saved)
        if path and self._files is not None:
            return f"{body}{_FLAGS[grad]}, {self._file(tensor, path, saved)}{digest}}}"
        return f"{body}{_FLAGS[grad]}{digest}}}"

    def is_ours_to_remember(self, tensor: Any) -> bool:
        """Whether nobody can change its memory without moving its version counter."""
        storage = tensor.untyped_storage()  # one that numpy knows of cannot be resized
        return storage.resizable() and not (self._exposed and storage.data_ptr() in self._exposed)

    def other_text(self, value: Any, path: str) -> Optional[str]:
        if isinstance(value, torch.Tensor):
            if type(value).__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
                return self.tensor_text(value, path)
            return self._fresh(value, path)
        render_other = _OTHERS.get(type(value))
        if render_other is not None:
            return render_other(value)
        return unusual.other_text(value)

    def _measure(self, tensor: Any) -> Optional[tuple[str, str]]:
        """The text up to requires_grad and the digest after it, or None when the tensor is not a plain one."""
        try:
            return describe(tensor, EXCHANGE, _HEADS, _strided, self._want)
        except (RuntimeError, ValueError):
            return None

    def _mark(self, tensor: Any, path: str) -> Optional[tuple[str, str]]:
        """`_measure` on an accelerator: the numbers come later. A tensor that gets a file is copied anyway."""
        statistics = self._device_statistics
        assert statistics is not None
        if tensor.device.type not in statistics.kinds:
            return self._measure(tensor)
        if path or tensor.dtype not in CODES or tensor.layout is not _strided:
            return None
        return f"{_HEADS[tensor.dtype][1]}{list(tensor.shape)}, {statistics.mark(tensor)}, ", ""

    def _fresh(self, tensor: Any, path: str) -> str:
        """A tensor that cannot be remembered or read in place: described by way of a plain copy."""
        plain, kind, notes = unusual.as_plain(tensor)
        found = self._measure(plain) if plain is not None else None
        if plain is None or found is None:
            head = f'{{"type": {quoted(kind)}, "dtype": "{tensor.dtype}", "shape": {unusual.shape_of(tensor)}, '
            body, digest = f'{head}"Max": null, "Min": null, "Mean": null, "Norm": null, ', ""
        else:
            body, digest = found
            shape = unusual.shape_of(tensor)
            if kind != "torch.Tensor" or shape != str(list(plain.shape)) or tensor.dtype != plain.dtype:
                numbers = body.partition("], ")[2]
                body = f'{{"type": {quoted(kind)}, "dtype": "{tensor.dtype}", "shape": {shape}, {numbers}'
        text = f"{body}{_FLAGS[bool(tensor.requires_grad)]}"
        if path and self._files is not None and found is not None:
            text += f", {self._file(plain, path, [])}"
        return f"{text}{digest}{notes}}}"

    def _file(self, tensor: Any, path: str, saved: list[str]) -> str:
        """Saves the tensor, or links the file that holds it already. Returns the `data_name` member."""
        assert self._files is not None
        if saved:
            name = self._files.link(path, saved[0])
        else:
            if not tensor.is_contiguous():
                with torch.no_grad(), unusual.without_modes():
                    tensor = tensor.contiguous()
            name = self._files.tensor(path, payload(tensor))
            saved.append(name)
        return f'"data_name": {quoted(name)}'

    def _compare(self, tensor: Any, known: tuple[Any, ...]) -> None:
        """MSPROBE_CHECK_CACHE=1: what is remembered is measured again, and must be the same."""
        if self._measure(tensor) != (known[4], known[5]):
            raise AssertionError(
                "msprobe remembered statistics of a tensor that has changed since: please report this call"
            )


def payload(tensor: Any) -> Payload:
    """The values of a contiguous CPU tensor where they lie: the caller keeps it alive until they are written."""
    dtype = tensor.dtype
    size = tensor.numel() * _SIZES[dtype]
    data: Any = np.frombuffer((c_char * size).from_address(tensor.data_ptr()), np.uint8) if size else b""
    return Payload(_NAMES[dtype], tuple(tensor.shape), data, "pt", borrowed=True)


_OTHERS: dict[type, Callable[[Any], str]] = {
    torch.Size: lambda v: scalar_text("torch.Size", list(v)),
    torch.dtype: lambda v: scalar_text("torch.dtype", str(v)),
    torch.device: lambda v: scalar_text("torch.device", str(v)),
    torch.memory_format: lambda v: scalar_text("torch.memory_format", str(v)),
    torch.layout: lambda v: scalar_text("torch.layout", str(v)),
}
