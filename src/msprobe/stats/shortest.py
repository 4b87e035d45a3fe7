"""The powers of ten that the C kernel needs to write numbers (`shortest.c`): exact, from Python's long integers.

They are computed when the kernel is loaded, in less than a millisecond, instead of six hundred lines of digits.
"""

from __future__ import annotations

MIN_POWER, MAX_POWER = -292, 324


def powers_of_ten() -> bytes:
    """10**n for every n, as 128 bits with the top bit set, rounded up, little-endian."""
    table = bytearray()
    for power in range(MIN_POWER, MAX_POWER + 1):
        shift = 127 - ((power * 1741647) >> 19)  # >> 19: floor(log2(10**power))
        dividend, divisor = (10**power, 1) if power >= 0 else (1, 10**-power)
        if shift >= 0:
            dividend <<= shift
        else:
            divisor <<= -shift
        table += (-(-dividend // divisor)).to_bytes(16, "little")
    return bytes(table)
