"""How a suspect is put into words: one sentence, the amounts, both sides, and what followed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from msprobe.compare.calls import Call, Match
from msprobe.compare.measure import distance
from msprobe.compare.origin.trace import Trace, bad_rows
from msprobe.compare.rows import Row


@dataclass(frozen=True)
class Candidate:
    """A suspect of one unit; `index` is its place there, `received` that it came from another rank."""

    kind: str
    index: int
    row: Optional[Row]
    match: Match
    epoch: int
    received: bool
    evidence: tuple[str, ...] = ()
    inputs: str = "the same inputs"


def amount(row: Row) -> str:
    return "" if row.distance is None else f" (relative difference {row.distance:.3g})"


def sentence(found: Candidate, call: Call, module: Optional[str], later: Optional[int]) -> str:
    row = found.row
    when = "before anything ran"
    if later is not None:
        when = f"at the start of step {later}, though the step before agrees: look at the optimizer"
    where = f" in {module}" if module and module != call.key else ""
    slot = row.slot if row else ""
    return {
        "weight": f"weight {slot.partition('.')[2]} of {module or call.name} differs {when}",
        "input": f"{call.name}{where} was given another {slot}: it differs before any recorded call made it",
        "wiring": f"{call.name}{where} was given another {slot}, though what was recorded before it agrees",
        "argument": f"{call.name}{where} was called with another argument: {row.reason if row else ''}",
        "call": f"{call.name}{where} gives another {slot} for {found.inputs}",
        "missing call": f"{call.name}{where} is missing in the target",
        "extra call": f"{call.name}{where} exists only in the target",
        "gradient": f"the gradient is cut off at {call.name}{where}: {row.reason if row else ''}",
        "random": f"{call.name}{where} drew other random numbers",
        "choice": f"{call.name}{where} made another discrete choice from inputs that differ by rounding only",
        "received": f"{call.name}{where} received a difference from another rank",
    }[found.kind]


def spread(trace: Trace, found: Candidate) -> dict[str, Any]:
    calls = [m.call for m, rows in trace.groups[found.index + 1 :] if bad_rows(rows)]
    return {"calls": len(calls), "first": [call.name for call in calls[:5]]}


def summary_of(item: Optional[dict[str, Any]]) -> str:
    """One side of a row in a few words, for evidence."""
    if not item:
        return "nothing"
    if "value" in item:
        return str(item["value"])
    parts = [f"{key.lower()} {item[key]:.6g}" for key in ("Max", "Min", "Mean", "Norm") if _is_number(item.get(key))]
    return f"{distance.dtype_name(item)}{item.get('shape', '')} " + (", ".join(parts) or item.get("md5", ""))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))
