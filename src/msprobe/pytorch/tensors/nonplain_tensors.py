"""Tensors that cannot be read in place, and framework values that are not tensors.

The record names the type. If the tensor has values, they are read through a plain CPU copy. Nothing here raises into
the script.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Callable, Optional

import numpy as np
import torch
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import _disable_current_modes

from msprobe.collect.records.values import quoted, scalar_text
from msprobe.frameworks.pytorch.tensors import CODES
from msprobe.stats import STATS, dtypes, render, render_array
from msprobe.system.interrupts import let_through

_functorch = torch._C._functorch
_count_pre_dispatch = getattr(torch._ops, "_len_torch_dispatch_stack_pre_dispatch", None)
_PARTS = ("_data", "_scale_inv", "_rowwise_data", "_rowwise_scale_inv", "_columnwise_data", "_columnwise_scale_inv")
"""The tensors inside a quantised tensor that does not list them (TransformerEngine)."""
_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


_FLOAT4 = [sign * value for sign in (1.0, -1.0) for value in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)]


def _read_as() -> Iterator[tuple[Any, Any]]:
    """The dtypes of torch that only name bits, and the dtypes to read them as."""
    for bits in range(1, 8):
        yield getattr(torch, f"int{bits}", None), torch.int8
        yield getattr(torch, f"uint{bits}", None), torch.uint8
    yield getattr(torch, "float4_e2m1fn_x2", None), torch.float32


_READ_AS = {dtype: kind for dtype, kind in _read_as() if dtype is not None}


def _has_modes() -> bool:
    counts = (getattr(_python_dispatch, "_len_torch_dispatch_stack", None), _count_pre_dispatch)
    return any(count is None or count() > 0 for count in counts)


def without_modes() -> AbstractContextManager[Any]:
    """Switches off the dispatch modes of the user while we read a tensor."""
    return _disable_current_modes() if _has_modes() else nullcontext()


def as_plain(tensor: Any) -> tuple[Optional[Any], str, str]:
    """Returns a plain CPU tensor with the values (or None), the name of the type, and further JSON members."""
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
    dequantize = _dequantize_of(type(tensor))
    if dequantize is not None:
        plain, notes = _values(dequantize(tensor))
        return plain, f"{_quantised_member(tensor)}{notes}"
    if tensor.is_nested:
        parts = tensor.unbind()
        sizes = torch.tensor([list(part.shape) for part in parts])
        return _host(torch.cat([part.flatten() for part in parts])), f', "layout": "nested"{_places(sizes=sizes)}'
    if tensor.layout is torch.sparse_coo:
        places = _places(indices=tensor._indices())
        return _host(tensor._values()), f', "layout": "{tensor.layout}", "nnz": {tensor._nnz()}{places}'
    if tensor.layout in _COMPRESSED:
        rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
        places = _places(
            compressed_indices=tensor.crow_indices() if rows else tensor.ccol_indices(),
            plain_indices=tensor.col_indices() if rows else tensor.row_indices(),
        )
        return _host(tensor.values()), f', "layout": "{tensor.layout}", "nnz": {tensor._nnz()}{places}'
    if tensor.layout is not torch.strided:
        return _host(tensor.to_dense()), f', "layout": "{tensor.layout}"'
    if tensor.is_quantized:
        return _host(tensor.dequantize()), ', "quantized": true'
    if tensor._is_zerotensor():  # a zero gradient without memory
        return torch.zeros(tensor.shape, dtype=tensor.dtype), ""
    if tensor.is_cpu and not has_memory(tensor):
        return None, ', "unreadable": "its memory was freed"'
    if tensor.dtype in _READ_AS:
        return _bits_as_values(tensor), f', "read_as": "{_READ_AS[tensor.dtype]}"'
    return _host(tensor), ""


def _dequantize_of(kind: Any) -> Optional[Callable[[Any], Any]]:
    """How a quantised tensor of torchao, TransformerEngine and the like becomes the numbers that it stands for."""
    if kind.dequantize is not torch.Tensor.dequantize:
        return kind.dequantize
    return getattr(kind, "to_original_precision", None)  # torchao.float8


def _quantised_member(tensor: Any) -> str:
    """What a quantised tensor consists of: the stored numbers and their scales, as statistics."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    names = flatten()[0] if flatten is not None else _PARTS
    members = []
    for name in names:
        part = getattr(tensor, name, None)
        if isinstance(part, torch.Tensor):
            head = f'"dtype": "{part.dtype}", "shape": {shape_of(part)}'
            values = _values(part)[0]
            code = None if values is None else CODES.get(values.dtype)
            if values is None or code is None:
                members.append(f"{quoted(name)}: {{{head}}}")
                continue
            figures = render(values.data_ptr(), code, values.shape, values.stride(), STATS)[0]
            members.append(f"{quoted(name)}: {{{head}, {figures}}}")
    return f', "quantised": {{{", ".join(members)}}}'


def _bits_as_values(tensor: Any) -> Any:
    """The bytes of a dtype that torch cannot compute with, as whole numbers; for float4, two numbers per byte."""
    kind = _READ_AS[tensor.dtype]
    if kind is not torch.float32:
        return _host(tensor.view(kind))
    packed = _host(tensor.contiguous().view(torch.uint8))
    numbers = torch.tensor(_FLOAT4)
    pairs = torch.stack([numbers[(packed & 15).long()], numbers[(packed >> 4).long()]], dim=-1)
    return pairs.flatten(-2) if packed.dim() else pairs


def _places(**indices: Any) -> str:
    """The places of the values: the indices of a sparse tensor, the sizes of the parts of a nested one, as
    statistics and checksum (of int64, in C order)."""
    members = []
    for name, tensor in indices.items():
        array = np.ascontiguousarray(tensor.detach().cpu().numpy(), dtype=np.int64)
        figures = render_array(array, want=STATS)[0]
        digest = f"{zlib.crc32(array.tobytes()):08x}"
        members.append(f'"{name}": {{"shape": {list(array.shape)}, {figures}, "md5": "{digest}"}}')
    return f', "places": {{{", ".join(members)}}}'


def has_memory(tensor: Any) -> bool:
    """Whether the storage of a strided tensor has memory. A view into a freed storage has an invalid address."""
    return not tensor.numel() or tensor.untyped_storage().nbytes() > 0


def _host(values: Any) -> Any:
    """Plain strided values in host memory, without the lazy conjugate and negative bits."""
    return values.detach().resolve_conj().resolve_neg().cpu()


def shape_of(tensor: Any) -> str:
    try:
        return str([int(size) for size in tensor.shape])
    except (
        RuntimeError,
        TypeError,
        AttributeError,
    ):  # a nested tensor has no single shape; a symbolic size is not a number
        return "null"


def other_text(value: Any) -> Optional[str]:
    """The text of a numpy array, process group or generator; None for other values."""
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
