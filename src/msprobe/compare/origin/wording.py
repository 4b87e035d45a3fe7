"""Describes a suspect in words: one sentence, the amounts, both sides, and what followed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Optional

from msprobe.compare.calls import Call, Match
from msprobe.compare.measure import distance
from msprobe.compare.origin.arguments import one_sided, slot_text
from msprobe.compare.origin.source import Lines
from msprobe.compare.origin.trace import Trace, bad_rows
from msprobe.compare.phases import Phase
from msprobe.compare.reasons import Kind
from msprobe.compare.rows import Row, is_tensor, slots
from msprobe.dump.items import true_count
from msprobe.messages import Message

SAME_INPUTS = Message("inputs.same")
UNORDERED = Message("inputs.statistics")
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
    with the fault, the `dimension` of the mesh, the `collective` before it. `lines` are those of a part of the code or
    of the training loop, `made` those that make a tensor of the model; `then` says what else the runs compute in
    different ways before the difference shows."""

    kind: str
    index: int
    row: Optional[Row]
    match: Match
    epoch: int
    received: bool
    evidence: tuple[Message, ...] = ()
    inputs: Message = SAME_INPUTS
    phase: Phase = Phase.FORWARD
    said: Optional[Message] = None
    other: str = ""
    ranks: tuple[int, ...] = ()
    dimension: str = ""
    collective: str = ""
    lines: Lines = (None, None)
    then: Optional[Message] = None
    made: Lines = (None, None)


def argument_text(call: Call, row: Optional[Row]) -> Message:
    """`eps is 0.001, not 1e-05`."""
    assert row is not None
    name = slot_text(call, row.slot).partition(" (")[0].removeprefix("input.")
    if name.replace(".", "").isdigit():
        name = Message("argument.numbered", place=name)
    if (row.target is None) != (row.golden is None) or is_tensor(row.target) != is_tensor(row.golden):
        return one_sided(name, row)
    why = row.difference
    if why.kind is Kind.ARGUMENT and why.detail is not None:
        return Message("argument.is", name=name, value=why.detail)
    return Message("named", name=name, said=why.message)


def with_amount(said: Message, row: Row) -> Message:
    """The sentence, with how large the difference is."""
    if (
        row.distance is None
        or math.isinf(row.distance)
        or row.why.kind in (Kind.DTYPE, Kind.GRADIENT, Kind.NULL, Kind.ARGUMENT)
    ):
        return said
    return Message("amount", said=said, amount=f"{row.distance:.3g}")


def call_text(call: Call, module: Optional[str], name: str = "") -> str:
    """`X in M (a recomputation)`; `name` is that of the call of the other run in its place."""
    text = name or call.name
    if module and module != call.key:
        text = Message("call.in", call=text, module=module)
    return Message("call.recomputation", call=text) if call.recompute else text


def sentence(found: Candidate, call: Call, module: Optional[str], later: Optional[int]) -> Message:
    if found.said is not None:
        return found.said
    row, text = found.row, call_text(call, module)
    slot = slot_text(call, row.slot) if row else ""
    if found.kind == "weight":
        return _weight_sentence(row, module or call.name, later)
    if found.kind == "gradient" and row is not None:
        return _gradient_sentence(row, text, module or call.name, slot)
    if found.kind == "call":
        both = _both_names(found.match, text)
        seen = found.inputs.id in ("inputs.unseen", "inputs.one_unseen")
        return Message("origin.call_unseen" if seen else "origin.call", call=both, slot=slot, inputs=found.inputs)
    if found.kind in _RECEIVING:
        return Message(_RECEIVING[found.kind], call=text, slot=slot)
    if found.kind in _PLAIN:
        said = Message(_PLAIN[found.kind], call=text)
        return _with_cast(said, call) if found.kind in ("missing call", "extra call") else said
    if found.kind == "argument":
        return Message("origin.argument", call=text, argument=argument_text(call, row))
    if found.kind == "dtype":
        return Message("origin.dtype", call=text, slot=slot, why=row.reason if row else "")
    if found.kind == "replaced":
        return _replaced(found, call, module)
    assert found.kind == "parameter gradient", found.kind
    return Message("origin.parameter_gradient", slot=slot.partition(".")[2] or slot, module=module or call.name)


_RECEIVING = {"input": "origin.input", "wiring": "origin.wiring"}
_PLAIN = {
    "swapped": "origin.swapped",
    "missing call": "origin.missing_call",
    "extra call": "origin.extra_call",
    "elsewhere": "origin.elsewhere",
    "random": "origin.random",
    "choice": "origin.choice",
    "received": "origin.received",
}
"""Sentences that name the call only."""


def _gradient_sentence(row: Row, text: str, module: str, slot: str) -> Message:
    cut = not (row.target or {}).get("requires_grad")
    if row.slot.startswith("parameters."):
        name = row.slot.partition(".")[2]
        id = "gradient.cut_parameter" if cut else "gradient.kept_parameter"
        return Message(id, name=name, module=module, why=row.reason)
    return Message("gradient.cut" if cut else "gradient.kept", call=text, slot=slot, why=row.reason)


def _with_cast(said: Message, call: Call) -> Message:
    """The sentence, with how an API changes the dtype of its first argument, if it does."""
    if call.kind != "api":
        return said
    found = {slot: distance.dtype_name(item) for slot, item in slots(call) if item is not None and is_tensor(item)}
    before, after = found.get("input.0"), found.get("output.0")
    if not before or not after or before == after:
        return said
    return Message("origin.cast", said=said, before=before, after=after)


def weight_text(row: Optional[Row], module: str) -> Message:
    """`weight of M`, `weight bias of M`."""
    name = row.slot.partition(".")[2] if row else ""
    return (
        Message("weight.only", module=module) if name == "weight" else Message("weight.named", name=name, module=module)
    )


def _weight_sentence(row: Optional[Row], module: str, later: Optional[int]) -> Message:
    weight = weight_text(row, module)
    if row is not None and row.why.kind is Kind.DTYPE and row.why.detail is not None:
        if later is None:
            return Message("weight.dtype", weight=weight, dtypes=row.why.detail)
        return Message("weight.dtype_later", weight=weight, dtypes=row.why.detail, step=later)
    if later is None:
        return Message("weight.differs", weight=weight)
    return Message("weight.later", weight=weight, step=later)


def _both_names(match: Match, text: str) -> str:
    if match.target is None or match.golden is None:
        return text
    if match.target.key == match.golden.key or match.how in ("renamed", "mapping"):
        return text
    return Message("call.replacing", call=text, golden=match.golden.name)


def _replaced(found: Candidate, call: Call, module: Optional[str]) -> Message:
    name, other = call.name, found.other
    golden, target = (name, other) if found.match.target is None else (other, name)
    return Message("origin.replaced", golden=call_text(call, module, golden), target=target)


_STATE = Message("next.state")
_CODE = Message("next.code")
_NEXT = {
    "training": Message("next.training"),
    "weight": _STATE,
    "parameter": _STATE,
    "buffer": _STATE,
    "argument": Message("next.argument"),
    "missing call": _CODE,
    "extra call": _CODE,
    "overwritten": _CODE,
    "update": Message("next.update"),
    "replaced": _CODE,
    "elsewhere": _CODE,
    "swapped": _CODE,
    "gradient": Message("next.gradient"),
    "dtype": Message("next.dtype"),
    "random": Message("next.random"),
    "parameter gradient": Message("next.hooks"),
}
"""What to do about a kind of suspect."""


def next_step(found: Candidate, later: bool = False, by_library: bool = False, first: bool = False) -> Message:
    """What to run next. `later`: an earlier step was compared too, and agrees. `by_library`: a library makes the call,
    inside one of the user's modules. `first`: the step has no call before it."""
    row = found.row
    if found.kind == "argument" and by_library:
        return Message("next.setting")
    if found.kind == "weight" and later:
        return Message("next.weights")
    if found.kind == "buffer" and found.phase is Phase.AFTER:
        return Message("next.buffer")
    saved = row is not None and row.measured is not None
    if found.kind in _NEXT:
        return _NEXT[found.kind]
    if found.kind in PARALLEL_KINDS:
        return Message("next.ranks")
    if found.kind == "call" and found.inputs == UNORDERED:
        return Message("next.order")
    if found.kind in ("input", "wiring"):
        if found.said is not None and found.said.id in ("made.differs", "made.order"):
            return Message("next.line")
        return Message("next.data" if first else "next.before")
    if saved:
        return Message("next.run_ut")
    return Message("next.collect")


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
