"""The values of a MindSpore tensor: where they are in host memory, and a copy of them as a numpy array."""

from __future__ import annotations

from ctypes import c_char
from typing import Any, Optional

import mindspore
import numpy as np
from mindspore._c_expression import TensorPy

from msprobe.dump.tensor_files.codec import Payload
from msprobe.stats import dtypes

Array = np.ndarray[Any, Any]

# Types of MindSpore are singletons: looking up their identity is cheaper than their hash.
_KNOWN = {row.mindspore: getattr(mindspore, row.name, None) for row in dtypes.TABLE if row.mindspore is not None}
_ROWS: dict[int, dtypes.Dtype] = {
    id(kind): dtypes.BY_MINDSPORE[name] for name, kind in _KNOWN.items() if kind is not None and name is not None
}

address = TensorPy._data_ptr
strides_of = TensorPy.stride


def payload(pointer: int, row: dtypes.Dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> Payload:
    """The values in host memory, without a copy if they are in C order: the caller keeps them until they are
    written."""
    if 0 in shape:
        return Payload(row.name, shape, b"", "npy")
    if strides != c_strides(shape):
        return Payload(row.name, shape, _strided(pointer, row, shape, strides).tobytes(), "npy")
    size = row.itemsize
    for length in shape:
        size *= length
    memory: Any = (c_char * size).from_address(pointer)
    return Payload(row.name, shape, np.frombuffer(memory, np.uint8), "npy", borrowed=True)


def copy_values(tensor: Any) -> tuple[Array, dtypes.Dtype]:
    """A private copy of a tensor's values, as `bits` shows them."""
    row = _ROWS[id(tensor._dtype)]
    if tensor.device == "CPU" and tensor._shape and 0 not in tensor._shape:
        raw = _strided(address(tensor), row, tensor._shape, tuple(strides_of(tensor)))
        return bits(np.array(raw), row), row
    return np.array(bits(tensor.asnumpy(), row)), row


def row_of(tensor: Any) -> Optional[dtypes.Dtype]:
    """The row of this type in the table of dtypes, or None."""
    return _ROWS.get(id(tensor._dtype))


def has_values(tensor: Any) -> bool:
    """Whether msprobe has statistics for the type of this tensor."""
    return id(tensor._dtype) in _ROWS


def bits(array: Array, row: dtypes.Dtype) -> Array:
    """The array in a type of numpy or ml_dtypes with the same bits, whatever wrapper the framework used."""
    wanted = row.numpy_dtype
    return array if wanted is None or array.dtype == wanted else array.view(wanted)


def c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, in elements, of a tensor in C order."""
    strides = []
    step = 1
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


def _strided(pointer: int, row: dtypes.Dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """A view of foreign memory; the caller must copy it at once."""
    size = row.itemsize
    extent = size + sum((length - 1) * step * size for length, step in zip(shape, strides))
    memory: Any = (c_char * extent).from_address(pointer)
    return np.ndarray(shape, f"V{size}", memory, strides=tuple(step * size for step in strides))
