"""Tensors as text: the adapter between PyTorch and the statistics, the rendering and the tensor files.

A tensor is measured at most once while it does not change (msprobe.stats.remembered). What changes memory
without moving the version counter (collectives, fused optimizers) must call `forget`; what hands out a
way to do so later (`.data`, `data_ptr()`) must call `expose`; what writes a tensor must call `written`,
because others in the same memory may count their versions apart. Plain CPU tensors are read where they
are, by no operator of torch; everything else goes through `unusual`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from ctypes import c_char
from typing import Any, Callable, Optional, Protocol

import numpy as np
import torch

from msprobe.collect.interrupts import let_through
from msprobe.collect.values import quoted, scalar_text
from msprobe.dump.tensor_files.codec import Payload
from msprobe.pytorch.tensors import nonplain_tensors
from msprobe.pytorch.tensors.accelerators import DeviceStatistics
from msprobe.stats import Remembered, describe, dtypes
from msprobe.stats.remembered import Entry

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
        checks = os.environ.get("MSPROBE_CHECK_CACHE") == "1" and device_statistics is None
        self._remembered = Remembered(EXCHANGE, _HEADS, _strided, want, remembers, checks)
        self._text = self._remembered.text
        self.dependents: list[dict[Any, Any]] = []  # what others remember of tensors, for as long as we do

    def forget(self) -> None:
        """Memory may have changed behind the version counters: measure everything again."""
        self._remembered.forget()
        for dependent in self.dependents:
            dependent.clear()

    def written(self, changed: Iterable[Any]) -> None:
        """The memory of these tensors (or lists of some) has been written, or will have been before it is read."""
        for value in changed:
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if type(tensor) in self.tensor_types or _is_of_torch(tensor):
                    self._remembered.written(tensor)

    def expose(self, tensor: Any) -> None:
        """From now on this memory may change behind the version counters: it is measured each time."""
        if self._remembered.expose(tensor):
            self.forget()

    def is_ours_to_remember(self, tensor: Any) -> bool:
        return self._remembered.is_ours(tensor)

    def tensor_text(self, tensor: Any, path: str) -> str:
        if path and self._files is not None:
            entry = self._look(tensor, path)
            if entry is None:
                return self._fresh(tensor, path)
            return f"{entry.text[: entry.at]}, {self._file(tensor, path, entry.saved)}{entry.text[entry.at :]}"
        if self._device_statistics is None:
            text = self._text(tensor)
        else:
            entry = self._look(tensor, path)
            text = None if entry is None else entry.text
        return self._fresh(tensor, path) if text is None else text

    def _look(self, tensor: Any, path: str) -> Optional[Entry]:
        """What is known of a plain tensor. On an accelerator the numbers come later, unless it is copied anyway to
        get a file."""
        statistics = self._device_statistics
        if statistics is None or tensor.device.type not in statistics.kinds:
            return self._remembered.look(tensor)
        if path or tensor.dtype not in CODES or tensor.layout is not _strided:
            return None
        entry = self._remembered.recall(tensor)
        if entry is None:
            head = f"{_HEADS[tensor.dtype][1]}{list(tensor.shape)}, {statistics.mark(tensor)}, "
            text = f"{head}{_FLAGS[tensor.requires_grad]}"
            entry = self._remembered.remember(tensor, f"{text}}}", len(text))
        return entry

    def other_text(self, value: Any, path: str) -> Optional[str]:
        if isinstance(value, torch.Tensor):
            if _is_of_torch(value):
                return self.tensor_text(value, path)
            return self._fresh(value, path)
        render_other = _OTHERS.get(type(value))
        if render_other is not None:
            return render_other(value)
        return nonplain_tensors.other_text(value)

    def _measure(self, tensor: Any) -> Optional[tuple[str, str]]:
        """The text up to requires_grad and the digest after it, or None when the tensor is not a plain one."""
        try:
            return describe(tensor, EXCHANGE, _HEADS, _strided, self._want)
        except (RuntimeError, ValueError) as error:
            let_through(error)
            return None

    def _fresh(self, tensor: Any, path: str) -> str:
        """A tensor that cannot be remembered or read in place: described by way of a plain copy."""
        plain, kind, notes = nonplain_tensors.as_plain(tensor)
        found = self._measure(plain) if plain is not None else None
        if plain is None or found is None:
            head = (
                f'{{"type": {quoted(kind)}, "dtype": "{tensor.dtype}", "shape": {nonplain_tensors.shape_of(tensor)}, '
            )
            body, digest = f'{head}"Max": null, "Min": null, "Mean": null, "Norm": null, ', ""
        else:
            body, digest = found
            shape = nonplain_tensors.shape_of(tensor)
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
                with torch.no_grad(), nonplain_tensors.without_modes():
                    tensor = tensor.contiguous()
            name = self._files.tensor(path, payload(tensor))
            saved.append(name)
        return f'"data_name": {quoted(name)}'


def _is_of_torch(value: Any) -> bool:
    """Whether it is a tensor with memory of its own, and no stand-in for one (a fake, a wrapper)."""
    return isinstance(value, torch.Tensor) and type(value).__torch_dispatch__ is torch.Tensor.__torch_dispatch__


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
