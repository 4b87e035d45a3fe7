"""What a row says about itself, apart from limits."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Optional

from msprobe.compare.judge.limits import COARSE
from msprobe.compare.judge.rounding import epsilon_of
from msprobe.compare.operators import BUFFER
from msprobe.compare.rows import Row

YOUNG = 0.03
"""How far off an element of a vector may be in the first steps of an optimizer that normalises (Adam): it is the sum of
a few steps, and the steps of elements with almost no gradient are noise."""
YOUNG_AVERAGE = 1.5e-3
"""How far its norm may be off."""


def is_young(row: Row) -> bool:
    """Whether it is a float32 vector (a bias) that differs in some elements, while its norm differs by almost
    nothing."""
    item = row.golden or {}
    if len(item.get("shape") or ()) != 1 or epsilon_of(row) > COARSE or row.distance is None:
        return False
    return row.distance <= YOUNG and row.measurement.average <= YOUNG_AVERAGE


def is_buffer(row: Row) -> bool:
    """Whether it is a buffer at the end of the step: no optimizer scales up the noise of its gradient."""
    return bool((row.golden or {}).get(BUFFER))


def puts_together(row: Row) -> bool:
    """Whether a result joins the elements of a list of inputs."""
    return row.match.call.key.rpartition(".")[2] in ("stack", "cat", "concat")


def has_gradient(rows: Sequence[Row]) -> bool:
    """Whether a result has a gradient in either run; what the inputs have matters only then (not in inference)."""
    given = [item for row in rows if not row.is_input for item in (row.target, row.golden) if item]
    return any(item.get("requires_grad") for item in given) or not any("requires_grad" in item for item in given)


def is_alike(row: Row) -> bool:
    """Whether both sides have the same dtype and requires_grad; plain values have neither."""
    target, golden = row.target, row.golden
    if target is None or golden is None:
        return True
    return bool(
        target.get("dtype") == golden.get("dtype") and target.get("requires_grad") == golden.get("requires_grad")
    )


def values_of(row: Row) -> Optional[tuple[object, ...]]:
    """What identifies the values of both sides; None without statistics (plain values, checksums alone, damage)."""
    items = (row.target or {}, row.golden or {})
    found = tuple(item.get(key) for item in items for key in ("Norm", "Max", "Min"))
    return found if all(isinstance(value, (int, float, str)) for value in found) else None


def as_float32(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return value
