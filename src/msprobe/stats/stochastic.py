"""Random numbers for stochastic rounding: each depends only on a seed and a place, so the same rounding can be made
again, on any device, and it draws nothing from the random numbers of the script."""

from __future__ import annotations

from typing import Any

RANGE = 1 << 32


def draw(places: Any, seed: int) -> Any:
    """A whole number from 0 to RANGE - 1 for each place: int64, of numpy or torch. Both give the same numbers."""
    return _mixed(places ^ _mixed(seed % RANGE))


def _mixed(number: Any) -> Any:
    """The last step of MurmurHash3: each bit of the result depends on all bits of the number."""
    number = number ^ (number >> 16)
    number = (number * 0x85EBCA6B) % RANGE
    number = number ^ (number >> 13)
    number = (number * 0xC2B2AE35) % RANGE
    return number ^ (number >> 16)
