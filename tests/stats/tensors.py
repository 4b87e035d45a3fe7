"""Tensors for the tests of the kernel: any dtype, any bits, any layout, as an address with shape and strides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from msprobe.stats import dtypes
from msprobe.stats.dtypes import COMPLEX, FLOAT, Dtype

RAW = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "V16"}


@dataclass(frozen=True)
class Tensor:
    """`raw` holds the bits; `args` are the first four arguments of measure and render."""

    row: Dtype
    raw: np.ndarray[Any, Any]

    @property
    def args(self) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
        strides = tuple(stride // self.raw.itemsize for stride in self.raw.strides)
        return self.raw.__array_interface__["data"][0], self.row.code, self.raw.shape, strides

    def __repr__(self) -> str:
        return f"Tensor({self.row.name}, {self.raw.shape}, {self.raw.strides}, {self.raw.tobytes().hex()})"


def raw_of(row: Dtype, values: np.ndarray[Any, Any]) -> Tensor:
    """The values, rounded to the dtype."""
    with np.errstate(all="ignore"):
        if row.name == "complex32":
            parts = np.stack([values, values[::-1]], axis=-1).astype(np.float16)
            return Tensor(row, np.ascontiguousarray(parts).view("u4")[..., 0])
        return Tensor(row, np.ascontiguousarray(values.astype(row.numpy_dtype)).view(RAW[row.itemsize]))


def random_tensor(row: Dtype, count: int, seed: int = 0) -> Tensor:
    """Finite values of mixed sign and size."""
    values = np.random.default_rng(seed).standard_normal(count) * 20
    if row.name == "float8_e8m0fnu":
        values = np.abs(values)
    return raw_of(row, values * (1 + 1j) if row.kind == COMPLEX and row.name != "complex32" else values)


def special_bits(row: Dtype) -> list[int]:
    """Zero, one, the extremes, and for floats NaN, the infinities, -0.0 and the subnormals, as bits of one part."""
    bits = row.itemsize * (4 if row.kind == COMPLEX else 8)
    ones, top = 2**bits - 1, 1 << (bits - 1)
    found = [0, 1, top, top + 1, ones, top - 1]
    if row.kind in (FLOAT, COMPLEX) and row.mantissa:
        inf = (2 ** (bits - 1 - row.mantissa) - 1) << row.mantissa
        smallest_normal = 1 << row.mantissa
        found += [inf, inf | top, inf - 1, (inf - 1) | top, inf | 1, smallest_normal, smallest_normal - 1]
    return found


@st.composite
def tensors(draw: st.DrawFn, row: Dtype) -> Tensor:
    """Any bits in any layout: permuted, sliced, reversed, expanded, empty, 0-d."""
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    parts = 2 if row.kind == COMPLEX else 1
    part_bits = row.itemsize * 8 // parts
    part = st.sampled_from(special_bits(row)) | st.integers(0, 2**part_bits - 1)
    if row.kind == dtypes.BOOL:
        part = st.integers(0, 1)
    elif draw(st.booleans()):  # finite ones only: with NaN in most tensors little else would be compared
        finite = dtypes_finite(row)
        part = st.sampled_from(finite)
    count = int(np.prod(shape, dtype=np.int64)) * parts
    values = draw(st.lists(part, min_size=count, max_size=count))
    data = b"".join(value.to_bytes(part_bits // 8, "little") for value in values)
    raw = np.frombuffer(data, RAW[row.itemsize]).reshape(shape)
    raw = raw.transpose(draw(st.permutations(range(raw.ndim))))
    for axis in range(raw.ndim):
        step = draw(st.sampled_from([1, 1, 2, -1, -2]))
        raw = raw[(slice(None),) * axis + (slice(None, None, step),)]
    if draw(st.booleans()) and raw.ndim < 5:
        repeats = draw(st.integers(1, 3))
        at = draw(st.integers(0, raw.ndim))
        raw = np.broadcast_to(np.expand_dims(raw, at), (*raw.shape[:at], repeats, *raw.shape[at:]))
    return Tensor(row, raw)


def dtypes_finite(row: Dtype) -> list[int]:
    """Bits of finite numbers over the dtype's whole range."""
    bits = row.itemsize * (4 if row.kind == COMPLEX else 8)
    pattern = np.random.default_rng(row.code).integers(0, 2**bits, size=200, dtype=np.uint64)
    chosen = special_bits(row) + [int(value) for value in pattern]
    if row.kind not in (FLOAT, COMPLEX):
        return chosen
    if not row.mantissa:
        return [value for value in chosen if value != 255]
    mask = (2 ** (bits - 1 - row.mantissa) - 1) << row.mantissa
    return [value for value in chosen if value & mask != mask]
