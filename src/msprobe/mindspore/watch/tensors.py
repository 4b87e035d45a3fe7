"""A MindSpore tensor's figures: read where it lies in host memory; copied to the host from a device."""

from __future__ import annotations

from typing import Any, Optional

import mindspore
from mindspore._c_expression import TensorPy

from msprobe.collect import notices
from msprobe.stats import dtypes
from msprobe.watch import gauge
from msprobe.watch.targets import Figures

_KNOWN = {row.mindspore: getattr(mindspore, row.name, None) for row in dtypes.TABLE if row.mindspore is not None}
_CODES: dict[int, int] = {
    id(kind): dtypes.BY_MINDSPORE[name].code for name, kind in _KNOWN.items() if kind is not None and name is not None
}
_address = TensorPy._data_ptr
_strides = TensorPy.stride
Outside = Optional[tuple[float, float]]


def is_float(tensor: Any) -> bool:
    code = _CODES.get(id(tensor._dtype))
    return code is not None and dtypes.BY_CODE[code].kind in (dtypes.FLOAT, dtypes.COMPLEX)


def dtype_name(tensor: Any) -> str:
    code = _CODES.get(id(tensor._dtype))
    return "" if code is None else dtypes.BY_CODE[code].name


def read(tensor: Any, outside: Outside) -> Optional[Figures]:
    """The figures of a tensor, or None for one that has none."""
    code = _CODES.get(id(tensor._dtype))
    if code is None:
        notices.warn_once(f"tensors of dtype {tensor._dtype} have no statistics; they are not watched.")
        return None
    if tensor.device == "CPU":
        address = _address(tensor)
        if not address:
            return None
        return gauge.read_memory(address, code, tuple(tensor._shape), tuple(_strides(tensor)), outside)
    array = tensor.asnumpy()
    row = dtypes.of_numpy(array.dtype)
    return None if row is None else gauge.read_array(array, row.code, outside)


def sample(tensor: Any) -> Optional[Any]:
    """Some elements of a parameter, copied."""
    code = _CODES.get(id(tensor._dtype))
    if code is None or tensor.device != "CPU" or not tensor.is_contiguous():
        return None
    return gauge.sample(_address(tensor), code, int(tensor.size))
