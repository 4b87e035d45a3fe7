"""Writes a config.json for the next run, which collects only the tensors of the suspicious calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msprobe.compare.calls import parse_name
from msprobe.compare.result import Comparison
from msprobe.compare.rows import INTRODUCED
from msprobe.dump import layout
from msprobe.dump.errors import DumpError

MOST = 20


def next_config(comparison: Comparison) -> dict[str, Any]:
    """Raises DumpError if nothing is suspicious."""
    origin = comparison.origin
    if origin is None:
        raise DumpError("--next-config: nothing differs, so there is nothing to look at more closely.")
    names: dict[str, None] = {}
    calls = [origin.name, *origin.spread["first"]]
    for unit in comparison.units:
        groups = unit.groups if unit.differs else ()
        calls += [m.target.name for m, rows in groups if m.target and any(r.role == INTRODUCED for r in rows)]
    for name in calls:
        names[_whole_call(name)] = None
    steps = sorted({unit.step for unit in comparison.units if unit.step is not None})
    ranks = [] if origin.rank is None else [origin.rank]
    return {
        "task": "tensor",
        "dump_path": "./dump_suspects",
        "rank": ranks,
        "step": [origin.step] if origin.step is not None else steps,
        "level": "mix",
        "tensor": {"scope": [], "list": list(names)[:MOST], "data_mode": ["all"]},
    }


def _whole_call(name: str) -> str:
    """The name of the record that a row belongs to."""
    for part in (".parameters.", ".input.", ".output."):
        head, found, _ = name.partition(part)
        if found and parse_name(head)[0] != "other":
            return head
    return name


def write_next_config(comparison: Comparison, path: Path) -> None:
    layout.write_file(path, [json.dumps(next_config(comparison), indent=4).encode() + b"\n"])
