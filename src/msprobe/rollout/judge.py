"""Which values of the rollout are not the trainer's: more error than rounding explains, and in which rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np

from msprobe.rollout.matching import general
from msprobe.rollout.reference import Node
from msprobe.rollout.replay import Errors, Replay

Array = np.ndarray[Any, Any]
LIMIT = 2.5
"""The error of a clean value is 0.8 to 1.3 times the trainer's; weight faults in bfloat16 begin at 4."""
COLUMN_LIMIT = 6.0
_FEW = 4


@dataclass
class Finding:
    """A value that is not the trainer's: how many times the expected error, in which rows and columns, and why."""

    node: Node
    ratio: float
    rows: str = "all rows"
    columns: str = ""
    cause: str = ""
    reason: str = ""
    also: list[str] = field(default_factory=list)  # the same finding in other layers


@dataclass(frozen=True)
class RowKinds:
    """Sets of rows of the rollout, by how they were computed."""

    decode: Array
    prefill: Array
    after_prefix: Array


def row_kinds(replay: Replay) -> RowKinds:
    rows = replay.rollout.rows
    decode = np.zeros(len(rows), dtype=bool)
    keys = rows.step * (int(rows.sequence.max()) + 2) + rows.sequence
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    decode[(counts[inverse] == 1) & (rows.position > 0)] = True
    real = rows.sequence >= 0
    after = np.isin(rows.sequence, [one[0] for one in replay.rollout.absent]) & real
    numbers = np.arange(len(rows))
    return RowKinds(numbers[decode & real], numbers[~decode & real], numbers[after])


def find(replay: Replay, golden: Mapping[Node, Errors], found: Mapping[Node, Errors]) -> list[Finding]:
    """Everything that is not the trainer's, in the order of computation; one finding for the same value of all
    layers."""
    kinds = row_kinds(replay)
    findings: dict[str, Finding] = {}
    for node in replay.order:
        if node not in found:
            continue
        one = judge(replay, node, found[node], golden, kinds)
        if one is None:
            continue
        first = findings.setdefault(f"{general(node.path)} {node.slot} {one.rows}", one)
        if first is not one:
            first.also.append(node.path)
    return list(findings.values())


def judge(
    replay: Replay, node: Node, errors: Errors, golden: Mapping[Node, Errors], kinds: RowKinds
) -> Optional[Finding]:
    """The finding of one value; None if rounding explains its error."""
    expected = replay.expected(node, golden)
    ratio = errors.relative() / expected
    subsets = {
        "decode rows only": kinds.decode,
        "prefill rows only": kinds.prefill,
        "rows after a prefix-cache hit only": kinds.after_prefix,
    }
    measured = {
        name: errors.relative(rows) / expected
        for name, rows in subsets.items()
        if np.isin(errors.all_rows, rows).sum() >= _FEW
    }
    columns = _wrong_columns(errors, golden.get(node), expected)
    worst = max([ratio, *measured.values()], default=ratio)
    if worst <= LIMIT and not len(columns):
        return None
    wrong = [name for name, value in measured.items() if value > LIMIT]
    rows = wrong[0] if len(wrong) == 1 and len(measured) > 1 else "all rows"
    width = len(errors.by_column())
    part = "" if not len(columns) or len(columns) > 0.9 * width else _ranges(columns, width)
    worst = worst if worst > LIMIT else float(errors.by_column()[columns].max() / expected)
    return Finding(node, worst, rows, part)


def _wrong_columns(errors: Errors, golden: Optional[Errors], expected: float) -> Array:
    mine = errors.by_column()
    limit = np.full(len(mine), expected)
    if golden is not None and len(golden.by_column()) == len(mine):
        scale = expected / max(golden.relative(), 1e-300)
        limit = np.maximum(limit, golden.by_column() * min(scale, 1e9))
    return np.flatnonzero(mine > COLUMN_LIMIT * limit)


def _ranges(columns: Array, width: int) -> str:
    breaks = np.flatnonzero(np.diff(columns) > 1)
    starts = [columns[0], *columns[breaks + 1]]
    ends = [*columns[breaks], columns[-1]]
    parts = [f"{a}" if a == b else f"{a} to {b}" for a, b in zip(starts[:3], ends[:3])]
    more = f" and {len(starts) - 3} more ranges" if len(starts) > 3 else ""
    return f"columns {', '.join(parts)}{more} of {width}"
