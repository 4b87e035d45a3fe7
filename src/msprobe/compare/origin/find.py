"""The suspect: the first call that introduced the difference in one rank and step, and the kind of fault.

Order of blame: weights that differ before anything ran; the first forward call that introduced a difference (or the
call that only one run made, just before it); gradients cut off; the backward; then what comes after the backward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Optional

from msprobe.compare.calls import BACKWARD, FORWARD, GRADS, Match
from msprobe.compare.measure import distance
from msprobe.compare.measure.distance import result_key, value_key
from msprobe.compare.measure.rows import SAME_STATISTICS
from msprobe.compare.origin.arguments import other_arguments
from msprobe.compare.origin.reordered import reordering_before
from msprobe.compare.origin.state import other_module
from msprobe.compare.origin.trace import Trace, bad_rows
from msprobe.compare.origin.training import TrainingDifference
from msprobe.compare.origin.wording import UNORDERED, Candidate, argument_text
from msprobe.compare.phases import Phase
from msprobe.compare.reasons import Kind
from msprobe.compare.rows import INTRODUCED, PROPAGATED, Row, is_tensor
from msprobe.dump.collectives import is_collective

_RANDOM = (
    "dropout", "bernoulli", "rand", "randn", "randint", "randperm", "multinomial", "normal", "uniform", "rrelu",
    "gumbel_softmax", "exponential",
)  # fmt: skip


def suspect(trace: Trace, training: Sequence[TrainingDifference] = ()) -> Optional[Candidate]:
    """The first thing to blame in one unit, or None."""
    replaced = other_module(trace)
    if replaced is not None:
        return replace(_candidate("replaced", replaced[0], None, trace), said=replaced[1])
    if trace.weights:
        index, row = trace.weights[0]
        return _candidate("weight", index, row, trace)
    first = {phase: [i for i in trace.introduced if trace.phases[i] is phase] for phase in Phase}
    said = {phase: [one for one in training if one.phase is phase and not one.note_only] for phase in Phase}
    if first[Phase.FORWARD]:
        return _blame(first[Phase.FORWARD][0], trace)
    if trace.gradients:
        return _candidate("gradient", *_cut(trace), trace)
    if said[Phase.BACKWARD] and (first[Phase.BACKWARD] or first[Phase.AFTER]):
        return _training(said[Phase.BACKWARD], trace)
    if first[Phase.BACKWARD]:
        return _blame(first[Phase.BACKWARD][0], trace)
    if said[Phase.AFTER]:
        return _training(said[Phase.AFTER], trace)
    if first[Phase.AFTER]:
        return _blame(first[Phase.AFTER][0], trace)
    return None


def _cut(trace: Trace) -> tuple[int, Row]:
    """The first row that lost its gradient; the parameter, where it is one that a module hands to the call."""
    first, row = trace.gradients[0]
    parent = trace.groups[first][0].call.parent
    for index, other in trace.gradients:
        held = trace.groups[index][0].call.name == parent and other.slot.startswith("parameters.")
        if held and row.is_input and distance.is_repetition(other.golden, row.golden):
            return index, other
    return first, row


def _training(found: Sequence[TrainingDifference], trace: Trace) -> Candidate:
    """The first difference of the training loop; the first call that shows it, else the one that it follows."""
    shown = [i for i in trace.introduced if trace.phases[i] is found[0].phase]
    known = [i for i, (match, _) in enumerate(trace.groups) if match.target and match.target.name == found[0].after]
    index = (shown or known or [len(trace.groups) - 1])[0]
    bad = bad_rows(trace.groups[index][1]) if shown else []
    rest = tuple(one.sentence for one in found[1:4])
    made = _candidate("training", index, bad[0] if bad else None, trace, rest)
    return replace(made, said=found[0].sentence, phase=found[0].phase)


def _candidate(kind: str, index: int, row: Optional[Row], trace: Trace, evidence: tuple[str, ...] = ()) -> Candidate:
    match = trace.groups[index][0]
    received = kind == "received"
    return Candidate(kind, index, row, match, trace.epoch(index), received, evidence, phase=trace.phases[index])


def _blame(index: int, trace: Trace) -> Candidate:
    match, rows = trace.groups[index]
    bad = bad_rows(rows)
    inputs = [row for row in bad if row.is_input]
    arguments = other_arguments(match, inputs, rows)
    if arguments:
        more = tuple(argument_text(match.call, row) for row in arguments[1:4])
        return _candidate("argument", index, arguments[0], trace, more)
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
    if all(other.why.kind is Kind.DTYPE for other in bad):
        return _candidate("dtype", index, row, trace)
    if match.call.direction == GRADS:
        return _candidate("parameter gradient", index, row, trace)
    seen = _inputs_seen(match, rows)
    moved = reordering_before(index, trace) if seen == UNORDERED and trace.phases[index] is Phase.FORWARD else None
    if moved is not None:
        said = "their results have the same statistics: the order of the elements may differ"
        replaced = _candidate("replaced", moved, None, trace, (said,))
        return replace(replaced, other=_golden_name(trace.groups[moved][0]))
    unseen = ("statistics do not see the order of elements: the inputs may differ in it",)
    evidence = unseen if seen == UNORDERED else ()
    return replace(_candidate("call", index, row, trace, evidence), inputs=seen)


def _inputs_seen(match: Match, rows: Sequence[Row]) -> str:
    """What is known of a call's inputs. Statistics do not see the order of elements: only bytes make them the same."""
    inputs = [row for row in rows if row.is_input]
    unseen = [row for row in inputs if row.distance is None and is_tensor(row.target or row.golden)]
    if unseen:
        return f"inputs of which {unseen[0].slot} could not be compared ({unseen[0].reason})"
    if match.how == "fused" or not inputs:
        return "inputs that were not compared"
    tensors = [row for row in inputs if is_tensor(row.golden) and row.target is not None]
    if any((row.distance or 0.0) > SAME_STATISTICS for row in tensors):
        return "inputs that agree but for rounding"
    if not tensors:
        return "inputs that were not compared"
    proven = all(row.measured is not None or ((row.golden or {}).get("md5") and not row.distance) for row in tensors)
    return "the same inputs" if proven else UNORDERED


def _is_discrete(row: Row) -> bool:
    return row.golden is not None and is_tensor(row.golden) and distance.epsilon(row.golden) == 0.0


def _blame_input(index: int, inputs: list[Row], trace: Trace) -> Candidate:
    """An input that nothing recorded before explains: a call that one run lacks, other wiring, or unseen code."""
    maker = _maker(index, inputs, trace)
    if maker is not None:
        trace.set_role(inputs, PROPAGATED)
        return _blame(maker, trace)
    swapped = _swapped(inputs)
    if swapped is not None:
        one, other = swapped
        said = f"{one.slot} is what the golden run passes as {other.golden_slot}, and the other way round"
        return _candidate("swapped", index, one, trace, (said,))
    structural = _structural(index, inputs, trace)
    if structural is not None:
        trace.set_role(bad_rows(trace.groups[index][1]), PROPAGATED)
        trace.set_role(trace.groups[structural.index][1], INTRODUCED)
        return structural
    row = inputs[0]
    if row.why.kind is Kind.DTYPE:
        return _candidate("dtype", index, row, trace)
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
    parameter = _parameter_of(index, row, trace)
    if parameter:
        said = f"parameter {parameter}, {row.slot} of {trace.groups[index][0].call.name}, differs before anything ran"
        return replace(_candidate("parameter", index, row, trace), said=said)
    return _candidate("input", index, row, trace, _extra_before(index, trace))


def _parameter_of(index: int, row: Row, trace: Trace) -> str:
    """The parameter that a call was given without its module: its gradient is what the call's backward gives."""
    call = trace.groups[index][0].call
    place = row.slot.removeprefix("input.")
    given = None
    for match, rows in trace.groups[index:]:
        if match.call.direction == BACKWARD and (match.call.key, match.call.number) == (call.key, call.number):
            given = next((other.golden for other in rows if other.golden_slot == f"output.{place}"), None)
    key = value_key(given)
    if key is None:
        return ""
    for match, rows in trace.groups:
        for other in rows if match.call.direction == GRADS else ():
            if value_key(other.golden) == key:
                return f"{other.slot.split('.')[1] if '.' in other.slot else other.slot} of {match.call.key}"
    return ""


def _extra_before(index: int, trace: Trace) -> tuple[str, ...]:
    """The calls just before that only one run made."""
    near = [i for i in trace.unmatched if index - 8 <= i < index]
    said = []
    for side, names in (
        ("target", [trace.groups[i][0].target for i in near]),
        ("golden run", [trace.groups[i][0].golden for i in near]),
    ):
        made = [call.name for call in names if call is not None and call.direction == FORWARD]
        if made:
            said.append(f"just before it, only the {side} calls {', '.join(made[-3:])}")
    return tuple(said)


def _swapped(inputs: list[Row]) -> Optional[tuple[Row, Row]]:
    """Two inputs that have changed places."""
    for one in inputs:
        for other in inputs:
            if one is other:
                continue
            here, there = result_key(one.target), result_key(other.target)
            if here and there and here == result_key(other.golden) and there == result_key(one.golden):
                return one, other
    return None


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
    """A call that only one run made, and whose result is the input that differs, or that stands just before it."""
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
                first, shown = _first_maker(i, row, before, trace)
                return _unmatched_call(first, shown, before, trace)
    adjacent = []
    i = index - 1
    while i >= 0 and (i in before or trace.groups[i][0].call.kind == "module"):
        if i in before and trace.groups[i][0].call.kind != "module":
            adjacent.append(i)
        i -= 1
    if not adjacent:
        return None
    found = min(adjacent)
    rows = trace.groups[found][1]
    return _unmatched_call(found, rows[0] if rows else None, before, trace)


def _first_maker(index: int, row: Row, before: list[int], trace: Trace) -> tuple[int, Row]:
    """A call that hands on the numbers of its input (repeat, contiguous) made no difference: the unmatched call of the
    same run that made them did, where there is one."""
    match, rows = trace.groups[index]
    golden_only = match.target is None

    def side(one: Row) -> Any:
        return one.golden if golden_only else one.target

    handed_on = [one for one in rows if one.is_input and distance.is_repetition(side(row), side(one))]
    for i in reversed([i for i in before if i < index] if handed_on else []):
        other, made = trace.groups[i]
        if (other.target is None) == golden_only:
            for one in made:
                if not one.is_input and distance.is_repetition(side(one), side(handed_on[0])):
                    return _first_maker(i, one, before, trace)
    return index, row


def _unmatched_call(index: int, row: Optional[Row], before: list[int], trace: Trace) -> Candidate:
    """A call is missing (or extra) only where one run makes it less often; beside an unmatched call of the other run
    it is replaced by that."""
    match = trace.groups[index][0]
    made: Counter[tuple[bool, str]] = Counter()
    for other, _ in trace.groups:
        for golden, call in ((False, other.target), (True, other.golden)):
            if call is not None and call.direction == match.call.direction:
                made[golden, call.key] += 1
    golden_only = match.target is None
    kind = "missing call" if golden_only else "extra call"
    partner = _replacement(index, before, trace)
    if partner is not None:
        return replace(_candidate("replaced", index, row, trace), other=partner)
    if made[golden_only, match.call.key] > made[not golden_only, match.call.key]:
        return _candidate(kind, index, row, trace)
    return _candidate("elsewhere", index, row, trace)


def _replacement(index: int, before: list[int], trace: Trace) -> Optional[str]:
    """The nearest unmatched call of the other run in the same module and the same gap."""
    match = trace.groups[index][0]
    for step in (1, -1):
        i = index + step
        while i in before:
            other = trace.groups[i][0]
            if (other.target is None) != (match.target is None):
                same_place = _module_name(other.call.parent) == _module_name(match.call.parent)
                return other.call.name if same_place and other.call.kind == match.call.kind else None
            i += step
    return None


def _module_name(name: Optional[str]) -> str:
    """`Module.a.Block.forward.0` -> `a`: classes may differ."""
    return ".".join((name or "").split(".")[1:-3])
