"""The .npy files of MindSpore dumps, also with types that numpy does not know.

bfloat16 and float8 are written bit for bit as numpy's raw type of the same size ('<V2', '|V1'), which `numpy.load` can
open, and a comment in the header names the type. This reader returns them as ml_dtypes arrays. MindSpore's own bf16
files have the type '<E2', which numpy refuses and this reader knows.
"""

from __future__ import annotations

import ast
import functools
import re
import struct
from pathlib import Path
from typing import Any, Optional

import numpy as np

from msprobe.dump.errors import DumpError
from msprobe.dump.untrusted.regular_files import open_regular, read_raw
from msprobe.stats import dtypes

MAGIC = b"\x93NUMPY"
ALIGNMENT = 64
MAX_HEADER = 64 << 10
MAX_RANK = 64
Array = np.ndarray[Any, Any]

_COMMENT = re.compile(r"#\s*dtype:\s*([a-z0-9_]+)\s*\Z")


def encode(dtype: str, shape: tuple[int, ...], data: Any) -> tuple[object, ...]:
    """The file as (header, data)."""
    return _header(dtype, shape), data


@functools.lru_cache(maxsize=1024)
def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    row = dtypes.BY_NAME.get(dtype)
    if row is None:
        raise ValueError(f"an .npy file cannot hold {dtype}; known: {', '.join(dtypes.BY_NAME)}")
    plain = row.numpy is not None and not row.numpy.startswith("ml_dtypes.")
    descr = np.dtype(row.numpy).str if plain else f"{'<' if row.itemsize > 1 else '|'}V{row.itemsize}"
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape!r}, }}"
    if not plain:
        text += f"  # dtype: {dtype}"
    room = -(len(MAGIC) + 4 + len(text) + 1) % ALIGNMENT
    body = (text + " " * room + "\n").encode("latin-1")
    return MAGIC + b"\x01\x00" + struct.pack("<H", len(body)) + body


def load(path: Path, mmap: bool = False) -> Array:
    """The array in an .npy file. Never unpickles; checks the sizes before it allocates memory."""
    try:
        with open_regular(path, path.parent.parent) as file:
            size = file.seek(0, 2)
            file.seek(0)
            dtype, shape, fortran, start = _read_header(file.read(12 + MAX_HEADER), path)
            wanted = _count(shape) * dtype.itemsize
            if size - start < wanted:
                raise DumpError(
                    f"{path} is cut short: its header promises {wanted} bytes of data, it has {size - start}."
                )
            raw = read_raw(file, start, wanted, mmap)
        return raw.view(dtype).reshape(shape, order="F" if fortran else "C")
    except OSError as error:
        raise DumpError(f"{path} cannot be read: {error.strerror or error}.") from None
    except ValueError:  # numpy allows fewer and smaller dimensions than a header can have
        raise DumpError(f"{path} has a shape that numpy cannot hold.") from None


def _read_header(data: bytes, path: Path) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    if data[:6] != MAGIC or len(data) < 10:
        raise DumpError(f"{path} is not an .npy file: its first bytes are wrong.")
    major = data[6]
    prefix = 10 if major == 1 else 12
    length = struct.unpack("<H" if major == 1 else "<I", data[8:prefix])[0] if len(data) >= prefix else -1
    if major not in (1, 2, 3) or length < 0 or length > MAX_HEADER or prefix + length > len(data):
        raise DumpError(f"{path} has a damaged or unknown .npy header.")
    text = data[prefix : prefix + length].decode("latin-1").strip()
    try:
        fields = ast.literal_eval(text)
        descr, shape, fortran = fields["descr"], fields["shape"], fields["fortran_order"]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        raise DumpError(f"{path} has a damaged .npy header.") from None
    if not isinstance(descr, str) or not isinstance(fortran, bool) or not _is_shape(shape):
        raise DumpError(f"{path} has an .npy header that does not describe a plain array.")
    comment = _COMMENT.search(text)
    return _dtype(descr, comment[1] if comment else None, path), shape, fortran, prefix + length


def _dtype(descr: str, named: Optional[str], path: Path) -> np.dtype[Any]:
    if descr == "<E2" or (descr in ("<V2", "|V2") and named is None):
        named = "bfloat16"
    if named is not None:
        row = dtypes.BY_NAME.get(named)
        known = row.numpy_dtype if row else None
        if known is None or descr.lstrip("<|") not in (f"V{known.itemsize}", f"E{known.itemsize}"):
            raise DumpError(f"{path} holds {named} as {descr}, which this installation cannot read.")
        return known
    try:
        found = np.dtype(descr)
    except (TypeError, ValueError, SyntaxError):
        raise DumpError(f"{path} has the unknown element type {descr!r}.") from None
    if found.subdtype is not None or found.names is not None:
        raise DumpError(f"{path} has the element type {descr!r}, which is not a plain one.")
    if found.hasobject:
        raise DumpError(f"{path} holds Python objects, which are never loaded.")
    if found.itemsize <= 0:  # also where numpy's own count of a huge element overflows
        raise DumpError(f"{path} has the element type {descr!r}, whose elements have no size.")
    return found


def _is_shape(shape: object) -> bool:
    return (
        isinstance(shape, tuple)
        and len(shape) <= MAX_RANK
        and all(isinstance(length, int) and not isinstance(length, bool) and length >= 0 for length in shape)
    )


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count
