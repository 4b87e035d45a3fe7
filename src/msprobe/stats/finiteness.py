"""What one look at a tensor says: finite, infinite, NaN; and how near to the ends of its dtype it came."""

from __future__ import annotations

import struct
from typing import Optional

from msprobe.stats.dtype_ranges import Ranges
from msprobe.stats.scan import FORMATS, NEAR, TOP, scan

FINITE, INFINITE, NAN = 0, 1, 2
WORDS = {INFINITE: "infinity", NAN: "NaN"}

_HALVES = frozenset({FORMATS["float16"], FORMATS["bfloat16"]})
_UNPACK = {FORMATS["float32"]: ("<I", "<f"), FORMATS["float64"]: ("<Q", "<d"), FORMATS["float16"]: ("<H", "<e")}


def look_at(pointer: int, code: int, count: int, dtype: object, ranges: Optional[Ranges], title: str) -> int:
    """One pass over the bits of `count` numbers; `ranges` is told of what a named output came near to."""
    return judged(code, count, *scan(pointer, code, count), dtype, ranges, title)


def judged(code: int, count: int, top: int, tiny: int, dtype: object, ranges: Optional[Ranges], title: str) -> int:
    """What the largest bit pattern of `count` numbers, `tiny` of which are subnormal, says."""
    if top >= TOP[code]:
        return INFINITE if top == TOP[code] else NAN
    if ranges is not None:
        if top >= NEAR[code]:
            ranges.near(title, str(dtype), value_of(top, code))
        if tiny and code in _HALVES:
            ranges.tiny(title, str(dtype), tiny / count)
    return FINITE


def value_of(bits: int, code: int) -> float:
    """The number that has these bits."""
    if code == FORMATS["bfloat16"]:
        bits, code = bits << 16, FORMATS["float32"]
    as_bits, as_float = _UNPACK[code]
    return float(struct.unpack(as_float, struct.pack(as_bits, bits))[0])
