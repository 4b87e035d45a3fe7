"""Describes a suspect in words: one sentence, the amounts, both sides, and what followed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Optional

from msprobe.compare.calls import Call, Match
from msprobe.compare.measure import distance
from msprobe.compare.origin.arguments import slot_text, value_text
from msprobe.compare.origin.trace import Trace, bad_rows
from msprobe.compare.phases import Phase
from msprobe.compare.reasons import Kind
from msprobe.compare.rows import Row, is_tensor, slots
from msprobe.dump.items import true_count

UNORDERED = "although its inputs have the same statistics"
"""What is known about inputs with recorded statistics only."""

PARALLEL_KINDS = (
    "missing all-reduce",
    "reduced twice",
    "wrong factor",
    "wrong group",
    "shard mis-sliced",
    "replica not synchronised",
    "gradient not averaged",
    "wrong microbatch scaling",
)
"""Faults between ranks: running the call alone does not show them."""


@dataclass(frozen=True)
class Candidate:
    """A suspect of one unit; `index` is its place there, `received` that it came from another rank, `said` a finished
    sentence, `other` the call of the other run in its place. If the ranks of a run are compared as one: the `ranks`
    with the fault, the `dimension` of the mesh, the `collective` before it."""

    kind: str
    index: int
    row: Optional[Row]
    match: Match
    epoch: int
    received: bool
    evidence: tuple[str, ...] = ()
    inputs: str = "for the same inputs"
    phase: Phase = Phase.FORWARD
    said: str = ""
    other: str = ""
    ranks: tuple[int, ...] = ()
    dimension: str = ""
    collective: str = ""


def argument_text(call: Call, row: Optional[Row]) -> str:
    """`eps is 0.001, not 1e-05`."""
    if row is None:
        return ""
    name = slot_text(call, row.slot).partition(" (")[0].removeprefix("input.")
    if name.replace(".", "").isdigit():
        name = f"argument {name}"
    if (row.target is None) != (row.golden is None) or is_tensor(row.target) != is_tensor(row.golden):
        return f"{name} is {value_text(row)}"
    why = row.difference
    return f"{name} is {why.detail}" if why.kind is Kind.ARGUMENT else f"{name}: {why}"


def amount(row: Row) -> str:
    if (
        row.distance is None
        or math.isinf(row.distance)
        or row.why.kind in (Kind.DTYPE, Kind.GRADIENT, Kind.NULL, Kind.ARGUMENT)
    ):
        return ""
    return f" (relative difference {row.distance:.3g})"


def sentence(found: Candidate, call: Call, module: Optional[str], later: Optional[int]) -> str:
    row = found.row
    if found.said:
        return found.said
    where = f" in {module}" if module and module != call.key else ""
    where += " (a recomputation)" if call.recompute else ""
    slot = slot_text(call, row.slot) if row else ""
    reason = row.reason if row else ""
    name = call.name
    if found.kind == "weight":
        return _weight_sentence(row, module or name, later)
    if found.kind == "gradient" and row is not None:
        return _gradient_sentence(row, name, where, module or name, slot)
    if found.kind == "call" and found.match.target and found.match.golden:
        name = _both_names(found.match, where)
        where = ""
    return {
        "input": f"{name}{where} received a different {slot}, which no recorded call produced",
        "wiring": f"{name}{where} received a different {slot}, though what was recorded before it agrees",
        "swapped": f"{name}{where} was given its operands swapped",
        "argument": f"{name}{where} was called with a different argument: {argument_text(call, row)}",
        "call": f"{name}{where} returns a different {slot}{'' if found.inputs.startswith(';') else ' '}{found.inputs}",
        "dtype": f"{name}{where} computes in a different precision: {slot}: {reason}",
        "missing call": f"{name}{where} is missing in the target{_cast_text(call)}",
        "extra call": f"{name}{where} exists only in the target{_cast_text(call)}",
        "replaced": _replaced(found, where),
        "elsewhere": f"{name}{where}: the other run makes this call, but elsewhere",
        "parameter gradient": f"the gradient of {slot.partition('.')[2] or slot} of {module or name} differs, "
        "though no backward call that was compared does",
        "random": f"{name}{where} drew different random numbers",
        "choice": f"{name}{where} selected different elements; its inputs differ only by rounding",
        "received": f"{name}{where} received a difference from another rank",
    }[found.kind]


def _gradient_sentence(row: Row, name: str, where: str, module: str, slot: str) -> str:
    cut = not (row.target or {}).get("requires_grad")
    what = "the gradient is cut off" if cut else "the gradient is not detached"
    more = "" if cut else ", but is in the golden run"
    if row.slot.startswith("parameters."):
        return f"{what}{more}: {row.slot.partition('.')[2]} of {module}: {row.reason}"
    return f"{what} at {name}{where}{more}: {slot}: {row.reason}"


def _cast_text(call: Call) -> str:
    """How an API changes the dtype of its first argument; empty if it does not."""
    if call.kind != "api":
        return ""
    found = {slot: distance.dtype_name(item) for slot, item in slots(call) if item is not None and is_tensor(item)}
    before, after = found.get("input.0"), found.get("output.0")
    return f": it turns {before} into {after}" if before and after and before != after else ""


def _weight_sentence(row: Optional[Row], module: str, later: Optional[int]) -> str:
    slot = row.slot.partition(".")[2] if row else ""
    when = "before anything ran"
    if later is not None:
        when = f"at the start of step {later}, though the step before agrees: look at the optimizer"
    what = "differs"
    if row is not None and row.why.kind is Kind.DTYPE:
        what = row.reason.removeprefix("the dtype ").replace("is ", "has a different dtype (", 1) + ")"
    return f"{slot} of {module} {what} {when}" if slot == "weight" else f"weight {slot} of {module} {what} {when}"


def _both_names(match: Match, where: str) -> str:
    assert match.target is not None
    assert match.golden is not None
    if match.target.key == match.golden.key or match.how in ("renamed", "mapping"):
        return f"{match.target.name}{where}"
    return f"{match.target.name}{where}, which replaces {match.golden.name},"


def _replaced(found: Candidate, where: str) -> str:
    name, other = found.match.call.name, found.other
    golden, target = (name, other) if found.match.target is None else (other, name)
    return f"{golden}{where} is replaced by {target} in the target"


_STATE = "compare how the two runs load or initialise their weights and buffers (seed, checkpoint, dtype)"
_CODE = (
    "compare this code of the two runs: one was changed, takes a different branch, or a different version is installed"
)
_NEXT = {
    "training": "make this the same in both runs and compare again",
    "weight": _STATE,
    "parameter": _STATE,
    "buffer": _STATE,
    "argument": "find where the two runs get this argument from, make it the same and compare again",
    "missing call": _CODE,
    "extra call": _CODE,
    "overwritten": _CODE,
    "update": "compare how the two optimizers compute the update of this parameter",
    "replaced": _CODE,
    "elsewhere": _CODE,
    "swapped": _CODE,
    "gradient": "look for detach(), torch.no_grad() and requires_grad_(False) just before this call",
    "dtype": "look at autocast and at casts (to, float, half, bfloat16) around this call",
    "random": "seed both runs in the same way (seed_all), or turn dropout off (rm_dropout)",
    "parameter gradient": "look for hooks on this parameter, and for calls that use it in one run only",
}
"""What to do about a kind of suspect."""

_UPDATE = "compare what changes weights between the two steps: optimizer settings, clipping, loss scale, loaded state"


def next_step(found: Candidate, later: bool = False) -> str:
    """What to run next. `later`: an earlier step was compared too, and agrees."""
    row = found.row
    if found.kind == "weight" and later:
        return _UPDATE
    if found.kind == "buffer" and found.phase is Phase.AFTER:
        return "compare the code that writes this buffer in the two runs"
    saved = row is not None and row.measured is not None
    if found.kind in _NEXT:
        return _NEXT[found.kind]
    if found.kind in PARALLEL_KINDS:
        return "see what each rank has of this call: msprobe view TARGET GOLDEN, then Enter"
    if found.kind == "call" and found.inputs == UNORDERED:
        return (
            "collect with summary_mode md5 to see other orders, or with --next-config FILE the tensors of the suspects"
        )
    if found.kind in ("input", "wiring"):
        return "look at the code between the last recorded call and this one; --next-config FILE collects the tensors"
    if saved:
        return "run this call alone on the saved inputs: msprobe run_ut"
    return "--next-config FILE writes a config.json that collects the tensors of the suspects"


def spread(trace: Trace, found: Candidate) -> dict[str, Any]:
    calls = [m.call for m, rows in trace.groups[found.index + 1 :] if bad_rows(rows)]
    return {"calls": len(calls), "first": [call.name for call in calls[:5]]}


def summary_of(item: Optional[dict[str, Any]]) -> str:
    """One side of a row in a few words, for evidence."""
    if not item:
        return "nothing"
    if "value" in item:
        return str(item["value"])
    trues = true_count(item)
    if trues is not None:
        return f"bool{item.get('shape', '')} {trues[0]} of {trues[1]} true"
    known = {key: distance.number(item.get(key)) for key in distance.STATISTICS}
    parts = [f"{key.lower()} {value:.6g}" for key, value in known.items() if value is not None]
    shape = item.get("shape", "")
    if item.get("layout") == "nested" and isinstance(shape, list) and shape:
        shape = f" in {shape[0]} parts"
    return f"{distance.dtype_name(item)}{shape} " + (", ".join(parts) or str(item.get("md5", "")))
