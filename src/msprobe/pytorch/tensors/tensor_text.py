"""Tensors as text: the adapter between PyTorch and the statistics, the rendering and the tensor files.

An unchanged tensor is measured at most once (msprobe.stats.tensor_cache). Three kinds of calls must be reported
here. A call that changes memory without changing the version counter (collectives, fused optimizers) needs `forget`.
A call that makes such a change possible later (`.data`, `data_ptr()`) needs `expose`. A call that writes a tensor needs
`written`, because another tensor with the same memory may have its own version counter. Plain CPU tensors are read in
place, without a torch operator; all others go through `nonplain_tensors`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Callable, NamedTuple, Optional, Protocol

import torch

from msprobe.collect.records.values import quoted, scalar_text
from msprobe.dump.tensor_files.codec import Payload
from msprobe.frameworks.pytorch.tensors import CODES, payload
from msprobe.pytorch.tensors import nonplain_tensors
from msprobe.pytorch.tensors.accelerators import DeviceStatistics
from msprobe.stats import TensorCache, describe
from msprobe.stats.tensor_cache import Entry
from msprobe.system.interrupts import let_through

_HEADS = {dtype: (code, f'{{"type": "torch.Tensor", "dtype": "{dtype}", "shape": ') for dtype, code in CODES.items()}
_strided = torch.strided
EXCHANGE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
"""torch 2.10 and later: C functions, one of which describes a tensor; see exchange.h."""
_FLAGS = ('"requires_grad": false', '"requires_grad": true')


TensorState = tuple[int, int]
"""The version and the address of a tensor."""


def state_of(tensor: Any) -> Optional[TensorState]:
    """The state of a tensor, that of the local part for a DTensor; None if it has no version or no memory."""
    local = getattr(tensor, "_local_tensor", tensor)
    try:
        return local._version, local.data_ptr()
    except RuntimeError:
        return None


def storage_of(tensor: Any) -> Optional[int]:
    """The address of the storage of a tensor; None if it has no memory of its own."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except RuntimeError:
        return None


class KnownText(NamedTuple):
    """The text of a tensor that was measured before. Further members go to position `at`."""

    text: str
    at: int
    saved: list[str]


class FileWriter(Protocol):
    """The part of `RankWriter` that saves tensors."""

    def tensor(self, name: str, payload: Payload) -> str: ...

    def link(self, name: str, existing_data_name: str) -> str: ...


class LayoutTexts(Protocol):
    """Renders how a DTensor is spread over ranks."""

    def member(self, spec: Any) -> str: ...


class TensorTexts:
    """The adapter of one step. Its cache ends with the step."""

    tensor_types = frozenset({torch.Tensor, torch.nn.Parameter})

    def __init__(
        self,
        want: int,
        files: Optional[FileWriter],
        device_statistics: Optional[DeviceStatistics] = None,
        remembers: bool = True,
        layouts: Optional[LayoutTexts] = None,
        numbers: bool = False,
    ) -> None:
        """Without `remembers`, measures every tensor each time: used if no mode sees the calls that change memory.
        `layouts` renders the layouts of DTensors. With `numbers`, texts have the numbers of values and memory."""
        self._want = want
        self._files = files
        self._layouts = layouts
        self._device_statistics = device_statistics
        checks = os.environ.get("MSPROBE_CHECK_CACHE") == "1" and device_statistics is None
        self._cache = TensorCache(EXCHANGE, _HEADS, _strided, want, remembers, checks, numbers)
        self._text = self._cache.text
        self.quick_text = self._text if remembers and device_statistics is None else None
        self.sees_writes = remembers
        self._followed: dict[int, Optional[tuple[Optional[TensorState], KnownText]]] = {}
        self.on_write: Optional[Callable[[Any], None]] = None  # called with each tensor that was or may be written
        self.dependents: list[dict[Any, Any]] = []  # caches of others that must be cleared together with ours

    def forget(self) -> None:
        """Clears the cache: memory may have changed without the version counters."""
        self._cache.clear()
        for dependent in self.dependents:
            dependent.clear()

    def release(self) -> None:
        """The step ends: drops all references to tensors and storages, also the weak ones."""
        self.forget()
        self._cache.release()

    def written(self, changed: Iterable[Any]) -> None:
        """Reports that the memory of these tensors (or lists of tensors) was written, or will be before it is read."""
        mark = self._cache.mark_written if self.on_write is None else self.mark_written
        plain = self.tensor_types
        for value in changed:
            if type(value) in plain:
                mark(value)
            elif value is not None:
                for tensor in value if isinstance(value, (list, tuple)) else (value,):
                    if type(tensor) in plain or _is_of_torch(tensor):
                        mark(tensor)

    def mark_written(self, tensor: Any) -> None:
        """`written` for one plain tensor."""
        self._cache.mark_written(tensor)
        if self.on_write is not None:
            self.on_write(tensor)

    def expose(self, tensor: Any) -> None:
        """Reports that this memory may change without its version counter: it is measured each time from now on."""
        if self.on_write is not None:
            self.on_write(tensor)
        if not _is_of_torch(tensor) or self._cache.expose(tensor):
            self.forget()

    def is_ours_to_remember(self, tensor: Any) -> bool:
        return self._cache.is_private(tensor)

    # Parameters, whose texts are needed again later in the step.

    def follow(self, parameters: Iterable[int]) -> None:
        """Keeps the last text of these parameters (by id) for `known`, where the cache does not."""
        self._followed = {} if self.sees_writes else dict.fromkeys(parameters)

    def known(self, tensor: Any) -> Optional[KnownText]:
        """The text of a tensor that has not changed since it was measured; None if it must be measured."""
        if self.sees_writes:
            return self.cached(tensor)
        state, text = self._followed.get(id(tensor)) or (None, None)
        return text if state is not None and state == state_of(tensor) else None

    def cached(self, tensor: Any) -> Optional[KnownText]:
        """The text in the cache, which also knows writes that leave the version as it is."""
        entry = self._cache.recall(tensor) if type(tensor) in self.tensor_types else None
        return None if entry is None else self._as_known(entry)

    def numbers(self, tensor: Any) -> str:
        """The JSON of the numbers that the cache has for a tensor: of the value, if it was recorded, and of the
        memory."""
        known = self.cached(tensor)
        value = "" if known is None else known.text.partition('"value_id": ')[2].partition(",")[0].rstrip("}")
        memory = self.memory(tensor)
        members = [f'"id": {value}'] if value else []
        if memory is not None:
            members.append(f'"memory": {memory}')
        return "{" + ", ".join(members) + "}"

    def memory(self, tensor: Any) -> Optional[int]:
        """The number of the memory of a tensor; None if it has none."""
        return self._cache.memory(tensor) if _is_of_torch(tensor) else None

    def _as_known(self, entry: Entry) -> KnownText:
        return KnownText(entry.text, entry.at, [] if self._files is None else entry.saved)

    def text_of(self, known: KnownText, path: str) -> str:
        """The text again; with `path` also with the file that has the tensor."""
        if not path or self._files is None or not known.saved:
            return known.text
        name = quoted(self._files.link(path, known.saved[0]))
        return f'{known.text[: known.at]}, "data_name": {name}{known.text[known.at :]}'

    def differs(self, tensor: Any, known: KnownText) -> bool:
        """Measures a tensor. Returns whether it has other statistics than it had, and drops what is cached if so."""
        found = self._measure(tensor)
        if found is None or (known.text.startswith(found[0]) and found[1] in known.text):
            return False
        self.written((tensor,))
        return True

    def tensor_text(self, tensor: Any, path: str) -> str:
        wants_file = bool(path) and self._files is not None
        if not wants_file and self._device_statistics is None and not self._followed:
            text = self._text(tensor)
            return self._fresh(tensor, path) if text is None else text
        entry = self._find_entry(tensor, path)
        if entry is None:
            return self._fresh(tensor, path)
        if id(tensor) in self._followed:
            self._followed[id(tensor)] = (state_of(tensor), self._as_known(entry))
        if not wants_file:
            return entry.text
        return f"{entry.text[: entry.at]}, {self._file(tensor, path, entry.saved)}{entry.text[entry.at :]}"

    def _find_entry(self, tensor: Any, path: str) -> Optional[Entry]:
        """The cache entry of a plain tensor, measured if needed. On an accelerator the numbers come later, unless the
        tensor is copied anyway to be saved."""
        statistics = self._device_statistics
        if statistics is None or tensor.device.type not in statistics.kinds:
            return self._cache.find(tensor)
        if path or tensor.dtype not in CODES or tensor.layout is not _strided:
            return None
        entry = self._cache.recall(tensor)
        if entry is None:
            head = f"{_HEADS[tensor.dtype][1]}{list(tensor.shape)}, {statistics.mark(tensor)}, "
            text = f"{head}{_FLAGS[tensor.requires_grad]}"
            entry = self._cache.add(tensor, f"{text}}}", len(text))
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

    def matrix(self, tensor: Any) -> Optional[Any]:
        """The values as an array of float32; None for a tensor that is no matrix of floats, or cannot be read."""
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or tensor.dim() < 2:
            return None
        plain, _, _ = nonplain_tensors.as_plain(tensor)
        if plain is None or not plain.numel():
            return None
        with torch.no_grad(), torch._C.DisableTorchFunction(), nonplain_tensors.without_modes():
            return plain.detach().to(torch.float32).contiguous().numpy()

    def _measure(self, tensor: Any) -> Optional[tuple[str, str]]:
        """The text up to requires_grad and the digest after it, or None if the tensor is not plain."""
        try:
            return describe(tensor, EXCHANGE, _HEADS, _strided, self._want)
        except (RuntimeError, ValueError) as error:
            let_through(error)
            return None

    def read_again(self, tensor: Any) -> str:
        """The text of a tensor that may change unnoticed later (DDP sends buffers to all ranks): it is not cached."""
        return self._fresh(tensor, "")

    def _fresh(self, tensor: Any, path: str) -> str:
        """The text of a tensor that cannot be cached or read in place, from a plain copy."""
        plain, kind, notes = nonplain_tensors.as_plain(tensor)
        spec = getattr(tensor, "_spec", None)
        if spec is not None and self._layouts is not None:
            notes += self._layouts.member(spec)
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
        return f"{text}{digest}{notes}{self._memory_member(tensor)}}}"

    def _memory_member(self, tensor: Any) -> str:
        """The number of the memory of a tensor that cannot be cached; that of the local part for a DTensor."""
        local = getattr(tensor, "_local_tensor", tensor)
        memory = self._cache.memory(local) if _is_of_torch(local) else None
        return "" if memory is None else f', "memory": {memory}'

    def _file(self, tensor: Any, path: str, saved: list[str]) -> str:
        """Saves the tensor, or links the file that already has it. Returns the `data_name` member."""
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
    """Whether it is a tensor with its own memory, not a fake tensor or a wrapper."""
    return isinstance(value, torch.Tensor) and type(value).__torch_dispatch__ is torch.Tensor.__torch_dispatch__


_OTHERS: dict[type, Callable[[Any], str]] = {
    torch.Size: lambda v: scalar_text("torch.Size", list(v)),
    torch.dtype: lambda v: scalar_text("torch.dtype", str(v)),
    torch.device: lambda v: scalar_text("torch.device", str(v)),
    torch.memory_format: lambda v: scalar_text("torch.memory_format", str(v)),
    torch.layout: lambda v: scalar_text("torch.layout", str(v)),
}
