"""The columns of a comparison for csv and xlsx, as in mindstudio-probe."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Optional

from msprobe.compare.measure.distance import number
from msprobe.compare.result import Comparison, UnitResult
from msprobe.compare.rows import NOT_COMPARED, PASS, Item, Row
from msprobe.dump.untrusted.csv_cells import safe_cell

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
_NO_DIFFERENCE: list[Any] = [0.0] * len(_STATISTICS)
_NO_DIFFERENCE_TEXT: list[Any] = ["0.0"] * len(_STATISTICS)
_ABSENT = "N/A"
_FORMULA = frozenset("=+-@\t\r")


class Columns:
    """The table of one comparison; the kinds of its rows decide its columns.

    `as_text` allows cells with the text of a number: a number that both sides have is then formatted once.
    """

    def __init__(self, comparison: Comparison, as_text: bool = False) -> None:
        rows = [row for _, row in comparison.rows()]
        self._comparison = comparison
        self._as_text = as_text
        self.tensor = any(row.measurement.metrics is not None for row in rows)
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
        for unit in self._comparison.units:
            place = ["" if unit.step is None else unit.step, "" if unit.rank is None else unit.rank]
            for row in unit.rows():
                yield row, self._cells(unit, row, place)

    def _cells(self, unit: UnitResult, row: Row, place: list[Any]) -> list[Any]:
        target, golden, match = row.target, row.golden, row.match
        our_grad, their_grad = _grad(target), _grad(golden)
        cells: list[Any] = [*_names(row), _dtype(target), _dtype(golden), *_shapes(target, golden)]
        cells += our_grad, their_grad
        if self.tensor:
            cells += list(row.measured[:6]) if row.measured else [_ABSENT] * 6
        ours, theirs = _statistics(target), _statistics(golden)
        differences = _differences(ours, theirs) if self.statistics else []
        if self._as_text and differences is _NO_DIFFERENCE and 0.0 not in ours:  # 0.0 equals -0.0
            ours = theirs = list(map(repr, ours))
            differences = _NO_DIFFERENCE_TEXT
        cells += differences
        if self.md5:
            cells += [safe_cell((item or {}).get("md5", _ABSENT)) for item in (target, golden)]
        if self.values:
            cells += ours + theirs
        cells += "True" if our_grad == their_grad else "False", row.verdict.replace("_", " ")
        if self.tensor:
            cells.append(_reached(row))
        cells.append(_text(row.reason))
        if self.stacks:
            cells.append(_stack(unit, row))
        if self.tensor:
            cells.append(str([(target or {}).get("data_name", -1), (golden or {}).get("data_name", -1)]))
        cells += place
        cells += row.role, _text(row.cause), match.how, match.confidence
        return cells


def _reached(row: Row) -> str:
    if row.verdict == NOT_COMPARED:
        return "not compared"
    return "Yes" if row.verdict == PASS else "No"


def _text(value: Optional[str]) -> str:
    """Text that does not become a formula when a spreadsheet opens the table."""
    if value is None:
        return _ABSENT
    return "'" + value if value[:1] in _FORMULA else value


def _names(row: Row) -> tuple[str, str]:
    name, target, golden = _text(row.target_name), row.match.target, row.match.golden
    if row.absent or target is None or golden is None or target.name != golden.name or row.slot != row.golden_slot:
        return name, _text(row.golden_name)
    return name, name


def _dtype(item: Item) -> str:
    return _ABSENT if item is None else _text(str(item.get("dtype") or item.get("type") or _ABSENT))


def _shapes(target: Item, golden: Item) -> tuple[str, str]:
    shape = _shape(target)
    if target and golden and "shape" in target and target["shape"] == golden.get("shape"):
        return shape, shape
    return shape, _shape(golden)


def _shape(item: Item) -> str:
    if item is None:
        return _ABSENT
    shape = item.get("shape", "[]")
    return str(shape) if shape.__class__ is list else _text(str(shape))


def _grad(item: Item) -> str:
    value = None if item is None else item.get("requires_grad")
    if value is True or value is False:
        return "True" if value else "False"
    return _ABSENT if value is None else _text(str(value))


def _statistics(item: Item) -> list[Any]:
    if item is None:
        return [_ABSENT] * 4
    if "value" in item:
        value = item["value"]
        return [value if _is_number(value) else _text(str(value))] * 4
    high, low, mean, norm = figures = [item.get("Max"), item.get("Min"), item.get("Mean"), item.get("Norm")]
    if high.__class__ is low.__class__ is mean.__class__ is norm.__class__ is float:
        return figures
    return [value if value.__class__ is float else _figure(value) for value in figures]


def _figure(value: Any) -> Any:
    if value is None or isinstance(value, (str, float)) or _is_number(value):
        return _ABSENT if value is None else safe_cell(value)
    return _text(str(value))


def _is_number(value: Any) -> bool:
    """Whether this is a number to calculate with: an integer of hundreds of digits is not."""
    return isinstance(value, float) or (isinstance(value, int) and value.bit_length() < 1024)


def _differences(ours: list[Any], theirs: list[Any]) -> list[Any]:
    if ours == theirs:
        high, low, mean, norm = ours
        is_known = high == high and low == low and mean == mean and norm == norm  # no NaN
        if is_known and high.__class__ is low.__class__ is mean.__class__ is norm.__class__ is float:
            return _NO_DIFFERENCE
    differences: list[Any] = []
    relative: list[Any] = []
    for a, b in zip(ours, theirs):
        if isinstance(a, (int, float)) and isinstance(b, (int, float)):
            if a == b:
                differences.append(0.0)
                relative.append(0.0)
                continue
            difference = a - b
            differences.append(difference)
            relative.append(abs(difference / b) if b else math.inf)
        else:
            differences.append(_ABSENT)
            relative.append(_ABSENT)
    return differences + relative


def _stack(unit: UnitResult, row: Row) -> str:
    if row.slot not in ("input.0", "output.0") or row.match.target is None:
        return ""
    return _text("\n".join(unit.stacks[0].get(row.match.target.name, [])))
