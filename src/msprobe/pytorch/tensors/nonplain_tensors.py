"""Tensors that cannot be read where they are, and framework values that are not tensors.

Each becomes what can be known: the type is named, the values are read by way of a plain CPU copy
where there are any, and nothing here raises into the script.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Optional

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from msprobe.collect.interrupts import let_through
from msprobe.collect.values import quoted, scalar_text
from msprobe.stats import dtypes, render_array

_functorch = torch._C._functorch
_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def without_modes() -> AbstractContextManager[Any]:
    """No dispatch mode of the user's sees what we do to read a tensor."""
    return _disable_current_modes()


def as_plain(tensor: Any) -> tuple[Optional[Any], str, str]:
    """(a plain CPU tensor with its values or None, the name of its type, further JSON members)."""
    kind = "torch.Tensor"
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        kind = f"{type(tensor).__module__}.{type(tensor).__qualname__}"
    try:
        with torch.no_grad(), torch._C.DisableTorchFunction(), without_modes():
            plain, notes = _values(tensor)
    except Exception as error:
        let_through(error)
        return None, kind, f', "unreadable": {quoted(f"{type(error).__name__}: {error}"[:200])}'
    if plain is not None and type(plain) not in (torch.Tensor, torch.nn.Parameter):
        return None, kind, ', "unreadable": "it stands for other tensors"'
    return plain, kind, notes


def _values(tensor: Any) -> tuple[Optional[Any], str]:
    local = getattr(tensor, "_local_tensor", None)
    if isinstance(local, torch.Tensor):
        plain, notes = _values(local)
        return plain, f', "local_shape": {list(local.shape)}{notes}'
    if type(tensor).__name__ == "AsyncCollectiveTensor":  # the result of a collective that may still be under way
        return _values(tensor.trigger_wait())
    if _functorch.is_functorch_wrapped_tensor(tensor):
        inner = tensor
        while _functorch.is_functorch_wrapped_tensor(inner):
            inner = _functorch.get_unwrapped(inner)
        plain, notes = _values(inner)
        return plain, f', "wrapped": "functorch"{notes}'
    if tensor.device.type == "meta" or type(tensor).__name__ in ("FakeTensor", "FunctionalTensor"):
        return None, ', "unreadable": "it has no data"'
    if tensor.is_nested:
        return _host(torch.cat([part.flatten() for part in tensor.unbind()])), ', "layout": "nested"'
    if tensor.layout is torch.sparse_coo:
        return _host(tensor._values()), f', "layout": "{tensor.layout}", "nnz": {tensor._nnz()}'
    if tensor.layout in _COMPRESSED:
        return _host(tensor.values()), f', "layout": "{tensor.layout}", "nnz": {tensor._nnz()}'
    if tensor.layout is not torch.strided:
        return _host(tensor.to_dense()), f', "layout": "{tensor.layout}"'
    if tensor.is_quantized:
        return _host(tensor.dequantize()), ', "quantized": true'
    if tensor._is_zerotensor():  # a gradient that torch knows to be zero: it has no memory
        return torch.zeros(tensor.shape, dtype=tensor.dtype), ""
    if tensor.is_cpu and not has_memory(tensor):
        return None, ', "unreadable": "its memory was freed"'
    return _host(tensor), ""


def has_memory(tensor: Any) -> bool:
    """Whether the storage of a strided tensor holds anything: the address of a view into a freed one is no address."""
    return not tensor.numel() or tensor.untyped_storage().nbytes() > 0


def _host(values: Any) -> Any:
    """Plain strided values in host memory, without the lazy conjugate and negative bits."""
    return values.detach().resolve_conj().resolve_neg().cpu()


def shape_of(tensor: Any) -> str:
    try:
        return str([int(size) for size in tensor.shape])
    except (RuntimeError, TypeError, AttributeError):  # a nested tensor has no single shape; a symbolic one no number
        return "null"


def other_text(value: Any) -> Optional[str]:
    """numpy arrays, process groups and generators; None for anything else."""
    if isinstance(value, np.ndarray):
        return _array_text(value)
    if isinstance(value, np.generic):
        return scalar_text(type(value).__name__, value.item()) if _is_json(value.item()) else None
    if isinstance(value, torch.Generator):
        return f'{{"type": "torch.Generator", "seed": {value.initial_seed()}}}'
    if type(value).__name__ == "ProcessGroup":
        return _group_text(value)
    return None


def _is_json(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _array_text(array: Any) -> str:
    head = f'{{"type": "numpy.ndarray", "dtype": {quoted(str(array.dtype))}, "shape": {list(array.shape)}'
    if dtypes.of_numpy(array.dtype) is None:
        return head + "}"
    return f"{head}, {render_array(array)[0]}}}"


def _group_text(group: Any) -> str:
    try:
        ranks = torch.distributed.get_process_group_ranks(group)
    except Exception:  # a group that this process is not in
        ranks = []
    return f'{{"type": "torch.ProcessGroup", "group_ranks": {ranks}}}'
