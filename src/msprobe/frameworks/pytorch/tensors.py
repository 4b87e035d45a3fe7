"""The values of a PyTorch tensor in host memory, and which dtypes msprobe can measure."""

from __future__ import annotations

from ctypes import c_char
from typing import Any

import numpy as np
import torch

from msprobe.dump.tensor_files.codec import Payload
from msprobe.stats import dtypes

CODES: dict[Any, int] = {
    getattr(torch, row.name): row.code for row in dtypes.TABLE if row.torch is not None and hasattr(torch, row.name)
}
"""The code in the statistics' dtype table of every torch.dtype that it has."""
_NAMES = {dtype: dtypes.BY_CODE[code].name for dtype, code in CODES.items()}
_SIZES = {dtype: dtypes.BY_CODE[code].itemsize for dtype, code in CODES.items()}


def payload(tensor: Any) -> Payload:
    """The values of a contiguous CPU tensor, without a copy: the caller keeps the tensor alive until they are
    written."""
    dtype = tensor.dtype
    size = tensor.numel() * _SIZES[dtype]
    data: Any = np.frombuffer((c_char * size).from_address(tensor.data_ptr()), np.uint8) if size else b""
    return Payload(_NAMES[dtype], tuple(tensor.shape), data, "pt", borrowed=True)
