"""Which dtypes a run computes in. If all calls change, that is a setting of the run; if some calls change, that is a
fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Optional

from msprobe.compare.align.translate import operation_of
from msprobe.compare.calls import FORWARD, Call, module_class
from msprobe.compare.measure import distance
from msprobe.compare.rows import Group, Row, is_tensor

MAJORITY = 0.5
"""If this share of the heavy calls has a different dtype, the change is one of the complete run."""

DtypePair = tuple[str, str]
_HEAVY = {"linear", "matmul", "conv2d", "conv1d", "scaled_dot_product_attention", "einsum"}


def run_wide_dtypes(groups: Sequence[Group]) -> set[DtypePair]:
    """The pairs of float dtypes (target, golden) in which the complete runs differ. The heavy calls decide, or all
    calls if there are no heavy ones."""
    heavy: Counter[DtypePair] = Counter()
    all_calls: Counter[DtypePair] = Counter()
    for match, rows in groups:
        call = match.call
        if call.direction != FORWARD or match.target is None or match.golden is None:
            continue
        row = next((r for r in rows if r.slot.startswith("output") and not r.absent and is_tensor(r.golden)), None)
        pair = float_dtypes(row) if row is not None else None
        if pair is None:
            continue
        all_calls[pair] += 1
        if _is_heavy(call):
            heavy[pair] += 1
    counted = heavy or all_calls
    total = sum(counted.values())
    return {pair for pair, seen in counted.items() if pair[0] != pair[1] and seen >= MAJORITY * total}


def _is_heavy(call: Call) -> bool:
    if call.kind == "module":
        return module_class(call.key) in ("Linear", "Dense", "Conv2d", "Conv1D")
    return call.kind == "api" and operation_of(call.key) in _HEAVY


def float_dtypes(row: Row) -> Optional[DtypePair]:
    """The two dtypes of a row of float tensors."""
    if not is_tensor(row.target) or not is_tensor(row.golden) or row.target is None or row.golden is None:
        return None
    if row.target["dtype"] == row.golden["dtype"] and not distance.epsilon(row.golden):
        return None
    if not distance.epsilon(row.target) or not distance.epsilon(row.golden):
        return None
    return distance.dtype_name(row.target), distance.dtype_name(row.golden)
