"""The answer over steps and ranks: the one origin, with its module, its source lines and the evidence.

If a difference reached other ranks through a collective, the origin is on the rank where it started.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from msprobe.compare.calls import BACKWARD, FORWARD
from msprobe.compare.measure import distance
from msprobe.compare.measure.distance import value_key
from msprobe.compare.measure.order import is_reordered
from msprobe.compare.origin.arguments import slot_text
from msprobe.compare.origin.source import (
    Lines,
    Made,
    caller_lines,
    library_lines,
    made_lines,
    model_lines,
    user_lines,
)
from msprobe.compare.origin.trace import Trace, bad_rows, module_of
from msprobe.compare.origin.wording import Candidate, next_step, sentence, spread, summary_of, with_amount
from msprobe.compare.phases import Phase, Stacks
from msprobe.compare.rows import Group, Row
from msprobe.messages import Message


@dataclass(frozen=True)
class Origin:
    """Where it started.

    `kind` is weight, input, wiring, swapped, argument, call, dtype, missing call, extra call, replaced, elsewhere,
    parameter, buffer, gradient, parameter gradient, training, random, choice, quantised or received. `direction` is
    the phase: forward, backward or after the backward. `source` and `golden_source` are the lines of the user's code in
    the two runs (`file:line in function`), `library` and `golden_library` the innermost lines of installed code. They
    are None where a run does not make the call, and in a finding about the training loop that no call of it shows.
    `made` and `golden_made` are the lines that make the module, if what differs is a weight or buffer of it, or a call
    by installed code that does not come with its input; `model` and `golden_model` those of the scripts that make the
    model, if installed code makes the module. `callers` and `golden_callers` are the lines of the user's code that call
    the function with the line, innermost first. `next` says what to run next; `spread` counts the later calls that
    differ.

    If the ranks of a run were compared as one: `ranks` are those with the fault, `dimension` is that of the mesh,
    `collective` is the exchange between ranks just before; the kind may also be missing all-reduce, reduced twice,
    wrong factor, wrong group, shard mis-sliced, replica not synchronised, gradient not averaged or wrong microbatch
    scaling.
    """

    name: str
    module: Optional[str]
    direction: str
    step: Optional[int]
    rank: Optional[int]
    source: Optional[str]
    kind: str
    slot: str
    sentence: Message
    evidence: tuple[Message, ...] = ()
    spread: dict[str, Any] = field(default_factory=dict)
    library: Optional[str] = None
    golden_source: Optional[str] = None
    golden_library: Optional[str] = None
    made: Optional[str] = None
    golden_made: Optional[str] = None
    model: Optional[str] = None
    golden_model: Optional[str] = None
    callers: tuple[str, ...] = ()
    golden_callers: tuple[str, ...] = ()
    next: Optional[Message] = None
    ranks: tuple[int, ...] = ()
    dimension: str = ""
    collective: str = ""

    @property
    def is_called_differently(self) -> bool:
        """Whether the function with the line is called in both runs, by lines with a different text."""
        target, golden = (
            [line.partition(" in ")[2] for line in lines] for lines in (self.callers, self.golden_callers)
        )
        return bool(target and golden) and target != golden


_HANDED = ("input", "wiring")
"""Kinds of a value that a call receives: no setting of its module is wrong."""


@dataclass(frozen=True)
class Unit:
    """What `settle` needs of one compared rank and step."""

    step: Optional[int]
    rank: Optional[int]
    trace: Trace
    stacks: Stacks
    candidate: Optional[Candidate]
    made: Made = ({}, {})


def settle(units: Sequence[Unit]) -> Optional[Origin]:
    """The one origin over steps and ranks."""
    guilty = [unit for unit in units if unit.candidate is not None]
    if not guilty:
        return None
    steps = list(dict.fromkeys(unit.step for unit in units))
    first = next(step for step in steps if any(unit.step == step for unit in guilty))
    here = [unit for unit in guilty if unit.step == first]
    chosen = min(here, key=_blame_order)
    return describe(chosen, here, later=first != steps[0])


def _blame_order(unit: Unit) -> tuple[int, int, int, int]:
    found = unit.candidate
    assert found is not None
    return (1 if found.received else 0, int(found.phase), found.epoch, found.index)


def describe(unit: Unit, others: Sequence[Unit], later: bool = False) -> Origin:
    """`later`: an earlier step was compared too, and agrees."""
    found = unit.candidate
    assert found is not None
    match, row = found.match, found.row
    call = match.call
    handed = found.kind in ("input", "wiring", "gradient") and row is not None and row.slot.startswith("input.")
    given = row if handed else None
    of_weight = found.kind == "weight" or (bool(found.ranks) and row is not None and "parameters." in row.slot)
    name = row.name if of_weight and row else call.name
    module = None
    if found.kind != "training":
        module = module_of(call, unit.trace.groups, given)
        if module is None and found.phase is Phase.BACKWARD and call.direction == FORWARD:
            module = _running_backward(unit.trace, found.index)
    evidence = [*found.evidence]
    if found.kind == "weight":
        evidence.append(_weights(unit.trace))
    if row is not None:
        slot = slot_text(call, row.slot) if row.match.call.name == call.name else row.name
        evidence.append(_difference(slot, row))
        evidence += _factor(row)
        evidence.append(Message("evidence.target", summary=summary_of(row.target)))
        evidence.append(Message("evidence.golden", summary=summary_of(row.golden)))
    elsewhere = [other for other in others if other is not unit and other.candidate and other.candidate.received]
    if elsewhere:
        ranks = ", ".join(str(other.rank) for other in elsewhere)
        through = elsewhere[0].candidate.match.call.name  # type: ignore[union-attr]
        evidence.append(Message("evidence.reached", ranks=ranks, call=through))
    source, golden_source = found.lines if any(found.lines) else _about(found, user_lines(unit.stacks, match))
    is_part = any(found.lines) and found.kind != "training"
    library, golden_library = (None, None) if is_part else _about(found, library_lines(unit.stacks, match))
    by_library = module is not None and bool(library or golden_library)
    made, model = _makers(unit, found, module, by_library)
    callers, golden_callers = (
        ((), ()) if found.kind == "training" else caller_lines(unit.stacks, match, (source, golden_source))
    )
    said = _not_reduced(unit, others) or sentence(found, call, module, unit.step if later else None)
    return Origin(
        name=name,
        module=module,
        direction=found.phase.text,
        step=unit.step,
        rank=found.ranks[0] if len(found.ranks) == 1 else unit.rank,
        source=source,
        kind=found.kind,
        slot=row.slot if row else "",
        sentence=said if found.then is None else Message("origin.then", said=said, then=found.then),
        evidence=tuple(evidence),
        spread=spread(unit.trace, found),
        library=library,
        golden_source=golden_source,
        golden_library=golden_library,
        made=made[0],
        golden_made=made[1],
        model=model[0],
        golden_model=model[1],
        callers=callers,
        golden_callers=golden_callers,
        next=next_step(found, later, by_library, _is_first(unit.trace, found)),
        ranks=found.ranks,
        dimension=found.dimension,
        collective=found.collective,
    )


def _makers(unit: Unit, found: Candidate, module: Optional[str], by_library: bool) -> tuple[Lines, Lines]:
    """The lines that make the module and the model, where a setting of the module may be wrong; or the tensor of the
    model that the call takes."""
    if found.said is not None and found.said.id == "made.held":
        return found.made, (None, None)
    if module is None or not (found.kind in ("weight", "buffer") or (by_library and found.kind not in _HANDED)):
        return (None, None), (None, None)
    return made_lines(unit.made, module), model_lines(unit.made, module)


def _is_first(trace: Trace, found: Candidate) -> bool:
    return not any(match.call.direction == FORWARD for match, _ in trace.groups[: found.index])


def _difference(name: str, row: Row) -> Message:
    if is_reordered(row) and row.target is not None and row.golden is not None:
        orders = [f"{float(item['Order']):.6g}" for item in (row.target, row.golden)]
        return Message("evidence.orders", name=name, target=orders[0], golden=orders[1])
    return with_amount(Message("named", name=name, said=_reason(row)), row)


def _factor(row: Row) -> list[Message]:
    """Whether all statistics of a tensor are those of the golden run times one number."""
    ours, theirs = ([distance.number((item or {}).get(key)) for key in _SCALED] for item in (row.target, row.golden))
    ratios = [a / b for a, b in zip(ours, theirs) if a is not None and b and math.isfinite(a) and math.isfinite(b)]
    if (
        len(ratios) < len(_SCALED)
        or not ratios[0]
        or not all(math.isclose(one, ratios[0], rel_tol=1e-5) for one in ratios)
    ):
        return []
    if math.isclose(ratios[0], 1.0, rel_tol=1e-3) or _has_one_element(row.target):
        return []
    return [Message("evidence.factor", factor=f"{ratios[0]:.4g}")]


_SCALED = ("Max", "Min", "Mean", "Norm")


def _has_one_element(item: Optional[dict[str, Any]]) -> bool:
    shape = (item or {}).get("shape")
    return not isinstance(shape, list) or math.prod(one for one in shape if isinstance(one, int)) <= 1


def _reason(row: Row) -> str:
    """Why the row differs, even if it alone is harmless."""
    return row.difference.message if row.excuse is not None and not row.absent else row.reason or Message("differs")


def _about(found: Candidate, lines: Lines) -> Lines:
    """The lines, if they are about the finding. One about the training loop has no call of its own: the line of the
    call before it is a different subject, but the calls of the optimizer show where it steps."""
    if found.kind != "training" or (found.row is not None and found.phase is Phase.AFTER):
        return lines
    return None, None


def _running_backward(trace: Trace, index: int) -> Optional[str]:
    """The module in whose backward the autograd engine made a call: the next module whose backward completes."""
    for match, _ in trace.groups[index + 1 :]:
        if match.call.direction == BACKWARD and match.call.kind == "module":
            return str(match.call.key)
    return None


def _not_reduced(unit: Unit, others: Sequence[Unit]) -> Optional[Message]:
    """The sentence for gradients that differ from rank to rank in the target, and are the same in the golden run."""
    found = unit.candidate
    if found is None or found.row is None or found.phase is not Phase.AFTER or found.kind not in ("input", "wiring"):
        return None
    row = found.row
    same = [
        other
        for one in others
        for match, rows in one.trace.groups
        if match.call.name == found.match.call.name
        for other in rows
        if other.slot == row.slot
    ]
    ours, theirs = {value_key(one.target) for one in same}, {value_key(one.golden) for one in same}
    if len(ours) < 2 or len(theirs) != 1:
        return None
    return Message("origin.not_reduced", call=found.match.call.name)


def _weights(trace: Trace) -> Message:
    """How many weights differ, each counted once however often its module is called."""
    held = [
        (match.call.key, row)
        for match, rows in trace.groups
        if match.call.direction == FORWARD and match.call.kind == "module"
        for row in rows
        if row.slot.startswith("parameters.")
    ]
    known = {(key, row.slot) for key, row in held}
    differ = {(trace.groups[index][0].call.key, row.slot) for index, row in trace.weights}
    differ |= {(key, row.slot) for key, row in held if is_reordered(row)}
    return Message("evidence.weights", different=len(differ), all=max(len(known), len(differ)))


def group_under_choice(origin: Optional[Origin], groups: Sequence[Group]) -> dict[int, str]:
    """The rows that follow from a random or discrete choice, by the id of the row: the name of the choice."""
    if origin is None or origin.kind not in ("random", "choice"):
        return {}
    return {id(row): origin.name for match, rows in groups if match.call.name != origin.name for row in bad_rows(rows)}


__all__ = ["Origin", "Phase", "Unit", "describe", "group_under_choice", "settle"]
