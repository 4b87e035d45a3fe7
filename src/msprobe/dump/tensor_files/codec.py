"""Tensor files: a frontend passes a `Payload`, `encode` makes a file of it, `load` reads a file.

There are two formats, as in mindstudio-probe: `.pt` (PyTorch's zip container, written and read without PyTorch and
without pickle) and `.npy`. Types that numpy does not have are returned as ml_dtypes arrays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from msprobe.dump.errors import DumpError
from msprobe.dump.tensor_files import npy_file, pt_file, pt_reader
from msprobe.stats import dtypes

BytesLike = Any  # any object that supports the buffer protocol: bytes, memoryview, a numpy array
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Payload:
    """The bytes of a tensor, in C order and in the (little-endian) byte order of this machine.

    `dtype` is a name of msprobe.stats.dtypes or, for .pt only, of any other torch dtype. `data` is contiguous and
    supports the buffer protocol (an ml_dtypes array does not: view it as uint8). From now on it belongs to the writer,
    unless it is `borrowed`: then it is the memory of the tensor itself, and is written before the call returns.
    """

    dtype: str
    shape: tuple[int, ...]
    data: BytesLike
    format: str
    borrowed: bool = False

    @property
    def nbytes(self) -> int:
        return memoryview(self.data).nbytes

    @property
    def suffix(self) -> str:
        return f".{self.format}"


def encode(payload: Payload) -> tuple[object, ...]:
    """The file as a sequence of buffers. The bytes of the tensor are one of them, not copied."""
    row = dtypes.BY_NAME.get(payload.dtype)
    if row is not None and payload.nbytes != math.prod(payload.shape) * row.itemsize:
        raise ValueError(f"{payload.nbytes} bytes do not fit a {payload.dtype} tensor of shape {payload.shape}")
    if payload.format == "pt":
        return pt_file.encode(payload.dtype, tuple(payload.shape), payload.data)
    if payload.format == "npy":
        return npy_file.encode(payload.dtype, tuple(payload.shape), payload.data)
    raise ValueError(f"a tensor file is 'pt' or 'npy', not {payload.format!r}")


def load(path: Path, mmap: bool = False) -> Array:
    """The array in a tensor file. With `mmap` it is mapped and read-only."""
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return npy_file.load(path, mmap)
    if suffix == ".pt":
        return pt_reader.load(path, mmap)
    raise DumpError(f"{path} is neither an .npy nor a .pt file.")
