"""Tensor files: `Payload` is what a frontend hands over, `encode` makes a file of it, `load` reads one.

Two formats, as in mindstudio-probe: `.pt` (PyTorch's zip container, written and read here without
PyTorch and without pickle) and `.npy`. Types that numpy lacks come back as ml_dtypes arrays.
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

BytesLike = Any  # whatever supports the buffer protocol: bytes, memoryview, a numpy array
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Payload:
    """A tensor's bytes, C order, in this machine's (little-endian) byte order.

    `dtype` is a name of msprobe.stats.dtypes or, for .pt only, of any other torch dtype. `data` is
    contiguous and supports the buffer protocol (an ml_dtypes array does not: view it as uint8). It
    belongs to the writer from now on, unless it is `borrowed`: then it is the tensor's own memory, and
    is written before the call that hands it over returns.
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
    """The file as a sequence of buffers; the tensor's bytes are one of them, not copied."""
    row = dtypes.BY_NAME.get(payload.dtype)
    if row is not None and payload.nbytes != math.prod(payload.shape) * row.itemsize:
        raise ValueError(f"{payload.nbytes} bytes do not fit a {payload.dtype} tensor of shape {payload.shape}")
    if payload.format == "pt":
        return pt_file.encode(payload.dtype, tuple(payload.shape), payload.data)
    if payload.format == "npy":
        return npy_file.encode(payload.dtype, tuple(payload.shape), payload.data)
    raise ValueError(f"a tensor file is 'pt' or 'npy', not {payload.format!r}")


def load(path: Path, mmap: bool = False) -> Array:
    """The array in a tensor file; with `mmap` its pages are read when they are touched, and read-only."""
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return npy_file.load(path, mmap)
    if suffix == ".pt":
        return pt_reader.load(path, mmap)
    raise DumpError(f"{path} is neither an .npy nor a .pt file.")
