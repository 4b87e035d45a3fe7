"""Reads a .pt file with one tensor, without PyTorch and without pickle.

The zip directory says where the bytes are. Nothing is decompressed: torch does not compress, so a compressed member is
refused, and with it every zip bomb. Every size is compared with the size of the file.
"""

from __future__ import annotations

import math
import struct
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from msprobe.dump.errors import DumpError
from msprobe.dump.tensor_files import pt_program
from msprobe.dump.untrusted.regular_files import open_regular, read_raw
from msprobe.stats import dtypes

Array = np.ndarray[Any, Any]
MAX_EXPANDED = 4 << 30


def load(path: Path, mmap: bool = False) -> Array:
    """The tensor as an array: a view if it has strides; read-only with `mmap`."""
    try:
        with open_regular(path, path.parent.parent) as file:
            return _load(file, mmap)
    except DumpError as error:
        raise DumpError(f"{path} is not a tensor that can be read: {error}.") from None
    except (zipfile.BadZipFile, EOFError, NotImplementedError, UnicodeDecodeError, struct.error) as error:
        raise DumpError(f"{path} is cut short or is not a .pt file ({error}).") from None
    except OSError as error:
        raise DumpError(f"{path} cannot be read: {error.strerror or error}.") from None


def _load(file: IO[bytes], mmap: bool) -> Array:
    with zipfile.ZipFile(file) as archive:
        members = {member.filename: member for member in archive.infolist()}
    programs = [name for name in members if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(programs) != 1:
        raise DumpError(f"it holds {len(programs)} pickle programs instead of one")
    prefix = programs[0][: -len("data.pkl")]
    order = members.get(prefix + "byteorder")
    if order is not None and _read(file, order, 16) != b"little":
        raise DumpError("its bytes are not in little-endian order")
    tensor = pt_program.read(_read(file, members[programs[0]], pt_program.MAX_PROGRAM))
    member = members.get(f"{prefix}data/{tensor.storage.key}")
    if member is None:
        raise DumpError("its data is missing")
    start, size = _locate(file, member)
    row = dtypes.BY_NAME[tensor.dtype]
    first, last = _extent(tensor)
    if last * row.itemsize > size:
        raise DumpError(f"its tensor needs {last * row.itemsize} bytes of data, it has {size}")
    count = math.prod(tensor.shape)
    if count > last - first and count * row.itemsize > MAX_EXPANDED:
        raise DumpError(f"it expands {size} bytes to {count * row.itemsize}")
    begin, wanted = start + first * row.itemsize, (last - first) * row.itemsize
    return _view(read_raw(file, begin, wanted, mmap), tensor, row)


def _extent(tensor: pt_program.Tensor) -> tuple[int, int]:
    """The range of elements in the storage that the tensor uses (end not included)."""
    if 0 in tensor.shape:
        return 0, 0
    reach = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.strides))
    return tensor.offset, tensor.offset + reach + 1


def _view(raw: Array, tensor: pt_program.Tensor, row: dtypes.Dtype) -> Array:
    dtype = row.numpy_dtype
    if row.name == "complex32":  # numpy does not have this type; complex64 has its values exactly
        raw, dtype = raw.view(np.float16).astype(np.float32), np.dtype(np.complex64)
    elif dtype is None:
        raise DumpError(f"this installation has no array type for {row.name}; update ml_dtypes")
    strides = tuple(stride * dtype.itemsize for stride in tensor.strides)
    try:
        array: Array = np.ndarray(tensor.shape, dtype, raw, strides=strides)
    except (ValueError, TypeError, OverflowError):
        raise DumpError("its shape and strides do not fit its data, or are more than numpy can hold") from None
    array.flags.writeable = False
    if tensor.conjugate:
        array = np.conj(array)
    return np.negative(array) if tensor.negative else array


def _read(file: IO[bytes], member: zipfile.ZipInfo, limit: int) -> bytes:
    start, size = _locate(file, member)
    if size > limit:
        raise DumpError(f"its member {member.filename!r} is too large")
    file.seek(start)
    return file.read(size)


def _locate(file: IO[bytes], member: zipfile.ZipInfo) -> tuple[int, int]:
    """The position of the bytes of a member, after a check that they are stored without compression and complete."""
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
        raise DumpError(f"its member {member.filename!r} is compressed or encrypted")
    if member.file_size != member.compress_size:
        raise DumpError(f"its member {member.filename!r} has two sizes")
    file.seek(member.header_offset)
    header = file.read(30)
    if len(header) != 30 or header[:4] != b"PK\x03\x04":
        raise DumpError(f"its member {member.filename!r} has no header")
    start = member.header_offset + 30 + sum(struct.unpack("<HH", header[26:30]))
    if start + member.file_size > file.seek(0, 2):
        raise DumpError(f"its member {member.filename!r} ends after the end of the file")
    return start, member.file_size
