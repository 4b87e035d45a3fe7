"""Classifies a tensor in one pass: finite, infinite or NaN, and how close it comes to the limits of its dtype."""

from __future__ import annotations

import struct
from typing import Optional

from msprobe.stats.dtype_ranges import Ranges
from msprobe.stats.scan import FORMATS, NEAR, TOP, scan

FINITE, INFINITE, NAN = 0, 1, 2
WORDS = {INFINITE: "infinity", NAN: "NaN"}

_HALVES = frozenset({FORMATS["float16"], FORMATS["bfloat16"]})
_UNPACK = {FORMATS["float32"]: ("<I", "<f"), FORMATS["float64"]: ("<Q", "<d"), FORMATS["float16"]: ("<H", "<e")}


def classify(pointer: int, code: int, count: int, dtype: object, ranges: Optional[Ranges], title: str) -> int:
    """Classifies `count` numbers in one pass over their bits. Adds values close to a limit to `ranges`."""
    return classify_scan(code, count, *scan(pointer, code, count), dtype, ranges, title)


def classify_scan(
    code: int, count: int, top: int, tiny: int, dtype: object, ranges: Optional[Ranges], title: str
) -> int:
    """Classifies `count` numbers from their largest bit pattern; `tiny` of them are subnormal."""
    if top >= TOP[code]:
        return INFINITE if top == TOP[code] else NAN
    if ranges is not None:
        if top >= NEAR[code]:
            ranges.add_near(title, str(dtype), value_of(top, code))
        if tiny and code in _HALVES:
            ranges.add_tiny(title, str(dtype), tiny / count)
    return FINITE


def value_of(bits: int, code: int) -> float:
    """The number with these bits."""
    if code == FORMATS["bfloat16"]:
        bits, code = bits << 16, FORMATS["float32"]
    as_bits, as_float = _UNPACK[code]
    return float(struct.unpack(as_float, struct.pack(as_bits, bits))[0])
