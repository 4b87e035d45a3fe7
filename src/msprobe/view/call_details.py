"""Everything that is known about one call, as plain values for JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Optional

from msprobe.compare.calls import Call, forward_name
from msprobe.compare.layout.faults.guilty import guilty_ranks
from msprobe.compare.rows import ERROR, WARNING, Item, Row, is_tensor
from msprobe.dump.items import true_count
from msprobe.view.columns import Table
from msprobe.view.flow import Flow, Place
from msprobe.view.source_lines import Recorded, code_of, frames_of
from msprobe.view.unit_groups import MOST_KEPT

LONGEST = 2000
MOST_SHARDS = 256
_NOT_SHOWN = ("data_name",)


class CallDetails:
    """Collects the details of calls; caches the flow of each requested unit."""

    def __init__(self, table: Table, has_tensors: bool, recorded: Recorded) -> None:
        self._table = table
        self._recorded = recorded
        self._has_tensors = has_tensors
        self._flows: dict[int, Flow] = {}

    def of(self, call: int) -> dict[str, Any]:
        unit, (match, rows) = self._table.groups[call]
        result = self._table.units[unit]
        target, golden = (_stack(side, known) for side, known in zip((match.target, match.golden), result.stacks))
        return {
            "call": call,
            "unit": unit,
            "target": match.target.name if match.target else None,
            "golden": match.golden.name if match.golden else None,
            "how": match.how,
            "confidence": match.confidence,
            "before": [one.name for one in match.before],
            "parent": match.call.parent,
            "rows": [self._row(call, place, row) for place, row in enumerate(rows)],
            "stack": {"target": frames_of(target), "golden": frames_of(golden)},
            "code": code_of((target, golden), self._recorded.of(result)),
        }

    def _row(self, call: int, place: int, row: Row) -> dict[str, Any]:
        found: dict[str, Any] = {
            "row": self._table.first[call] + place,
            "slot": row.slot,
            "golden_slot": row.golden_slot,
            "verdict": row.verdict,
            "role": row.role,
            "reason": row.reason,
            "cause": row.cause,
            "merged": row.joined.text if row.joined is not None else "",
            "shards": _shards(row),
            "distance": row.distance,
            "tolerance": row.tolerance,
            "target": item_of(row.target),
            "golden": item_of(row.golden),
            "tensor": self._has_tensors and any(_is_saved(one) for one in (row.target, row.golden)),
        }
        if row.measured is not None:
            found["metrics"] = row.measured._asdict()
        flow, start = self._flow(call)
        at = Place(call - start, place)
        if row.is_input:
            maker = flow.producer(at)
            found["from"] = [] if maker is None else [self._link(start, maker, flow)]
        else:
            found["to"] = [self._link(start, one, flow) for one in flow.consumers(at)]
        if row.verdict in (WARNING, ERROR):
            path, end = flow.trace_back(at)
            found["trace"] = {"end": end, "path": [self._link(start, one, flow) for one in path]}
        return found

    def _flow(self, call: int) -> tuple[Flow, int]:
        groups = self._table.groups
        unit = groups.unit_of(call)
        if unit not in self._flows:
            if len(self._flows) >= MOST_KEPT:
                self._flows.clear()
            self._flows[unit] = Flow(groups.of_unit(unit))
        return self._flows[unit], groups.starts[unit]

    def _link(self, start: int, at: Place, flow: Flow) -> dict[str, Any]:
        row = flow.row(at)
        number = self._table.first[start + at.group] + at.place
        return {"row": number, "name": row.name[:LONGEST], "verdict": row.verdict, "role": row.role}


def _stack(call: Optional[Call], known: Mapping[str, list[str]]) -> list[str]:
    if call is None:
        return []
    return known.get(call.name) or known.get(forward_name(call)) or []


def _shards(row: Row) -> list[dict[str, Any]]:
    """What each rank and microbatch of the target has of a row that was put together; `odd`: it has the fault."""
    if row.joined is None or len(row.joined.target.held) < 2:
        return []
    shards = row.joined.target
    bad = guilty_ranks(row.joined) if row.verdict in (WARNING, ERROR) else ()
    odd = set(bad) if len(bad) < len(shards.ranks) else set()
    return [
        {
            "rank": held.rank,
            "microbatch": held.microbatch,
            "name": shown(held.name),
            "odd": held.rank in odd,
            "item": item_of(item),
        }
        for held, item in list(zip(shards.held, shards.items))[:MOST_SHARDS]
    ]


def _is_saved(item: Item) -> bool:
    return is_tensor(item) and bool((item or {}).get("data_name"))


def item_of(item: Item) -> Optional[dict[str, Any]]:
    """A recorded item with long texts shortened for the page."""
    if item is None:
        return None
    found = {str(key)[:LONGEST]: shown(value) for key, value in item.items() if key not in _NOT_SHOWN}
    trues = true_count(item)
    return found if trues is None else {**found, "true": f"{trues[0]} of {trues[1]}"}


def shown(value: Any) -> Any:
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    if isinstance(value, list) and len(value) <= 64 and all(isinstance(one, (int, float)) for one in value):
        return value
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}…{text[-LONGEST // 2 :]}"


def plain(value: Any) -> Any:
    """The value for JSON, which has no NaN and no infinity: they become the strings nan, inf and -inf."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value
