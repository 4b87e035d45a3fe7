"""The columns of a comparison as mindstudio-probe has them, for csv and xlsx."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Optional

from msprobe.compare.measure.distance import number
from msprobe.compare.result import Comparison, UnitResult
from msprobe.compare.rows import NOT_COMPARED, PASS, Item, Row

_BASE = [
    "NPU Name",
    "Bench Name",
    "NPU Dtype",
    "Bench Dtype",
    "NPU Tensor Shape",
    "Bench Tensor Shape",
    "NPU Requires_grad",
    "Bench Requires_grad",
]
_TENSOR = [
    "Cosine",
    "EucDist",
    "MaxAbsErr",
    "MaxRelativeErr",
    "One Thousandth Err Ratio",
    "Five Thousandths Err Ratio",
]
_STATISTICS = [
    "Max diff",
    "Min diff",
    "Mean diff",
    "L2norm diff",
    "MaxRelativeErr",
    "MinRelativeErr",
    "MeanRelativeErr",
    "NormRelativeErr",
]
_MD5 = ["NPU MD5", "BENCH MD5"]
_VALUES = [
    "NPU max",
    "NPU min",
    "NPU mean",
    "NPU l2norm",
    "Bench max",
    "Bench min",
    "Bench mean",
    "Bench l2norm",
]
_OURS = ["Step", "Rank", "Role", "Caused by", "Match", "Confidence"]
_KEYS = ("Max", "Min", "Mean", "Norm")
_ABSENT = "N/A"


class Columns:
    """The table of one comparison; the kinds that occur in it decide its columns."""

    def __init__(self, comparison: Comparison) -> None:
        rows = [row for _, row in comparison.rows()]
        self._comparison = comparison
        self.tensor = any(row.measured is not None for row in rows)
        self.md5 = any(row.target and "md5" in row.target for row in rows)
        bare = (row for row in rows if row.measured is None)
        known = any(row.golden and number(row.golden.get("Max")) is not None for row in bare)
        self.statistics = known and not self.tensor
        self.values = known or self.tensor
        self.stacks = any(unit.stacks[0] for unit in comparison.units)

    @property
    def names(self) -> list[str]:
        return [
            *_BASE,
            *(_TENSOR if self.tensor else []),
            *(_STATISTICS if self.statistics else []),
            *(_MD5 if self.md5 else []),
            *(_VALUES if self.values else []),
            "Requires_grad Consistent",
            "Result",
            *(["Accuracy Reached or Not"] if self.tensor else []),
            "Err_message",
            *(["NPU_Stack_Info"] if self.stacks else []),
            *(["Data_name"] if self.tensor else []),
            *_OURS,
        ]

    def rows(self) -> Iterator[tuple[Row, list[Any]]]:
        """Each row with its cells, in the order of `names`; text cells are safe to open in a spreadsheet."""
        for unit, row in self._comparison.rows():
            yield row, self._cells(unit, row)

    def _cells(self, unit: UnitResult, row: Row) -> list[Any]:
        target, golden = row.target, row.golden
        cells: list[Any] = [
            _text(row.target_name),
            _text(row.golden_name),
            _dtype(target),
            _dtype(golden),
            _shape(target),
            _shape(golden),
            _grad(target),
            _grad(golden),
        ]
        if self.tensor:
            cells += list(row.measured[:6]) if row.measured else [_ABSENT] * 6
        ours, theirs = _statistics(target), _statistics(golden)
        if self.statistics:
            cells += _differences(ours, theirs)
        if self.md5:
            cells += [(target or {}).get("md5", _ABSENT), (golden or {}).get("md5", _ABSENT)]
        if self.values:
            cells += ours + theirs
        agree = _grad(target) == _grad(golden)
        cells += [str(agree), row.verdict.replace("_", " ")]
        if self.tensor:
            cells.append(_reached(row))
        cells.append(_text(row.reason))
        if self.stacks:
            cells.append(_stack(unit, row))
        if self.tensor:
            cells.append(str([(target or {}).get("data_name", -1), (golden or {}).get("data_name", -1)]))
        step = "" if unit.step is None else unit.step
        rank = "" if unit.rank is None else unit.rank
        cells += [step, rank, row.role, _text(row.cause), row.match.how, row.match.confidence]
        return cells


def _reached(row: Row) -> str:
    if row.verdict == NOT_COMPARED:
        return "not compared"
    return "Yes" if row.verdict == PASS else "No"


def _text(value: Optional[str]) -> str:
    """Data must not become a formula when a table is opened in a spreadsheet."""
    if value is None:
        return _ABSENT
    return "'" + value if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _dtype(item: Item) -> str:
    return _ABSENT if item is None else str(item.get("dtype") or item.get("type") or _ABSENT)


def _shape(item: Item) -> str:
    return _ABSENT if item is None else str(item.get("shape", "[]"))


def _grad(item: Item) -> str:
    value = None if item is None else item.get("requires_grad")
    return _ABSENT if value is None else str(value)


def _statistics(item: Item) -> list[Any]:
    if item is None:
        return [_ABSENT] * 4
    if "value" in item:
        value = item["value"]
        return [value if _is_number(value) else _text(str(value))] * 4
    return [_figure(item.get(key)) for key in _KEYS]


def _figure(value: Any) -> Any:
    if value is None or isinstance(value, (str, float)) or _is_number(value):
        return _ABSENT if value is None else value
    return _text(str(value))


def _is_number(value: Any) -> bool:
    """Also whether it can be calculated with: an integer of hundreds of digits cannot."""
    return isinstance(value, float) or (isinstance(value, int) and value.bit_length() < 1024)


def _differences(ours: list[Any], theirs: list[Any]) -> list[Any]:
    differences: list[Any] = []
    relative: list[Any] = []
    for a, b in zip(ours, theirs):
        if isinstance(a, (int, float)) and isinstance(b, (int, float)):
            difference = 0.0 if a == b else a - b
            differences.append(difference)
            if b:
                relative.append(abs(difference / b))
            else:
                relative.append(0.0 if difference == 0 else math.inf)
        else:
            differences.append(_ABSENT)
            relative.append(_ABSENT)
    return differences + relative


def _stack(unit: UnitResult, row: Row) -> str:
    if row.slot not in ("input.0", "output.0") or row.match.target is None:
        return ""
    return _text("\n".join(unit.stacks[0].get(row.match.target.name, [])))
