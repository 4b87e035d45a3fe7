"""The data types and formats in dumps of MindSpore and Ascend, by number and by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import ml_dtypes
import numpy as np
import numpy.typing as npt

from msprobe.stats.dtypes import BY_MINDSPORE, BY_NAME


@dataclass(frozen=True)
class DataType:
    """One data type, in memory and in a .npy file.

    `dtype` is the type after unpacking; `saved` is a type that numpy can load without ml_dtypes. `bits` is less than 8
    if several elements share a byte; the first is in the lowest bits.
    """

    name: str
    dtype: np.dtype[Any]
    saved: np.dtype[Any]
    bits: int

    def bytes_of(self, elements: int) -> int:
        return (elements * self.bits + 7) // 8


def _plain(name: str) -> DataType:
    dtype = np.dtype(name).newbyteorder("<") if name != "bool" else np.dtype(bool)
    return DataType(name, dtype, dtype, dtype.itemsize * 8)


def _float(name: str) -> Optional[DataType]:
    """A type of ml_dtypes, saved as float32; None if the installed ml_dtypes does not have it."""
    scalar = getattr(ml_dtypes, name, None)
    if scalar is None:
        return None
    dtype = np.dtype(scalar)
    return DataType(name, dtype, np.dtype("<f4"), dtype.itemsize * 8)


_TYPES: dict[int, Optional[DataType]] = {
    1: _plain("float32"),
    2: _plain("float16"),
    3: _plain("int8"),
    4: _plain("uint8"),
    5: _plain("int16"),
    6: _plain("uint16"),
    7: _plain("int32"),
    8: _plain("int64"),
    9: _plain("uint32"),
    10: _plain("uint64"),
    11: _plain("bool"),
    12: _plain("float64"),
    16: _plain("complex64"),
    17: _plain("complex128"),
    27: _float("bfloat16"),
    28: DataType("int4", np.dtype("i1"), np.dtype("i1"), 4),
    29: DataType("uint1", np.dtype("u1"), np.dtype("u1"), 1),
    34: _float("float8_e5m2"),
    35: _float("float8_e4m3fn"),
    36: _float("float8_e8m0fnu"),
}
TYPES: dict[int, DataType] = {number: kind for number, kind in _TYPES.items() if kind is not None}

FORMATS = {
    0: "NCHW",
    1: "NHWC",
    2: "ND",
    3: "NC1HWC0",
    4: "FRACTAL_Z",
    16: "HWCN",
    27: "NDHWC",
    29: "FRACTAL_NZ",
    30: "NCDHW",
    31: "DHWCN",
    32: "NDC1HWC0",
    33: "FRACTAL_Z_3D",
}

# Spellings in file names: MindSpore on CPU (Float32), its documentation (float16), Ascend O2 (FLOAT, BF16).
_SPELLINGS = {"float": "float32", "double": "float64", "bf16": "bfloat16", "int": "int32", "uint": "uint32"}
_ASCEND = {"float32": "FLOAT", "float64": "DOUBLE", "bfloat16": "BF16"}
_SPELLINGS.update((token.lower(), row.name) for token, row in BY_MINDSPORE.items())
_BY_NAME = {kind.name: kind for kind in TYPES.values()}


def find_type(token: str) -> Optional[DataType]:
    """The type for a name in a file name or a csv cell, or None."""
    name = token.lower()
    return _BY_NAME.get(_SPELLINGS.get(name, name))


def mindspore_token(kind: DataType) -> str:
    """The name that MindSpore uses in file names: Float32, Int64, BFloat16."""
    row = BY_NAME.get(kind.name)
    return row.mindspore if row and row.mindspore else kind.name.capitalize()


def ascend_token(kind: DataType) -> str:
    """The name that Ascend uses in file names at jit_level O2: FLOAT, INT32, BF16."""
    return _ASCEND.get(kind.name, kind.name.upper())


def is_raw(kind: DataType) -> bool:
    """Whether numpy has no such type: at jit_level O2 it is stored as raw bytes."""
    return kind.bits < 8 or kind.dtype != kind.saved


def unpack(raw: npt.NDArray[np.uint8], kind: DataType, elements: int) -> npt.NDArray[np.generic]:
    """The elements in `raw` as a flat array; a view if the type is not packed. `raw` has `kind.bytes_of(elements)`."""
    if kind.bits >= 8:
        return raw.view(kind.dtype)
    if kind.bits == 1:
        return np.unpackbits(raw, bitorder="little")[:elements]
    halves = np.empty((raw.size, 2), np.int8)
    halves[:, 0] = raw & 0x0F
    halves[:, 1] = raw >> 4
    halves[halves > 7] -= 16
    return halves.reshape(-1)[:elements]
