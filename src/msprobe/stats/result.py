"""The result of measuring one tensor, and the flags: the same for the C kernel (native/include/core.h) and the Python
version."""

from __future__ import annotations

from typing import NamedTuple, Optional, Union

STATS = 1
"""Max, Min, Mean, Norm and the counts."""
CRC = 2
"""zlib's CRC-32 of the bytes of the tensor in logical (C) order."""
XOR = 4
"""The xor of the same bytes as little-endian 64-bit words, the last one padded with zero bytes."""
LOW_PRECISION = 8
"""Mean and Norm accumulate in the dtype of the tensor (see docs/kernel.md)."""
ORDER = 16
"""The sum of the elements, each times a fixed weight that depends on its place in logical (C) order."""

Number = Union[bool, int, float, None]


class Stats(NamedTuple):
    """The statistics of one tensor. A value that was not requested or does not exist is None (counts: 0)."""

    max: Number
    min: Number
    mean: Optional[float]
    norm: Optional[float]
    nan: int
    posinf: int
    neginf: int
    zero: int
    count: int  # type: ignore[assignment]
    crc: Optional[int]
    xor: Optional[int]
    order: Optional[float] = None
