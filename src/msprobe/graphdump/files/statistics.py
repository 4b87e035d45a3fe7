"""The statistics of one dumped tensor, from its file or from its row in statistic.csv."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

import numpy.typing as npt

from msprobe.stats import measure_array

_COLUMNS = {
    "max": "Max Value",
    "min": "Min Value",
    "mean": "Avg Value",
    "norm": "L2Norm Value",
    "count": "Count",
    "nan": "NaN Count",
    "posinf": "Positive Inf Count",
    "neginf": "Negative Inf Count",
    "zero": "Zero Count",
}
_COUNTS = {"count", "nan", "posinf", "neginf", "zero"}


@dataclass(frozen=True)
class Statistics:
    """The statistics of a tensor. None means "not known", never "zero". Only a csv row has `md5`."""

    dtype: str
    shape: Optional[tuple[int, ...]]
    count: Optional[int] = None
    max: Optional[float] = None
    min: Optional[float] = None
    mean: Optional[float] = None
    norm: Optional[float] = None
    nan: Optional[int] = None
    posinf: Optional[int] = None
    neginf: Optional[int] = None
    zero: Optional[int] = None
    md5: Optional[str] = None

    @property
    def finite(self) -> Optional[bool]:
        """Whether every element is finite; None if the saved statistics cannot decide it."""
        counts = (self.nan, self.posinf, self.neginf)
        ends = (self.max, self.min)
        if any(counts) or any(value is not None and not math.isfinite(value) for value in ends):
            return False
        if any(value is not None and math.isnan(value) for value in (self.mean, self.norm)):
            return False
        known = None not in ends or None not in counts or (self.norm is not None and math.isfinite(self.norm))
        return True if known else None

    @property
    def largest(self) -> Optional[float]:
        """The largest magnitude; None if max or min is not known."""
        return None if self.max is None or self.min is None else max(abs(self.max), abs(self.min))


def of_array(array: npt.NDArray[Any]) -> Statistics:
    """All statistics of an array, in one pass. Types without an order (strings, records) have only a shape."""
    try:
        figures = measure_array(array)
    except TypeError:
        return Statistics(array.dtype.name, array.shape, array.size)
    return Statistics(
        dtype=array.dtype.name,
        shape=array.shape,
        count=figures.count,
        max=None if figures.max is None else float(figures.max),
        min=None if figures.min is None else float(figures.min),
        mean=figures.mean,
        norm=figures.norm,
        nan=figures.nan,
        posinf=figures.posinf,
        neginf=figures.neginf,
        zero=figures.zero,
    )


def of_row(row: Mapping[str, Optional[str]]) -> Statistics:
    """The statistics in a row of statistic.csv; None for missing columns."""
    values: dict[str, Any] = {}
    for name, column in _COLUMNS.items():
        number = _number(row.get(column))
        values[name] = int(number) if number is not None and name in _COUNTS and math.isfinite(number) else number
    return Statistics(
        dtype=(row.get("Data Type") or "").strip(), shape=_shape(row.get("Shape")), md5=row.get("MD5"), **values
    )


def _number(cell: Optional[str]) -> Optional[float]:
    try:
        return float(cell) if cell else None
    except ValueError:
        return {"true": 1.0, "false": 0.0}.get((cell or "").strip().lower())


def _shape(cell: Optional[str]) -> Optional[tuple[int, ...]]:
    """Parses "(2,3)", "(4,)" and "()"; None if the text is not a shape."""
    text = (cell or "").strip()
    if not text.startswith("("):
        return None
    try:
        return tuple(int(number) for number in text.strip("() ").split(",") if number.strip())
    except ValueError:
        return None
