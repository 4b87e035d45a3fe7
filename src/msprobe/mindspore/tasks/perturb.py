"""The six ways in which free_benchmark changes what a call receives, for tensors of MindSpore.

They are computed with numpy, which costs less than an operator of the framework. Only `fix` uses operators, so that
gradients flow through them.
"""

from __future__ import annotations

import math
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, ops
from mindspore._c_expression import TensorPy
from mindspore._c_expression import typing as kinds

from msprobe.frameworks.mindspore.tensors import Array, bits, c_strides, copy_values, row_of
from msprobe.stats import dtypes
from msprobe.tasks.free_benchmark.perturbation import CHANGE_VALUE, NOISE, TO_CPU, NotChanged

_RAISED = {"float16": "float32", "bfloat16": "float32"}
_ON_CPU = {**_RAISED, "float32": "float64", "complex64": "complex128"}


def array_of(tensor: Any) -> Array:
    """The values of a tensor, not copied if they are in C order. Reading them waits for the operator."""
    row = row_of(tensor)
    if row is None:
        raise TypeError(f"values of {tensor.dtype} cannot be read")
    if tensor.device == "CPU" and 0 not in tensor.shape and tuple(tensor.stride()) != c_strides(tuple(tensor.shape)):
        return copy_values(tensor)[0]
    return bits(tensor.asnumpy(), row)


def copy_of(value: Any) -> Any:
    """A tensor that shares nothing with the one given."""
    return Tensor.from_numpy(np.array(array_of(value))) if isinstance(value, TensorPy) else value


class MindSporePerturbations:
    leaves: tuple[type, ...] = (TensorPy, kinds.Type)

    def __init__(self, graph: bool = False) -> None:
        """`graph`: gradients flow through the changed tensors."""
        self._graph = graph

    def is_float(self, value: Any) -> bool:
        if not isinstance(value, TensorPy):
            return False
        row = row_of(value)
        return row is not None and row.kind == dtypes.FLOAT

    def raise_precision(self, value: Any, mode: str) -> Any:
        table = _ON_CPU if mode == TO_CPU else _RAISED
        row = row_of(value) if isinstance(value, TensorPy) else dtypes.BY_MINDSPORE.get(str(value))
        wider = table.get(row.name) if row is not None else None
        if wider is None:
            return value
        if not isinstance(value, TensorPy):
            return getattr(mindspore, wider)
        if self._graph:
            return ops.cast(value, getattr(mindspore, wider))
        array = array_of(value)
        if row is not None and row.name == "bfloat16":
            return Tensor.from_numpy(_widen(array))
        return Tensor.from_numpy(array.astype(wider))

    def alter(self, tensor: Any, mode: str) -> Any:
        row = row_of(tensor)
        if row is None or row.name not in NOISE or 0 in tensor.shape:
            raise NotChanged
        new = _CHANGES[mode](array_of(tensor), row)
        if self._graph:
            return _swap_ends(tensor) if mode == CHANGE_VALUE else _move(tensor, new, row)
        return Tensor.from_numpy(np.ascontiguousarray(new).reshape(tuple(tensor.shape)))


def _swap_ends(tensor: Any) -> Any:
    """As `_change_value`, by operators."""
    places = np.arange(tensor.size)
    places[[0, -1]] = places[[-1, 0]]
    return ops.gather(tensor.reshape(-1), Tensor(places), 0).reshape(tensor.shape)


def _move(tensor: Any, new: Array, row: dtypes.Dtype) -> Any:
    """`new` as a sum of the tensor and their difference, which is exact: noise moves a value by one spacing."""
    old = array_of(tensor)
    if row.name == "bfloat16":
        difference = _narrow(_widen(new) - _widen(old), row)
    else:
        difference = np.nan_to_num(new - old, nan=0.0, posinf=0.0, neginf=0.0)
    return ops.add(tensor, Tensor.from_numpy(np.ascontiguousarray(difference).reshape(tuple(tensor.shape))))


def _widen(array: Array) -> Array:
    """bfloat16 as float32: the same bits, and zeros."""
    return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _narrow(array: Array, row: dtypes.Dtype) -> Array:
    if row.name != "bfloat16":
        return array.astype(row.name)
    wide = array.view(np.uint32)
    rounded = ((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded.view(row.numpy_dtype)


def _add_noise(array: Array, row: dtypes.Dtype) -> Array:
    noise = NOISE[row.name]
    wide = _widen(array) if row.name == "bfloat16" else array.astype(np.float32) if row.itemsize == 2 else array
    with np.errstate(all="ignore"):
        large = np.abs(wide) > math.sqrt(noise)
        if not large.any():
            raise NotChanged
        new = _narrow(wide + large.astype(wide.dtype) * wide.dtype.type(noise), row)
    if new.tobytes() == array.tobytes():  # the noise is less than half the spacing of these values
        raise NotChanged
    return new


def _bit_noise(array: Array, row: dtypes.Dtype) -> Array:
    """Not infinities: changing their lowest bit makes them NaN."""
    unsigned = np.ascontiguousarray(array).view(f"u{row.itemsize}")
    one = unsigned.dtype.type(1)
    magnitude = unsigned & ~(one << unsigned.dtype.type(8 * row.itemsize - 1))
    infinity = ((1 << (8 * row.itemsize - 1)) - 1) >> row.mantissa << row.mantissa
    large = (magnitude > (1 << row.mantissa)) & (magnitude < infinity)
    if not large.any():
        raise NotChanged
    return (unsigned ^ large.astype(unsigned.dtype)).view(array.dtype)


def _change_value(array: Array, row: dtypes.Dtype) -> Array:
    new = np.array(array, order="C")
    flat = new.reshape(-1)
    if flat.size < 2 or flat[0] == flat[-1]:
        raise NotChanged
    flat[0], flat[-1] = flat[-1].copy(), flat[0].copy()
    return new


_CHANGES = {"add_noise": _add_noise, "bit_noise": _bit_noise, CHANGE_VALUE: _change_value}
