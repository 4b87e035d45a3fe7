"""Writes PyTorch's .pt container for one tensor. torch.save would be most of the cost of a small file.

The container is a zip archive without compression; the bytes of the tensor are at a multiple of 64. Everything except
the data and its CRC-32 depends only on dtype and shape, so it is built once for each pair and cached. The pickle
program is written here opcode by opcode; `torch.load(weights_only=True)` reads it.
"""

from __future__ import annotations

import functools
import re
import struct
import zlib
from typing import Any

from msprobe.stats import crc32

ALIGNMENT = 64
_ZIP64_FROM = 0xFFFFFFFF
_PADDING_ID = b"FB"
_DTYPE_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}\Z")

STORAGES = {
    "float64": "DoubleStorage",
    "float32": "FloatStorage",
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
    "int64": "LongStorage",
    "int32": "IntStorage",
    "int16": "ShortStorage",
    "int8": "CharStorage",
    "uint8": "ByteStorage",
    "bool": "BoolStorage",
    "complex64": "ComplexFloatStorage",
    "complex128": "ComplexDoubleStorage",
}


def encode(dtype: str, shape: tuple[int, ...], data: Any) -> tuple[object, ...]:
    """The file as (before, data, after)."""
    view = memoryview(data)
    check = struct.pack("<I", crc32(data) if view.nbytes else 0)
    head, middle, tail, end = _frame(dtype, shape, view.nbytes)
    return head + check + middle, data, tail + check + end


@functools.lru_cache(maxsize=1024)
def _frame(dtype: str, shape: tuple[int, ...], size: int) -> tuple[bytes, bytes, bytes, bytes]:
    """Everything except the data, split where the CRC-32 of the data belongs."""
    head, central = b"", b""
    members = (("version", b"3\n"), ("byteorder", b"little"), ("data.pkl", _program(dtype, shape, size)))
    for name, body in members:
        local, entry = _headers(f"archive/{name}", zlib.crc32(body), len(body), len(head))
        head += local + body
        central += entry
    local, entry = _headers("archive/data/0", 0, size, len(head))
    start = len(head) + len(local) + size
    end = _end_of_directory(len(members) + 1, len(central) + len(entry), start)
    return head + local[:14], local[18:], central + entry[:16], entry[20:] + end


def _headers(name: str, crc: int, size: int, offset: int) -> tuple[bytes, bytes]:
    """The local header of a member, padded so that its body is aligned, and its entry in the directory."""
    encoded = name.encode()
    large = size >= _ZIP64_FROM
    shown = _ZIP64_FROM if large else size
    extra = struct.pack("<HHQQ", 1, 16, size, size) if large else b""
    gap = -(offset + 30 + len(encoded) + len(extra) + 4) % ALIGNMENT
    padded = extra + _PADDING_ID + struct.pack("<H", gap) + b"Z" * gap
    version = 45 if large else 20
    fields = struct.pack("<HHHHHIII", version, 0, 0, 0, 0x21, crc, shown, shown)
    local = b"PK\x03\x04" + fields + struct.pack("<HH", len(encoded), len(padded)) + encoded + padded
    entry = b"PK\x01\x02" + struct.pack("<H", version) + fields
    entry += struct.pack("<HHHHHII", len(encoded), len(extra), 0, 0, 0, 0, offset) + encoded + extra
    return local, entry


def _end_of_directory(count: int, size: int, offset: int) -> bytes:
    large = b""
    shown = min(offset, _ZIP64_FROM)
    if offset >= _ZIP64_FROM:
        large = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, offset)
        large += struct.pack("<4sIQI", b"PK\x06\x07", 0, offset + size, 1)
    return large + struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, count, count, size, shown, 0)


def _program(dtype: str, shape: tuple[int, ...], size: int) -> bytes:
    """The pickle program for one contiguous tensor over storage 0."""
    if not _DTYPE_NAME.match(dtype):
        raise ValueError(f"{dtype!r} is not the name of a dtype")
    stride, strides = 1, []
    for length in reversed(shape):
        strides.append(stride)
        stride *= max(length, 1)
    storage = STORAGES.get(dtype)
    if storage is not None:
        items = 1
        for length in shape:
            items *= length
        rebuild, kind, length_of_storage = "_rebuild_tensor_v2", f"torch\n{storage}\n", items
        last = b""
    else:
        rebuild, kind, length_of_storage = "_rebuild_tensor_v3", "torch.storage\nUntypedStorage\n", size
        last = f"ctorch\n{dtype}\n".encode()
    return (
        b"\x80\x02"
        + f"ctorch._utils\n{rebuild}\n".encode()
        + b"(("
        + _text("storage")
        + f"c{kind}".encode()
        + _text("0")
        + _text("cpu")
        + _integer(length_of_storage)
        + b"tQ"
        + _integer(0)
        + _integers(shape)
        + _integers(tuple(reversed(strides)))
        + b"\x89ccollections\nOrderedDict\n)R"
        + last
        + b"tR."
    )


def _text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def _integers(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(_integer(value) for value in values) + b"t"


def _integer(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + struct.pack("<B", value)
    if 0 <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    body = value.to_bytes(9, "little", signed=True)
    return b"\x8a" + bytes([len(body)]) + body
