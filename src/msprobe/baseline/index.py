"""The diffable index of a baseline: one line per call, with the norm and the checksum of each output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msprobe.dump.items import items, read_number
from msprobe.dump.reader import RankDump


def index_lines(ranks: Sequence[RankDump]) -> Iterator[str]:
    for rank in ranks:
        for name, record in rank.records.items():
            results = [_result(item) for slot, item in items(record) if not slot.startswith(("input", "parameters."))]
            yield "  ".join([rank.label, name, *results])


def _result(item: Any) -> str:
    if not isinstance(item, dict):
        return "null"
    if "dtype" not in item:
        return str(item.get("value"))
    norm = read_number(item.get("Norm"))
    shape = ",".join(map(str, item["shape"])) if isinstance(item.get("shape"), list) else ""
    dtype = str(item["dtype"]).rpartition(".")[2]
    return f"{dtype}[{shape}] {'-' if norm is None else f'{norm:.6g}'} {item.get('md5', '-')}"
