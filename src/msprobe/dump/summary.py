"""A summary of one rank directory, in numbers: for `msprobe show` and other overviews."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Optional

from msprobe.dump.items import read_number
from msprobe.dump.names import is_module, parse_name
from msprobe.dump.reader import RankDump, Record, items, leaves
from msprobe.dump.record_keys import RAISED, UNFINISHED

KINDS = ("api forward", "api backward", "module forward", "module backward", "parameter gradients", "debug")
_STATISTICS = ("Max", "Min", "Mean", "Norm")


@dataclass(frozen=True)
class Item:
    """One tensor of one record, with its place."""

    record: str
    slot: str
    dtype: str
    shape: tuple[int, ...]
    norm: float


@dataclass
class Finding:
    """How many records have this finding, and the first of them in completion order."""

    count: int = 0
    record: Optional[str] = None
    slot: Optional[str] = None

    def add(self, record: str, slot: Optional[str]) -> None:
        if not self.count:
            self.record, self.slot = record, slot
        self.count += 1


@dataclass
class RankSummary:
    """The summary of one rank directory."""

    label: str
    head: dict[str, Any]
    state: str  # finished, unfinished or incomplete
    troubles: list[str]
    records: Counter[str] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)
    nan: Finding = field(default_factory=Finding)
    inf: Finding = field(default_factory=Finding)
    zero_gradient: Finding = field(default_factory=Finding)
    cut_off: Finding = field(default_factory=Finding)
    raised: Finding = field(default_factory=Finding)
    largest: list[Item] = field(default_factory=list)


def kind_of(name: str) -> str:
    """The kind of a record, from its name: one of KINDS except debug, or `other`."""
    parsed = parse_name(name)
    if parsed.kind == "grads":
        return "parameter gradients"
    if parsed.kind not in ("api", "module"):
        return "other"
    return f"{'module' if is_module(name) else 'api'} {parsed.direction}"


def summarise(rank: RankDump, largest: int = 10) -> RankSummary:
    """Reads a rank directory once. Keeps the `largest` norms, one for each distinct tensor."""
    state = "unfinished" if rank.unfinished else "finished" if rank.loss is None else "incomplete"
    records = rank.records
    summary = RankSummary(rank.label, rank.head, state, rank.troubles)
    norms: dict[tuple[object, ...], Item] = {}
    for name, record in records.items():
        kind = kind_of(name)
        summary.records[kind] += 1
        if record.get(UNFINISHED) is True:
            summary.cut_off.add(name, None)
        if isinstance(record.get(RAISED), str):
            summary.raised.add(name, None)
        _look(summary, norms, name, kind, items(record))
    for name, value in rank.debug.items():
        summary.records["debug"] += 1
        _look(summary, norms, name, "debug", leaves("value", value))
    summary.largest = heapq.nlargest(largest, norms.values(), key=lambda item: item.norm)
    return summary


def _look(
    summary: RankSummary,
    norms: dict[tuple[object, ...], Item],
    name: str,
    kind: str,
    found: list[tuple[str, Any]],
) -> None:
    seen: set[int] = set()

    def note(finding: Finding, slot: str) -> None:
        if id(finding) not in seen:
            seen.add(id(finding))
            finding.add(name, slot)

    masked = False  # an input has a mask: minus infinity in the output is expected
    for slot, item in found:
        if not isinstance(item, dict) or "dtype" not in item:
            masked = masked or (isinstance(item, dict) and read_number(item.get("value")) == -math.inf)
            continue
        dtype, shape, norm = str(item["dtype"]), _shape(item), read_number(item.get("Norm"))
        summary.dtypes[dtype] += 1
        high, low = read_number(item.get("Max")), read_number(item.get("Min"))
        values = [value for key in _STATISTICS if (value := read_number(item.get(key))) is not None]
        both = (high, low) == (math.inf, -math.inf)  # the mean is then NaN although no element is
        if any(math.isnan(value) for value in values) and not both:
            note(summary.nan, slot)
        elif any(math.isinf(value) for value in values):
            if high == math.inf or low != -math.inf:
                note(summary.inf, slot)
            elif slot.startswith("input"):
                masked = True  # only minus infinity: a mask, or the result of one
            elif not masked:
                note(summary.inf, slot)
        if norm == 0 and _is_gradient(kind, slot):
            note(summary.zero_gradient, slot)
        if norm is not None and math.isfinite(norm) and "float" in dtype.lower():
            same = (dtype, shape, norm, high, low)
            norms.setdefault(same, Item(name, slot, dtype, shape, norm))


def _is_gradient(kind: str, slot: str) -> bool:
    return kind == "parameter gradients" or (kind.endswith("backward") and slot.startswith("output"))


def _shape(item: Record) -> tuple[int, ...]:
    shape = item.get("shape")
    return tuple(shape) if isinstance(shape, list) and all(isinstance(n, int) for n in shape) else ()
