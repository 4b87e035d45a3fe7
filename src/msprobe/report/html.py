"""A comparison as one self-contained HTML file that opens offline.

The page (`comparison.html`) is fixed; the rows go into it as one JSON text, column by column, because a hundred
thousand small objects are slow to parse. Names in a dump are data: the page only ever shows them as text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Optional

from msprobe.compare.calls import Match
from msprobe.compare.measure.distance import number
from msprobe.compare.result import Comparison, UnitResult
from msprobe.compare.rows import ERROR, NOT_COMPARED, PASS, WARNING, Item, Row
from msprobe.dump import layout
from msprobe.dump.names import module_class, module_path, parse_name

VERDICTS = (PASS, WARNING, ERROR, NOT_COMPARED)
_PLACE = b"/*DATA*/null"
_KEYS = ("Max", "Min", "Mean", "Norm")
_COLUMNS = (
    "unit",
    "target",
    "golden",
    "verdict",
    "role",
    "cause",
    "reason",
    "match",
    "confidence",
    "distance",
    "tolerance",
    "module",
    "call",
    "item_target",
    "item_golden",
    "metrics",
)


class _Texts:
    """Each distinct text once; rows hold its number."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {"": 0}

    def __call__(self, text: Optional[str]) -> int:
        return self.known.setdefault(text or "", len(self.known))


def write_html(comparison: Comparison, path: Path) -> None:
    page = (Path(__file__).parent / "comparison.html").read_bytes()
    before, _, after = page.partition(_PLACE)
    layout.write_file(path, _parts(before, comparison, after))


def _parts(before: bytes, comparison: Comparison, after: bytes) -> Iterator[bytes]:
    yield before
    text = json.dumps(page_data(comparison), separators=(",", ":"), allow_nan=False)
    yield text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029").encode()
    yield after


def page_data(comparison: Comparison) -> dict[str, Any]:
    """What the page shows: texts once, rows as parallel columns."""
    texts = _Texts()
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    classes: dict[str, str] = {}
    sources: dict[int, int] = {}
    for index, unit in enumerate(comparison.units):
        modules = _modules(unit, classes)
        for match, rows in unit.groups:
            call = texts(match.call.name)
            if call not in sources:
                sources[call] = texts(_stack(unit, match))
            module = texts(modules(match))
            for row in rows:
                _add(columns, texts, index, row, call, module)
    return {
        "summary": comparison.summary(),
        "units": [unit.label for unit in comparison.units],
        "verdicts": VERDICTS,
        "classes": classes,
        "sources": sources,
        "texts": list(texts.known),
        "columns": columns,
    }


def _add(columns: dict[str, list[Any]], texts: _Texts, unit: int, row: Row, call: int, module: int) -> None:
    columns["unit"].append(unit)
    columns["target"].append(texts(row.target_name))
    columns["golden"].append(texts(row.golden_name))
    columns["verdict"].append(VERDICTS.index(row.verdict))
    columns["role"].append(texts(row.role))
    columns["cause"].append(texts(row.cause))
    columns["reason"].append(texts(row.reason))
    columns["match"].append(texts(row.match.how))
    columns["confidence"].append(row.match.confidence)
    columns["distance"].append(_short(row.distance))
    columns["tolerance"].append(_short(row.tolerance))
    columns["module"].append(module)
    columns["call"].append(call)
    columns["item_target"].append(_side(row.target, texts))
    columns["item_golden"].append(_side(row.golden, texts))
    found = row.measured
    columns["metrics"].append([_short(value) for value in found[:6]] if found is not None else 0)


def _side(item: Item, texts: _Texts) -> Any:
    """[dtype, shape, max, min, mean, norm] of a tensor, the text of a plain value, 0 for nothing."""
    if item is None:
        return 0
    if "value" in item or "dtype" not in item:
        return str(item.get("value", item.get("type", "")))
    return [
        texts(str(item["dtype"])),
        texts(str(item.get("shape", ""))),
        *(_short(number(item.get(key))) for key in _KEYS),
    ]


def _short(value: Optional[float]) -> Any:
    """Six digits are enough to look at; what JSON has no number for is a text."""
    if value is None:
        return None
    return float(f"{value:.6g}") if math.isfinite(value) else str(value)


def _stack(unit: UnitResult, match: Match) -> str:
    for call, known in zip((match.target, match.golden), unit.stacks):
        if call is not None and call.name in known:
            return "\n".join(known[call.name])
    return ""


def _modules(unit: UnitResult, classes: dict[str, str]) -> Callable[[Match], str]:
    """A function from a match to its module's path; backwards go to the module of their forward."""
    parents: dict[tuple[bool, str, int], Optional[str]] = {}
    for match, _ in unit.groups:
        call = match.call
        if call.kind == "module":
            classes[module_path(call.key)] = module_class(call.key)
        if call.direction == "forward":
            parents[(match.target is None, call.key, call.number)] = call.parent

    def path(match: Match) -> str:
        call = match.call
        if call.kind in ("module", "grads"):
            return module_path(call.key)
        parent = parents.get((match.target is None, call.key, call.number), call.parent)
        return module_path(parse_name(parent)[1]) if parent else ""

    return path
