"""Finds a flipped bit from two checksums alone.

CRC-32 is linear: the checksums of two tensors that differ in one bit differ by a number that depends only on the place
of the bit. That number is a power of x modulo the CRC polynomial, and its exponent is the place.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

_POLYNOMIAL = 0xEDB88320
_TOP = 0x80000000


class FlippedBit(NamedTuple):
    """`bit` counts from the lowest bit of the element."""

    element: int
    bit: int


def find_flipped_bit(first: int, second: int, size: int, itemsize: int) -> Optional[FlippedBit]:
    """The one bit in which two tensors of `size` bytes differ, from their CRC-32; None if they differ otherwise."""
    steps = _logarithm(first ^ second, 8 * size)
    if steps is None:
        return None
    bytes_from_end = -(-steps // 8)
    place, bit = size - bytes_from_end, 8 * bytes_from_end - steps
    return FlippedBit(place // itemsize, 8 * (place % itemsize) + bit)


def _logarithm(wanted: int, most: int) -> Optional[int]:
    """How many steps of the CRC register lead from 1 to `wanted`, at most `most` (baby steps and giant steps)."""
    if not wanted or not most:
        return None
    width = math.isqrt(most) + 1
    places: dict[int, int] = {}
    register = 1
    for count in range(width):
        places.setdefault(register, count)
        register = _step(register)
    back = [_power_back(1 << bit, width) for bit in range(32)]
    register = wanted
    for turn in range(width + 1):
        rest = places.get(register)
        if rest is not None and 1 <= turn * width + rest <= most:
            return turn * width + rest
        register = _apply(back, register)
    return None


def _step(register: int) -> int:
    return (register >> 1) ^ (_POLYNOMIAL if register & 1 else 0)


def _power_back(register: int, count: int) -> int:
    for _ in range(count):
        register = (((register ^ _POLYNOMIAL) << 1) | 1) if register & _TOP else register << 1
        register &= 0xFFFFFFFF
    return register


def _apply(columns: list[int], register: int) -> int:
    found = 0
    bit = 0
    while register:
        if register & 1:
            found ^= columns[bit]
        register >>= 1
        bit += 1
    return found
