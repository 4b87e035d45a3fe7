"""Finds calls that only one run makes and whose results are not used: norms and means that a script logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msprobe.compare.calls import FORWARD, Call
from msprobe.compare.judge.effects import results
from msprobe.compare.measure.distance import ValueKey, count, value_key
from msprobe.compare.phases import Phase
from msprobe.compare.rows import Group, Row, is_tensor

_WRITES = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__"}
_KEEPS_STATISTICS = {"batch_norm", "instance_norm", "native_batch_norm"}
_READS = ("Tensor.", "Torch.", "Functional.")


def writes(call: Call) -> bool:
    """Whether the call may change memory that other calls read. Unknown calls (collectives, NPU kernels) may."""
    word = call.key.rpartition(".")[2]
    if call.kind == "module":
        return "BatchNorm" in word or "InstanceNorm" in word
    if word in _KEEPS_STATISTICS:
        return True
    return not call.key.startswith(_READS) or word in _WRITES or (word.endswith("_") and not word.startswith("__"))


def find_logged(groups: Sequence[Group], phases: Sequence[Phase]) -> set[int]:
    """The places of calls after the backward that only one run makes and that end in a single number, which no call
    uses."""
    found: set[int] = set()
    taken: set[ValueKey] = set()
    for place in range(len(groups) - 1, -1, -1):
        match, rows = groups[place]
        if phases[place] is not Phase.AFTER:
            break
        if match.how == "unmatched" and match.call.direction == FORWARD and _is_logged(match.call, rows, taken):
            found.add(place)
            taken.update(key for key in map(value_key, _given(rows, True)) if key is not None)
    return found


def _is_logged(call: Call, rows: Sequence[Row], taken: set[ValueKey]) -> bool:
    """Whether its result is one number, its inputs are single numbers, or such a call uses its result."""
    if call.kind != "api" or writes(call):
        return False
    made, given = _given(rows, False), _given(rows, True)
    if all(count(item) <= 1 for item in made) or (given and all(count(item) <= 1 for item in given)):
        return True
    return all(value_key(item) in taken for item in made)


def _given(rows: Sequence[Row], is_input: bool) -> list[dict[str, Any]]:
    chosen = [row for row in rows if row.is_input] if is_input else results(rows)
    items = [row.golden or row.target for row in chosen]
    return [item for item in items if item is not None and is_tensor(item)]
