"""Measures MindSpore tensors: reads them in place in host memory, and copies them to the host from a device."""

from __future__ import annotations

from typing import Any, Optional

import mindspore
import numpy as np
from mindspore._c_expression import TensorPy

from msprobe.collect import notices
from msprobe.frameworks.mindspore.tensors import copy_values, row_of
from msprobe.mindspore.tensors.late_errors import keep_if_last
from msprobe.stats import dtypes
from msprobe.watch import gauge
from msprobe.watch.gauge import Outside
from msprobe.watch.step_figures import StepFigures

Array = np.ndarray[Any, Any]
_KNOWN = {row.mindspore: getattr(mindspore, row.name, None) for row in dtypes.TABLE if row.mindspore is not None}
_CODES: dict[int, int] = {
    id(kind): dtypes.BY_MINDSPORE[name].code for name, kind in _KNOWN.items() if kind is not None and name is not None
}
_address = TensorPy._data_ptr
_strides = TensorPy.stride


def is_float(tensor: Any) -> bool:
    code = _CODES.get(id(tensor._dtype))
    return code is not None and dtypes.BY_CODE[code].kind in (dtypes.FLOAT, dtypes.COMPLEX)


def dtype_name(tensor: Any) -> str:
    code = _CODES.get(id(tensor._dtype))
    return "" if code is None else dtypes.BY_CODE[code].name


def read(tensor: Any, outside: Outside, found: StepFigures, row: int, joined: bool = False) -> None:
    """Writes the figures of a tensor into its row; `joined` combines them with those of the row."""
    code = _CODES.get(id(tensor._dtype))
    if code is None:
        notices.warn_once(f"tensors of dtype {tensor._dtype} are not watched: msprobe has no statistics for them.")
        return
    try:
        on_host = tensor.device == "CPU"
        address = _address(tensor) if on_host else 0  # waits for the operator that fills the tensor
    except Exception as error:
        keep_if_last(error, lambda: _address(tensor))
        return
    if on_host:
        if address:
            strides = tuple(_strides(tensor))
            gauge.read_memory(address, code, tuple(tensor._shape), strides, outside, found, row, joined)
        return
    array = tensor.asnumpy()
    known = dtypes.of_numpy(array.dtype)
    if known is not None:
        gauge.read_array(array, known.code, outside, found, row, joined)


def floats(tensor: Any) -> Optional[Array]:
    """A copy of the values as float32; None for complex numbers, and for a tensor without elements."""
    row = row_of(tensor)
    if row is None or row.kind != dtypes.FLOAT or row.numpy_dtype is None or 0 in tensor._shape:
        return None
    try:
        return np.asarray(copy_values(tensor)[0], np.float32)
    except Exception as error:
        keep_if_last(error, lambda: _address(tensor))
        return None


def locate(tensor: Any) -> Optional[tuple[int, int, int]]:
    """Address, dtype code and number of elements of a parameter in host memory; None for others."""
    code = _CODES.get(id(tensor._dtype))
    if code is None or tensor.device != "CPU" or not tensor.is_contiguous():
        return None
    return _address(tensor), code, int(tensor.size)
