"""The answer: the first call that introduced the difference, what kind of fault it looks like, and the evidence.

Order of blame: weights that differ before anything ran; the first forward call that introduced a difference (or the
call that only one run made, just before it); gradients cut off; then the backward. Over ranks, a difference that
arrived through a collective is blamed on a rank where it started.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from msprobe.compare.calls import BACKWARD, FORWARD, Match
from msprobe.compare.measure import distance
from msprobe.compare.measure.distance import value_key
from msprobe.compare.origin.source import user_line
from msprobe.compare.origin.trace import Group, Trace, bad_rows, module_of
from msprobe.compare.origin.wording import Candidate, amount, sentence, spread, summary_of
from msprobe.compare.rows import INTRODUCED, PROPAGATED, Row, is_tensor
from msprobe.dump.collectives import is_collective

_RANDOM = (
    "dropout",
    "bernoulli",
    "rand",
    "randn",
    "randint",
    "randperm",
    "multinomial",
    "normal",
    "uniform",
    "rrelu",
    "gumbel_softmax",
    "exponential",
)


@dataclass(frozen=True)
class Origin:
    """Where it started.

    `kind` is weight, input, wiring, argument, call, missing call, extra call, gradient, random, choice or received.
    `source` is the user's line (`file:line in function`); `spread` counts what followed.
    """

    name: str
    module: Optional[str]
    direction: str
    step: Optional[int]
    rank: Optional[int]
    source: Optional[str]
    kind: str
    slot: str
    sentence: str
    evidence: tuple[str, ...] = ()
    spread: dict[str, Any] = field(default_factory=dict)


def suspect(trace: Trace) -> Optional[Candidate]:
    """The first thing to blame in one unit, or None."""
    if trace.weights:
        index, row = trace.weights[0]
        return _candidate("weight", index, row, trace)
    forward = [i for i in trace.introduced if not _is_backward(trace, i)]
    backward = [i for i in trace.introduced if _is_backward(trace, i)]
    if forward:
        return _blame(forward[0], trace)
    if trace.gradients:
        index, row = trace.gradients[0]
        return _candidate("gradient", index, row, trace)
    if backward:
        return _blame(backward[0], trace)
    return None


def _is_backward(trace: Trace, index: int) -> bool:
    return trace.groups[index][0].call.direction != FORWARD


def _candidate(kind: str, index: int, row: Optional[Row], trace: Trace, evidence: tuple[str, ...] = ()) -> Candidate:
    match = trace.groups[index][0]
    received = kind == "received"
    return Candidate(kind, index, row, match, trace.epoch(index), received, evidence)


def _blame(index: int, trace: Trace) -> Candidate:
    match, rows = trace.groups[index]
    bad = bad_rows(rows)
    inputs = [row for row in bad if row.is_input]
    arguments = [row for row in inputs if not is_tensor(row.golden) and row.golden is not None]
    if arguments:
        return _candidate("argument", index, arguments[0], trace)
    if inputs:
        return _blame_input(index, inputs, trace)
    row = max(bad, key=lambda found: found.distance or 0.0)
    if is_collective(match.call.key):
        return _candidate("received", index, row, trace)
    word = match.call.key.rpartition(".")[2].strip("_").lower()
    if word.startswith(_RANDOM):
        return _candidate("random", index, row, trace)
    inexact = any(other.distance for other in rows if other.is_input)
    if inexact and any(_is_discrete(other) for other in bad):
        return _candidate("choice", index, next(r for r in bad if _is_discrete(r)), trace)
    return replace(_candidate("call", index, row, trace), inputs=_inputs_seen(rows))


def _inputs_seen(rows: list[Row]) -> str:
    """Statistics do not see the order of elements: only bytes make inputs the same."""
    tensors = [row for row in rows if row.is_input and is_tensor(row.golden) and row.target is not None]
    if any(row.distance for row in tensors):
        return "inputs that agree but for rounding"
    proven = all(row.measured is not None or (row.golden or {}).get("md5") for row in tensors)
    return "the same inputs" if proven else "inputs with the same statistics"


def _is_discrete(row: Row) -> bool:
    return row.golden is not None and is_tensor(row.golden) and distance.epsilon(row.golden) == 0.0


def _blame_input(index: int, inputs: list[Row], trace: Trace) -> Candidate:
    """An input that nothing recorded before explains: a call that one run lacks, other wiring, or unseen code."""
    maker = _maker(index, inputs, trace)
    if maker is not None:
        for row in inputs:
            row.role = PROPAGATED
        return _blame(maker, trace)
    structural = _structural(index, inputs, trace)
    if structural is not None:
        _shift_blame(index, structural.index, trace)
        return structural
    row = inputs[0]
    ours = _producer(row.target, index, trace, golden=False)
    theirs = _producer(row.golden, index, trace, golden=True)
    if ours is not None and theirs is not None and ours is not theirs:
        said = f"the target passes what {ours.call.name} gave, the golden run what {_golden_name(theirs)} gave"
        return _candidate("wiring", index, row, trace, (said,))
    if theirs is not None:
        said = f"the golden run passes what {_golden_name(theirs)} gave; in the target something unrecorded changed it"
        return _candidate("wiring", index, row, trace, (said,))
    if ours is not None:
        said = f"the target passes what {ours.call.name} gave; the golden run passes something else"
        return _candidate("wiring", index, row, trace, (said,))
    return _candidate("input", index, row, trace)


def _maker(index: int, inputs: list[Row], trace: Trace) -> Optional[int]:
    """A backward that gave the wrong gradient from right ones, though it was recorded later: a module's backward is
    complete only when all its inputs' gradients are, and by then others have used some of them."""
    if trace.groups[index][0].call.direction != BACKWARD:
        return None
    wanted = {value_key(row.golden) for row in inputs} - {None}
    for later in trace.introduced:
        match, rows = trace.groups[later]
        bad = bad_rows(rows)
        if later == index or match.call.direction != BACKWARD or any(row.is_input for row in bad):
            continue
        if any(value_key(row.golden) in wanted for row in bad):
            return later
    return None


def _shift_blame(index: int, to: int, trace: Trace) -> None:
    """The call that only one run made introduced it; the one that noticed passed it on."""
    for row in bad_rows(trace.groups[index][1]):
        row.role = PROPAGATED
    for row in trace.groups[to][1]:
        row.role = INTRODUCED


def _golden_name(match: Match) -> str:
    return match.golden.name if match.golden else match.call.name


def _producer(item: Any, index: int, trace: Trace, golden: bool) -> Optional[Match]:
    """The last call before whose output holds the same numbers."""
    key = value_key(item)
    if key is None:
        return None
    for match, rows in reversed(trace.groups[:index]):
        if match.call.direction != trace.groups[index][0].call.direction:
            continue
        for row in rows:
            side = row.golden if golden else row.target
            if not row.is_input and side and value_key(side) == key:
                found: Match = match
                return found
    return None


def _structural(index: int, inputs: list[Row], trace: Trace) -> Optional[Candidate]:
    direction = trace.groups[index][0].call.direction
    before = [i for i in trace.unmatched if i < index and trace.groups[i][0].call.direction == direction]
    if not before:
        return None
    for i in reversed(before):
        match, rows = trace.groups[i]
        golden_only = match.target is None
        wanted = {value_key(row.golden if golden_only else row.target) for row in inputs} - {None}
        for row in rows:
            if not row.is_input and value_key(row.golden if golden_only else row.target) in wanted:
                return _candidate("missing call" if golden_only else "extra call", i, row, trace)
    adjacent = []
    i = index - 1
    while i >= 0 and (i in before or trace.groups[i][0].call.kind == "module"):
        if i in before and trace.groups[i][0].call.kind != "module":
            adjacent.append(i)
        i -= 1
    if not adjacent:
        return None
    found = min(adjacent)
    match, rows = trace.groups[found]
    kind = "missing call" if match.target is None else "extra call"
    return _candidate(kind, found, rows[0] if rows else None, trace)


@dataclass(frozen=True)
class Unit:
    """What `settle` needs of one compared rank and step."""

    step: Optional[int]
    rank: Optional[int]
    trace: Trace
    stacks: Any
    candidate: Optional[Candidate]


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
    late = 1 if found.match.call.direction != FORWARD else 0
    return (1 if found.received else 0, late, found.epoch, found.index)


def describe(unit: Unit, others: Sequence[Unit], later: bool = False) -> Origin:
    """`later`: an earlier step was compared too, and agrees."""
    found = unit.candidate
    assert found is not None
    match, row = found.match, found.row
    call = match.call
    handed = found.kind in ("input", "wiring", "gradient") and row is not None and row.slot.startswith("input.")
    given = row if handed else None
    name = row.name if found.kind == "weight" and row else call.name
    module = module_of(call, unit.trace.groups, given)
    source = user_line(unit.stacks, match)
    evidence = [*found.evidence]
    if row is not None:
        evidence.append(f"{row.slot}: {row.reason or 'differs'}" + amount(row))
        evidence.append(f"target: {summary_of(row.target)}")
        evidence.append(f"golden: {summary_of(row.golden)}")
    elsewhere = [other for other in others if other is not unit and other.candidate and other.candidate.received]
    if elsewhere:
        ranks = ", ".join(str(other.rank) for other in elsewhere)
        evidence.append(f"it reached rank {ranks} through {elsewhere[0].candidate.match.call.name}")  # type: ignore[union-attr]
    return Origin(
        name=name,
        module=module,
        direction=call.direction,
        step=unit.step,
        rank=unit.rank,
        source=source,
        kind=found.kind,
        slot=row.slot if row else "",
        sentence=sentence(found, call, module, unit.step if later else None),
        evidence=tuple(evidence),
        spread=spread(unit.trace, found),
    )


def group_under_choice(origin: Optional[Origin], groups: Sequence[Group]) -> None:
    """What follows from a random or discrete choice is put under it."""
    if origin is None or origin.kind not in ("random", "choice"):
        return
    for match, rows in groups:
        if match.call.name != origin.name:
            for row in bad_rows(rows):
                row.cause = origin.name
