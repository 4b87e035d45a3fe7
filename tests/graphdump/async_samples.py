"""Asynchronous dump files made from first principles: the bytes of the field table, and the layouts of numpy.

Nothing here uses the code under test: the message is encoded by hand, and every layout is the definition of
its format written as loops over elements, slow and plain.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Sequence

import numpy as np


def varint(value: int) -> bytes:
    out = bytearray()
    while True:
        byte, value = value & 0x7F, value >> 7
        out.append(byte | (0x80 if value else 0))
        if not value:
            return bytes(out)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def blob(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def shape_message(dims: Iterable[int]) -> bytes:
    return b"".join(number(1, dim) for dim in dims)


def op_input(data_type: int, fmt: int, shape: Sequence[int], size: int, original: Sequence[int] | None = None) -> bytes:
    message = number(1, data_type) + number(2, fmt) + blob(3, shape_message(shape)) + number(5, size)
    return message if original is None else message + blob(6, shape_message(original))


def op_output(
    data_type: int,
    fmt: int,
    shape: Sequence[int],
    size: int,
    original: Sequence[int] | None = None,
    original_format: int | None = None,
    sub_format: int = 0,
) -> bytes:
    message = number(1, data_type) + number(2, fmt) + blob(3, shape_message(shape))
    if original_format is not None:
        message += blob(4, blob(1, b"op") + number(3, data_type) + number(4, original_format))
    message += number(6, size)
    if original is not None:
        message += blob(7, shape_message(original))
    return message + number(8, sub_format)


def dump_file(
    inputs: Sequence[tuple[bytes, bytes]] = (),
    outputs: Sequence[tuple[bytes, bytes]] = (),
    buffers: Sequence[bytes] = (),
    op_name: str = "Default/Add-op1",
) -> bytes:
    """(message, data) pairs to the bytes of a file."""
    message = blob(1, b"1.0") + number(2, 1623124369613540)
    message += b"".join(blob(3, described) for described, _ in outputs)
    message += b"".join(blob(4, described) for described, _ in inputs)
    message += b"".join(blob(5, number(3, len(data))) for data in buffers)
    message += blob(6, op_name.encode())
    data = b"".join([data for _, data in inputs] + [data for _, data in outputs] + list(buffers))
    return struct.pack("<Q", len(message)) + message + data


def ceil_div(value: int, block: int) -> int:
    return -(-value // block)


def lay_out_nc1hwc0(nchw: np.ndarray, c0: int = 16) -> np.ndarray:
    n, c, h, w = nchw.shape
    out = np.zeros((n, ceil_div(c, c0), h, w, c0), nchw.dtype)
    for at in itertools.product(range(n), range(c), range(h), range(w)):
        out[at[0], at[1] // c0, at[2], at[3], at[1] % c0] = nchw[at]
    return out


def lay_out_fractal_z(nchw: np.ndarray, c0: int = 16, n0: int = 16) -> np.ndarray:
    n, c, h, w = nchw.shape
    out = np.zeros((ceil_div(c, c0) * h * w, ceil_div(n, n0), n0, c0), nchw.dtype)
    for i, j, k, m in itertools.product(range(n), range(c), range(h), range(w)):
        out[(j // c0) * h * w + k * w + m, i // n0, i % n0, j % c0] = nchw[i, j, k, m]
    return out


def lay_out_ndc1hwc0(ncdhw: np.ndarray, c0: int = 16) -> np.ndarray:
    n, c, d, h, w = ncdhw.shape
    out = np.zeros((n, d, ceil_div(c, c0), h, w, c0), ncdhw.dtype)
    for i, j, k, m, q in itertools.product(range(n), range(c), range(d), range(h), range(w)):
        out[i, k, j // c0, m, q, j % c0] = ncdhw[i, j, k, m, q]
    return out


def lay_out_fractal_z_3d(ncdhw: np.ndarray, c0: int = 16, n0: int = 16) -> np.ndarray:
    n, c, d, h, w = ncdhw.shape
    c1 = ceil_div(c, c0)
    out = np.zeros((d * c1 * h * w, ceil_div(n, n0), n0, c0), ncdhw.dtype)
    for i, j, k, m, q in itertools.product(range(n), range(c), range(d), range(h), range(w)):
        out[((k * c1 + j // c0) * h + m) * w + q, i // n0, i % n0, j % c0] = ncdhw[i, j, k, m, q]
    return out


def lay_out_fractal_nz(matrix: np.ndarray, n0: int = 16, m0: int = 16) -> np.ndarray:
    *batch, m, n = matrix.shape
    out = np.zeros((*batch, ceil_div(n, n0), ceil_div(m, m0), m0, n0), matrix.dtype)
    for at in itertools.product(*map(range, matrix.shape)):
        *b, i, j = at
        out[(*b, j // n0, i // m0, i % m0, j % n0)] = matrix[at]
    return out
