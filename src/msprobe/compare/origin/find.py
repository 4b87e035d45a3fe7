"""The suspect: the first call that introduced the difference in one rank and step, and the kind of fault.

The first of these that applies is the suspect: weights that differ before anything ran; the first forward call that
introduced a difference (or the call that only one run made, just before it); gradients that are cut off; the backward;
what comes after the backward.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Optional

from msprobe.compare.calls import BACKWARD, FORWARD, GRADS, Match, forward_name
from msprobe.compare.excuses import is_other_api
from msprobe.compare.flow.mispaired import has_nothing_in_common
from msprobe.compare.measure.distance import count, epsilon, is_repetition, number, result_key, value_key
from msprobe.compare.measure.order import has_same_order, is_reordered
from msprobe.compare.measure.rows import SAME_STATISTICS
from msprobe.compare.operators import UPDATE, draws
from msprobe.compare.origin.arguments import other_arguments, plain_arguments, slot_text
from msprobe.compare.origin.loop_findings import findings
from msprobe.compare.origin.other_shape import blame_other_shape, first_of_other_shape, maker_of_other_shape
from msprobe.compare.origin.reordered import REORDERED, argument_before, blame_order, reordering_before
from msprobe.compare.origin.state import other_module
from msprobe.compare.origin.structure import (
    after_the_model,
    alone_in,
    candidate,
    candidate_of_one_run,
    given_around,
    is_excused,
    left_out,
    made_inside,
    structural,
    without_rewritten,
)
from msprobe.compare.origin.trace import Trace, bad_rows
from msprobe.compare.origin.training import TrainingDifference
from msprobe.compare.origin.unwatched import other_model
from msprobe.compare.origin.updates import blame_update
from msprobe.compare.origin.ways import by_own_calls, ways
from msprobe.compare.origin.wording import SAME_INPUTS, UNORDERED, Candidate, argument_text
from msprobe.compare.phases import Phase
from msprobe.compare.reasons import SIDES, Kind
from msprobe.compare.rows import ERROR, INTRODUCED, PROPAGATED, Row, is_tensor
from msprobe.dump.collectives import is_collective
from msprobe.messages import Message


def suspect(trace: Trace, training: Sequence[TrainingDifference] = ()) -> Optional[Candidate]:
    """The first thing to blame in one unit, or None."""
    replaced = other_module(trace)
    if replaced is not None:
        return replace(candidate("replaced", replaced[0], None, trace), said=replaced[1])
    if trace.weights:
        index, row = trace.weights[0]
        return _shifted_draws(trace) or candidate("weight", index, row, trace)
    entered = _with_effect(_first_turn(trace), trace)
    different = other_model(trace, entered)
    if different is not None:
        return different
    first = {phase: [i for i in entered if trace.phases[i] is phase] for phase in Phase}
    said = findings(training, trace)
    parts = [one for one in training if one.kind == "parts"]
    same_batch = bool(first[Phase.FORWARD]) and _takes_same_batch(trace)  # only the backward is in several passes
    if parts and trace.introduced and not same_batch:  # what is computed from parts of a batch cannot be compared
        if not said[Phase.AFTER]:
            parts = [parts[0]._replace(sentence=_accumulated(parts[0].sentence, trace))]
        return _training([*said[Phase.AFTER], *parts], trace)
    if first[Phase.FORWARD]:
        return _blame(first[Phase.FORWARD][0], trace)
    if trace.gradients:
        return candidate("gradient", *_cut(trace), trace)
    proven = any(one.proven for one in said[Phase.BACKWARD])
    if said[Phase.BACKWARD] and (proven or first[Phase.BACKWARD] or first[Phase.AFTER]):
        return _training(said[Phase.BACKWARD], trace)
    if first[Phase.BACKWARD]:
        made = _blame(first[Phase.BACKWARD][0], trace)
        # A gradient that no call explains is the last of several that the optimizer requested.
        weak = made.kind == "parameter gradient" and said[Phase.AFTER]
        return _training(said[Phase.AFTER], trace) if weak else made
    lost = _lost_gradient(trace) if first[Phase.AFTER] else None
    if lost is not None:
        return lost
    settings = [one for one in said[Phase.AFTER] if one.kind != "class"]
    if settings:
        return _training(settings, trace)
    update = blame_update(trace, [one.sentence for one in said[Phase.AFTER]]) if said[Phase.AFTER] else None
    if update is not None or said[Phase.AFTER]:
        return update or _training(said[Phase.AFTER], trace)
    if first[Phase.AFTER]:
        place = first[Phase.AFTER][0]
        update = blame_update(trace) if trace.groups[place][0].call.key.startswith(UPDATE) else None
        return update or _blame(place, trace)
    return _lost_gradient(trace, shown=False) or lost_write(trace)


def _takes_same_batch(trace: Trace) -> bool:
    """Whether both runs call the same modules with tensors of the same shapes."""
    for match, rows in trace.groups:
        if match.call.kind != "module" or match.call.direction != FORWARD:
            continue
        if match.how == "unmatched" or any(row.difference.kind is Kind.SHAPE for row in rows if row.is_input):
            return False
    return any(match.call.kind == "module" for match, _ in trace.groups)


def _shifted_draws(trace: Trace) -> Optional[Candidate]:
    """A parameter that one run lacks, if all random weights of the modules after it differ: the model that lacks it has
    drawn fewer random numbers, so that everything drawn later is different."""
    found = _lacking_parameter(trace)
    if found is None:
        return None
    other = {id(row) for _, row in trace.weights}
    earlier = {match.call.key for match, _ in trace.groups[: found.index + 1]}
    later = {
        (match.call.key, row.slot): id(row) in other
        for match, rows in reversed(trace.groups[found.index + 1 :])  # the first call of a module counts
        if match.how != "unmatched" and match.call.kind == "module" and match.call.direction == FORWARD
        for row in rows
        if match.call.key not in earlier and row.slot.startswith("parameters.") and _is_random(row)
    }
    if len(later) < 2 or not all(later.values()):
        return None
    why = Message("evidence.draws", number=len(later))
    return replace(found, evidence=(*found.evidence, why))


def _is_random(row: Row) -> bool:
    """Whether a weight has different elements in both runs: weights of ones or zeros draw no random numbers."""
    return all(
        item is not None and is_tensor(item) and item.get("Max") != item.get("Min") for item in (row.target, row.golden)
    )


def _lacking_parameter(trace: Trace) -> Optional[Candidate]:
    """The first parameter of a module that the same module of the other run lacks."""
    for index, (match, rows) in enumerate(trace.groups):
        if match.how == "unmatched" or match.call.kind != "module" or match.call.direction != FORWARD:
            continue
        missing = [row for row in rows if row.absent in SIDES and row.slot.startswith("parameters.")]
        if missing:
            names = [row.slot.partition(".")[2] for row in missing if row.absent == missing[0].absent]
            side = SIDES[missing[0].absent]
            said = Message("origin.no_parameter", module=match.call.key, number=len(names), names=names, side=side)
            return replace(candidate("parameter", index, missing[0], trace), said=said)
    return None


def _accumulated(said: Message, trace: Trace) -> Message:
    factor = _gradient_factor(trace)
    if not factor:
        return Message("training.accumulated", said=said)
    return Message("training.accumulated_factor", said=said, factor=factor)


def _gradient_factor(trace: Trace) -> str:
    """How much larger the gradients of all parameters are, if all by the same factor; else nothing."""
    rows = [row for match, rows in trace.groups if match.call.key.startswith(UPDATE) for row in rows]
    rows = [row for row in rows if row.slot.endswith(".gradient")]
    norms = [(number((row.target or {}).get("Norm")), number((row.golden or {}).get("Norm"))) for row in rows]
    ratios = sorted(ours / theirs for ours, theirs in norms if ours is not None and theirs)
    if not ratios or not math.isclose(ratios[0], ratios[-1], rel_tol=0.01):
        return ""
    return "" if math.isclose(ratios[0], 1.0, rel_tol=0.01) else f"{ratios[len(ratios) // 2]:.3g}"


def _between(trace: Trace) -> Iterator[Message]:
    """The calls that only one run makes to gradients, between the backward and the optimizer."""
    facts = trace.facts
    places = [i for i in trace.unmatched if trace.phases[i] is Phase.AFTER and facts is not None and facts.is_update(i)]
    for golden, side in enumerate(SIDES.values()):
        alone = [trace.groups[i][0] for i in places if (trace.groups[i][0].target is None) == bool(golden)]
        keys = dict.fromkeys(match.call.key for match in alone if facts is None or facts.phase(match) != "optimizer")
        if keys:
            yield Message("evidence.between", side=side, calls=[*keys][:5])


def lost_write(trace: Trace) -> Optional[Candidate]:
    """A call that only one run makes, and that writes memory which outlives the step."""
    if trace.facts is None:
        return None
    for index in trace.unmatched:
        match, rows = trace.groups[index]
        side = trace.facts.sides[match.target is None]
        if all(row.excuse is not None for row in rows):
            continue
        last = side.lasting_write(match.call.name)
        if last is not None:
            found = candidate_of_one_run(index, trace)
            return replace(found, evidence=(*found.evidence, Message("evidence.outlives")))
    return None


def _cut(trace: Trace) -> tuple[int, Row]:
    """The first row that lost its gradient; the parameter, if it is one that a module passes to the call."""
    first, row = trace.gradients[0]
    parent = trace.groups[first][0].call.parent
    for index, other in trace.gradients:
        held = trace.groups[index][0].call.name == parent and other.slot.startswith("parameters.")
        if held and row.is_input and is_repetition(other.golden, row.golden):
            return index, other
    return first, row


def _first_turn(trace: Trace) -> list[int]:
    """Where differences entered, up to the second round: if a step updates weights in between (two optimizers, LBFGS),
    its later forwards differ because of that update."""
    forward = [i for i in trace.introduced if trace.phases[i] is Phase.FORWARD]
    before = [i for i in trace.introduced if forward and i < forward[0]]
    return before if any(trace.phases[i] is Phase.AFTER for i in before) else trace.introduced


def _with_effect(places: list[int], trace: Trace) -> list[int]:
    """Leaves out warnings of the forward, and what one run alone returns, from which no error follows, if an error
    entered elsewhere: what follows from them agrees again, and so they do not explain it."""
    bad = [row for _, rows in trace.groups for row in bad_rows(rows) if row.why.kind is not Kind.NULL]
    errors = {id(row) for row in bad if row.verdict == ERROR}
    if trace.facts is None or not any(id(row) in errors for i in places for row in trace.groups[i][1]):
        return places
    sides = trace.facts.sides
    sinks = (value for side in sides for value in side.graph.values if not value.uses and not value.views)
    ends = {id(row) for value in sinks for row in value.rows} & {id(row) for row in bad}
    known = [side.leads_to(errors | ends) for side in sides]

    def fades(row: Row) -> bool:
        values = [side.graph.of_row.get(id(row)) for side in sides]
        return id(row) not in errors and not any(id(value) in ids for value, ids in zip(values, known))

    shown = {i: bad_rows(trace.groups[i][1]) for i in places}
    return [i for i in places if trace.phases[i] is not Phase.FORWARD or not all(map(fades, shown[i]))]


def _lost_gradient(trace: Trace, shown: bool = True) -> Optional[Candidate]:
    """A parameter that one run lacks, or that has a gradient in one run only, though no gradient that was compared
    differs: the call that uses it was left out, and this changed no number (a bias of zeros). `shown`: the calls after
    the backward differ, so that agreement elsewhere explains nothing."""
    modules = [match for match, _ in trace.groups if match.how != "unmatched" and match.call.kind == "module"]
    known = {match.call.key for match in modules}
    for index, (match, rows) in enumerate(trace.groups):
        if match.how == "unmatched" and (match.call.direction != GRADS or match.call.key not in known):
            continue
        for row in rows:
            side = SIDES.get(row.absent)
            if not side or not (shown or row.why.kind is Kind.UNMATCHED) or not is_tensor(row.target or row.golden):
                continue
            kind, _, name = row.slot.partition(".")
            if kind == "parameters" and match.call.kind == "module" and match.call.direction == FORWARD:
                said = Message("origin.no_parameter", module=match.call.key, number=1, names=[name], side=side)
                return replace(candidate("parameter", index, row, trace), said=said)
            if match.call.direction == GRADS:
                said = Message("origin.no_gradient", name=name or kind, module=match.call.key, side=side)
                calls = alone_in(match, trace)
                if calls:
                    return replace(candidate_of_one_run(calls[0], trace), evidence=(said,))
                return replace(candidate("parameter gradient", index, row, trace), said=said)
    return None


def _training(found: Sequence[TrainingDifference], trace: Trace) -> Candidate:
    """The first difference of the training loop, with the first call that shows it, or else the call before it."""
    shown = [i for i in trace.introduced if trace.phases[i] is found[0].phase]
    known = [i for i, (match, _) in enumerate(trace.groups) if match.target and match.target.name == found[0].after]
    index = (shown or known or [len(trace.groups) - 1])[0]
    bad = bad_rows(trace.groups[index][1]) if shown else []
    rest = tuple(one.sentence for one in found[1:4])
    if found[0].kind == "total norm":
        rest += tuple(_between(trace))
    if found[0].kind == "clipping":
        factor = _gradient_factor(trace)
        used = Message("evidence.gradients_factor", factor=factor) if factor else Message("evidence.gradients_differ")
        rest += (used, *_between(trace))
    made = candidate("training", index, bad[0] if bad else None, trace, rest)
    return replace(made, said=found[0].sentence, phase=found[0].phase, lines=found[0].lines)


def _blame(index: int, trace: Trace) -> Candidate:
    match, rows = trace.groups[index]
    bad = bad_rows(rows)
    if trace.phases[index] is Phase.AFTER and is_other_api(match) and has_nothing_in_common(match, rows):
        found = candidate("replaced", index, None, trace, tuple(plain_arguments(match)))
        return replace(found, other=_golden_name(match))
    inputs = [row for row in bad if row.is_input]
    arguments = other_arguments(match, inputs, rows)
    if arguments:
        more = tuple(argument_text(match.call, row) for row in arguments[1:4])
        return candidate("argument", index, arguments[0], trace, more)
    if inputs:
        return _blame_input(index, inputs, trace)
    inside = made_inside(index, bad, trace)
    if inside is not None:
        return _rewritten(inside, index, bad[0], trace)
    row = max(bad, key=lambda found: found.distance or 0.0)
    if is_collective(match.call.key):
        return candidate("received", index, row, trace)
    if draws(match.call.key):
        return candidate("random", index, row, trace)
    inexact = any(other.distance for other in rows if other.is_input)
    if inexact and any(_is_discrete(other) for other in bad):
        return candidate("choice", index, next(r for r in bad if _is_discrete(r)), trace)
    if all(other.why.kind is Kind.DTYPE for other in bad):
        return candidate("dtype", index, row, trace)
    if match.call.direction == GRADS:
        return candidate("parameter gradient", index, row, trace)
    shaped = first_of_other_shape(index, trace)
    if shaped is not None:
        place, row = shaped
        found = _blame_input(place, [row], trace) if row.is_input else blame_other_shape(place, row, trace)
        return _shifted(found, index, trace)
    forward = _argument_of_forward(index, trace)
    if forward is not None:
        return _shifted(forward, index, trace)
    ordered = blame_order(index, trace) if trace.phases[index] is Phase.FORWARD else None
    if ordered is not None:
        return _shifted(ordered, index, trace)
    seen = _inputs_seen(match, rows)
    moved = reordering_before(index, trace) if seen == UNORDERED and trace.phases[index] is Phase.FORWARD else None
    if moved is not None:
        if trace.groups[moved][0].how == "unmatched":
            said = Message("evidence.reorders")
            return _shifted(replace(candidate_of_one_run(moved, trace), evidence=(said,)), index, trace)
        said = Message("evidence.may_reorder")
        replaced = candidate("replaced", moved, None, trace, (said, *plain_arguments(trace.groups[moved][0])))
        return replace(replaced, other=_golden_name(trace.groups[moved][0]))
    inputs = [other for other in rows if other.is_input]
    other = argument_before(inputs, trace) if seen == UNORDERED and trace.phases[index] is Phase.FORWARD else None
    if other is not None:
        return _shifted(candidate("argument", *other, trace, (REORDERED,)), index, trace)
    outside = _given_outside(index, row, trace) if seen.id == "inputs.unseen" else None
    if outside is not None:
        return _shifted(outside, index, trace)
    evidence: tuple[Message, ...] = (_unordered(match, rows),) if seen == UNORDERED else ()
    evidence += ways(row, trace) or plain_arguments(match)
    return _rewritten(replace(candidate("call", index, row, trace, evidence), inputs=seen), index, row, trace)


def _rewritten(found: Candidate, index: int, row: Row, trace: Trace) -> Candidate:
    """The suspect, or the part around it that both runs write in a different way."""
    made = by_own_calls(found, index, row, trace)
    return made if made.index == index else _shifted(made, index, trace)


def _argument_of_forward(index: int, trace: Trace) -> Optional[Candidate]:
    """The argument of a forward call that differs and shows only in its backward (the padding_idx of an embedding)."""
    call = trace.groups[index][0].call
    if call.direction != BACKWARD or call.kind != "api":
        return None
    for place, (match, rows) in enumerate(trace.groups[:index]):
        if match.call.name != forward_name(call) or match.how == "unmatched":
            continue
        told = [row for row in rows if row.is_input and row.difference.kind is Kind.ARGUMENT]
        given = told or other_arguments(match, [], rows)
        if given:
            said = Message("evidence.in_backward", call=call.name)
            return candidate("argument", place, given[0], trace, (said,))
    return None


def _unordered(match: Match, rows: Sequence[Row]) -> Message:
    """Which inputs may have the same numbers in a different order (a transposed weight)."""
    large = [row for row in rows if row.is_input and is_tensor(row.golden) and not _is_proven(row)]
    names = [slot_text(match.call, row.slot).partition(" (")[0] for row in large[:4]]
    return Message("evidence.unordered", slots=names or [Message("evidence.the_inputs")])


def _shifted(found: Candidate, index: int, trace: Trace) -> Candidate:
    """Marks that the suspect introduced the difference, and that the call at `index` passed it on."""
    trace.set_role(bad_rows(trace.groups[index][1]), PROPAGATED)
    trace.set_role(trace.groups[found.index][1], INTRODUCED)
    return found


def _inputs_seen(match: Match, rows: Sequence[Row]) -> Message:
    """What is known about the inputs of a call. Statistics do not show the order of elements: only equal bytes mean the
    same inputs."""
    inputs = [row for row in rows if row.is_input]
    unseen = [row for row in inputs if row.distance is None and is_tensor(row.target or row.golden)]
    if unseen:
        return Message("inputs.one_unseen", slot=unseen[0].slot, why=unseen[0].reason)
    if match.how == "fused" or not inputs:
        return Message("inputs.unseen")
    tensors = [row for row in inputs if is_tensor(row.golden) and row.target is not None]
    moved = [row for row in tensors if is_reordered(row)]
    if moved:
        return Message("inputs.reordered", slots=[slot_text(match.call, row.slot) for row in moved[:3]])
    if any((row.distance or 0.0) > SAME_STATISTICS for row in tensors):
        return Message("inputs.rounding")
    if not tensors:
        return Message("inputs.unseen")
    proven = all(_is_proven(row) for row in tensors)
    return SAME_INPUTS if proven else UNORDERED


def _is_proven(row: Row) -> bool:
    """Whether the elements are known to be equal, and not only statistics that do not show their order."""
    by_bytes = bool((row.golden or {}).get("md5")) and not row.distance
    return row.measured is not None or by_bytes or has_same_order(row) or count(row.golden or {}) == 1


def _is_discrete(row: Row) -> bool:
    return row.golden is not None and is_tensor(row.golden) and epsilon(row.golden) == 0.0


def _blame_input(index: int, inputs: list[Row], trace: Trace) -> Candidate:
    """An input that no earlier record explains: a call that one run lacks, other wiring, or unrecorded code."""
    maker = _maker(index, inputs, trace)
    if maker is not None:
        trace.set_role(inputs, PROPAGATED)
        return _blame(maker, trace)
    overwriting = _overwriting(index, inputs, trace)
    if overwriting is not None:
        return _shifted(overwriting, index, trace)
    swapped = _swapped(inputs)
    ordered = blame_order(index, trace) if swapped is not None and trace.phases[index] is Phase.FORWARD else None
    if ordered is not None:
        return _shifted(ordered, index, trace)
    if swapped is not None:
        one, other = swapped
        said = Message("evidence.swapped", slot=one.slot, other=other.golden_slot)
        return candidate("swapped", index, one, trace, (said,))
    row = inputs[0]
    found = structural(index, inputs, trace)
    if found is not None:
        return _rewritten(found, index, row, trace)
    if row.why.kind is Kind.DTYPE:
        return candidate("dtype", index, row, trace)
    shaped = maker_of_other_shape(row, index, trace)
    if shaped is not None:
        return _shifted(blame_other_shape(*shaped, trace), index, trace)
    passed = [_passed(row, index, trace, golden) for golden in (False, True)]
    alone = next((one[0] for one in reversed(passed) if one is not None and one[0].how == "unmatched"), None)
    place = next((i for i in trace.unmatched if trace.groups[i][0] is alone), None)
    if place is not None and not is_excused(trace.groups[place]) and without_rewritten([place], trace):
        return _rewritten(candidate_of_one_run(place, trace), index, row, trace)
    wired = _wiring(*passed)
    if wired is not None:
        return _rewritten(candidate("wiring", index, row, trace, (wired, *ways(row, trace))), index, row, trace)
    parameter = _parameter_of(index, row, trace)
    if parameter:
        call = trace.groups[index][0].call
        said = Message("origin.parameter", name=parameter, slot=row.slot, call=call.name)
        return replace(candidate("parameter", index, row, trace), said=said)
    part = argument_before([row], trace) if trace.phases[index] is Phase.FORWARD else None
    if part is not None:
        return _shifted(candidate("argument", *part, trace, (REORDERED,)), index, trace)
    left = left_out(index, trace)
    around = None if left else given_around(index, row, trace)
    if around is not None:
        return _shifted(around, index, trace)
    ours, theirs = passed
    if not left and ours is not None and theirs is not None and _is_other_part(ours, theirs):
        said = Message("evidence.other_part", call=trace.groups[index][0].call.name, result=theirs[1])
        return candidate("wiring", index, row, trace, (said,))
    found = left or candidate("input", index, row, trace, _extra_before(index, trace))
    return found if left else replace(found, said=after_the_model(index, row, trace))


def _given_outside(index: int, row: Row, trace: Trace) -> Optional[Candidate]:
    """The module around a call that was itself given something different: the code inside is not to blame."""
    around = given_around(index, row, trace)
    if around is None or around.row is None:
        return around
    given = around.row
    wired = _wiring(*(_passed(given, around.index, trace, golden) for golden in (False, True)))
    return around if wired is None else candidate("wiring", around.index, given, trace, (wired,))


Passed = Optional[tuple[Match, Message]]


def _is_other_part(ours: tuple[Match, Message], theirs: tuple[Match, Message]) -> bool:
    """Whether the runs pass different parts of the result of the same call."""
    return ours[0] is theirs[0] and ours[1].id == theirs[1].id == "evidence.part"


def _wiring(ours: Passed, theirs: Passed) -> Optional[Message]:
    """Whose results the runs pass, if they are those of different calls; None if not known."""
    if ours is not None and theirs is not None:
        return None if ours[0] is theirs[0] else Message("evidence.results", target=ours[1], golden=theirs[1])
    if theirs is not None:
        return Message("evidence.golden_result", result=theirs[1])
    return Message("evidence.target_result", result=ours[1]) if ours is not None else None


def _passed(row: Row, index: int, trace: Trace, golden: bool) -> Passed:
    """The call that made an input of a call, with the words for it; None if it is not known."""
    if trace.groups[index][0].call.direction != FORWARD or trace.facts is None:
        made = _producer(row.golden if golden else row.target, index, trace, golden)
        if made is None:
            return None
        return made, Message("evidence.result", call=_golden_name(made) if golden else made.call.name)
    value = trace.facts.sides[golden].graph.of_row.get(id(row))
    what = "evidence.result"
    while value is not None and value.maker is None:
        value, what = value.source, "evidence.part"
    if value is None or value.maker is None:
        return None
    return value.maker.match, Message(what, call=value.maker.call.name)


def _overwriting(index: int, inputs: Sequence[Row], trace: Trace) -> Optional[Candidate]:
    """The call that wrote in place, in one run only, to a tensor that this call still needs."""
    if trace.facts is None:
        return None
    for row in inputs:
        values = [side.graph.of_row.get(id(row)) for side in trace.facts.sides]
        for golden, side, other in ((False, "target", "golden"), (True, "golden", "target")):
            value, wanted = values[golden], values[not golden]
            step = value.maker if value is not None else None
            if value is None or wanted is None or step is None or value.memory is None:
                continue
            before = [part for part in step.takes if part.value.memory == value.memory and part.value is not value]
            kept = [*wanted.rows, *(wanted.source.rows if wanted.source is not None else ())]
            same = {id(one) for part in before for one in part.value.rows} & {id(one) for one in kept}
            place = next((i for i, (match, _) in enumerate(trace.groups) if match is step.match), None)
            if same and place is not None:
                call = trace.groups[index][0].call.name
                runs = {"side": SIDES[side], "other": SIDES[other]}
                said = Message("origin.overwritten", call=step.call.name, reader=call, slot=row.slot, **runs)
                told = [one for one in trace.groups[place][1] if one.difference.kind is Kind.ARGUMENT]
                found = candidate("overwritten", place, told[0] if told else None, trace)
                more = tuple(argument_text(step.call, one) for one in told)
                return replace(found, said=said, evidence=more)
    return None


def _parameter_of(index: int, row: Row, trace: Trace) -> str:
    """The parameter that a call received directly, not through its module: the backward of the call returns its
    gradient."""
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
                part = other.slot.split(".")[1] if "." in other.slot else other.slot
                return Message("of", part=part, whole=match.call.key)
    return ""


def _extra_before(index: int, trace: Trace) -> tuple[Message, ...]:
    """The calls just before that only one run made."""
    near = [i for i in trace.unmatched if index - 8 <= i < index]
    said = []
    for side, names in (
        ("target", [trace.groups[i][0].target for i in near]),
        ("golden", [trace.groups[i][0].golden for i in near]),
    ):
        made = [call.name for call in names if call is not None and call.direction == FORWARD]
        if made:
            said.append(Message("evidence.calls_before", side=SIDES[side], calls=made[-3:]))
    return tuple(said)


def _swapped(inputs: list[Row]) -> Optional[tuple[Row, Row]]:
    """Two inputs that were swapped."""
    for one in inputs:
        for other in inputs:
            if one is other:
                continue
            here, there = result_key(one.target), result_key(other.target)
            if here and there and here == result_key(other.golden) and there == result_key(one.golden):
                return one, other
    return None


def _maker(index: int, inputs: list[Row], trace: Trace) -> Optional[int]:
    """A backward that made a wrong gradient from correct ones, although it was recorded later: the backward of a module
    is complete only when the gradients of all its inputs are, and by then other calls have used some of them."""
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
    """The last earlier call whose output has the same numbers."""
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
