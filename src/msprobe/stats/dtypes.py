"""The table of dtypes: all names of a dtype, and its code in the C kernel.

Frontends, the dump reader and the comparison use this table, so a new dtype is added in one place. The codes are the
same as in `core.h`; the tests check the table of the kernel against this one.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np

BOOL, INT, UINT, FLOAT, COMPLEX = "bool", "int", "uint", "float", "complex"


@dataclass(frozen=True)
class Dtype:
    """One element type. `torch`, `mindspore` and `numpy` are None if that library does not have the type.

    `largest` is the largest finite value (of one part, for complex). `smallest_normal` is None for types without
    subnormal values. `mantissa` is the number of stored fraction bits of a float.
    """

    code: int
    name: str
    itemsize: int
    kind: str
    torch: Optional[str]
    mindspore: Optional[str]
    numpy: Optional[str]
    largest: Union[int, float]
    smallest_normal: Optional[float] = None
    mantissa: int = 0
    has_inf: bool = False

    @property
    def numpy_dtype(self) -> Optional[np.dtype[Any]]:
        """The type of numpy or ml_dtypes, or None if this installation has neither."""
        return _numpy_dtype(self.numpy) if self.numpy else None


@functools.cache
def _numpy_dtype(name: str) -> Optional[np.dtype[Any]]:
    if not name.startswith("ml_dtypes."):
        return np.dtype(name)
    import ml_dtypes

    scalar = getattr(ml_dtypes, name[len("ml_dtypes.") :], None)  # float8_e8m0fnu needs ml_dtypes 0.5
    return None if scalar is None else np.dtype(scalar)


def _integer(code: int, name: str, size: int, kind: str, mindspore: str) -> Dtype:
    bits = size * 8 - (kind == INT)
    return Dtype(code, name, size, kind, f"torch.{name}", mindspore, name, 2**bits - 1)


def _float8(code: int, name: str, ms: Optional[str], largest: float, normal: float, mantissa: int) -> Dtype:
    has_inf = name == "float8_e5m2"
    numpy_name = f"ml_dtypes.{name}"
    return Dtype(code, name, 1, FLOAT, f"torch.{name}", ms, numpy_name, largest, normal, mantissa, has_inf)


_FP16_MAX, _FP32_MAX, _FP64_MAX = 65504.0, float(np.finfo("f4").max), float(np.finfo("f8").max)
_BF16_MAX = (2 - 2.0**-7) * 2.0**127

TABLE: tuple[Dtype, ...] = (
    Dtype(0, "bool", 1, BOOL, "torch.bool", "Bool", "bool", 1),
    _integer(1, "int8", 1, INT, "Int8"),
    _integer(2, "int16", 2, INT, "Int16"),
    _integer(3, "int32", 4, INT, "Int32"),
    _integer(4, "int64", 8, INT, "Int64"),
    _integer(5, "uint8", 1, UINT, "UInt8"),
    _integer(6, "uint16", 2, UINT, "UInt16"),
    _integer(7, "uint32", 4, UINT, "UInt32"),
    _integer(8, "uint64", 8, UINT, "UInt64"),
    Dtype(9, "float16", 2, FLOAT, "torch.float16", "Float16", "float16", _FP16_MAX, 2.0**-14, 10, True),
    Dtype(
        10, "bfloat16", 2, FLOAT, "torch.bfloat16", "BFloat16", "ml_dtypes.bfloat16",
        _BF16_MAX, 2.0**-126, 7, True,
    ),
    Dtype(11, "float32", 4, FLOAT, "torch.float32", "Float32", "float32", _FP32_MAX, 2.0**-126, 23, True),
    Dtype(12, "float64", 8, FLOAT, "torch.float64", "Float64", "float64", _FP64_MAX, 2.0**-1022, 52, True),
    _float8(13, "float8_e4m3fn", "Float8E4M3FN", 448.0, 2.0**-6, 3),
    _float8(14, "float8_e5m2", "Float8E5M2", 57344.0, 2.0**-14, 2),
    _float8(15, "float8_e4m3fnuz", None, 240.0, 2.0**-7, 3),
    _float8(16, "float8_e5m2fnuz", None, 57344.0, 2.0**-15, 2),
    _float8(17, "float8_e8m0fnu", None, 2.0**127, 2.0**-127, 0),
    Dtype(18, "complex32", 4, COMPLEX, "torch.complex32", None, None, _FP16_MAX, 2.0**-14, 10, True),
    Dtype(
        19, "complex64", 8, COMPLEX, "torch.complex64", "Complex64", "complex64",
        _FP32_MAX, 2.0**-126, 23, True,
    ),
    Dtype(
        20, "complex128", 16, COMPLEX, "torch.complex128", "Complex128", "complex128",
        _FP64_MAX, 2.0**-1022, 52, True,
    ),
)  # fmt: skip

BY_CODE: dict[int, Dtype] = {row.code: row for row in TABLE}
BY_NAME: dict[str, Dtype] = {row.name: row for row in TABLE}
BY_TORCH: dict[str, Dtype] = {row.torch: row for row in TABLE if row.torch}
BY_MINDSPORE: dict[str, Dtype] = {row.mindspore: row for row in TABLE if row.mindspore}


@functools.cache
def of_numpy(dtype: np.dtype[Any]) -> Optional[Dtype]:
    """The row of a numpy or ml_dtypes dtype in the byte order of this machine, or None."""
    for row in TABLE:
        if row.numpy is not None and row.numpy_dtype == dtype:
            return row
    return None
