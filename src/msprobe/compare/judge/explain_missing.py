"""Explains what one run lacks, if its effect agrees: such rows are not compared, but are no problem.

Two implementations of one module (fused and unfused, one framework and another) never make the same calls with the same
arguments. If the results of the module agree, or the result of a call agrees where it is used, or the results of the
call itself agree, then the rest does not matter.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence

from msprobe.compare.align.translate import operation_of
from msprobe.compare.calls import BACKWARD, GRADS, Match
from msprobe.compare.judge.clipped import explain_clipping
from msprobe.compare.judge.effects import Effects, results_agree
from msprobe.compare.judge.explain_items import (
    Judgements,
    covered,
    explain_hidden,
    explain_items,
    explain_moved,
    is_other_api,
    moved_rows,
)
from msprobe.compare.judge.run_agreement import RunAgreement
from msprobe.compare.judge.sequence_parts import explain_sequence_parts
from msprobe.compare.measure.distance import is_multiple, result_key
from msprobe.compare.phases import Phase, Stacks, clears_gradients, is_made_by_engine, phases_of, updates_weights
from msprobe.compare.reasons import BENIGN, UNSPLIT, Kind
from msprobe.compare.rows import EQUAL, ERROR, NOT_COMPARED, PASS, PASSED, WARNING, Group, Judgement, Row, is_tensor

LARGE = 0.05
"""A larger difference inside a module would show in its results."""
_NUMBERS = (Kind.VALUES, Kind.BYTES, Kind.SHAPE)


def explain(
    groups: Sequence[Group],
    stacks: Stacks = ({}, {}),
    other_parts: bool = False,
    other_update: str = "",
    same_gradients: bool = False,
) -> Judgements:
    """New judgements for rows without counterpart, and for differences without an effect.

    `other_parts`: the runs take the batch of a step in another number of parts (gradient accumulation);
    `other_update`: "how" if their optimizers compute the step in another way (foreach, fused), or have fused weights;
    "order" if they update the parameters in another order; "clipping" if one clips the gradients by itself;
    `same_gradients`: clipping found the same norm of all gradients; this decides if no call after it was recorded."""
    if other_parts and _gradients_agree(groups, same_gradients):
        return _explain_parts(groups)
    odd = [
        place
        for place, (match, rows) in enumerate(groups)
        if match.how == "unmatched" or any(row.judgement.verdict != PASS for row in rows)
    ]
    return _Explainer(groups, stacks, other_update).explain(odd) if odd else {}


def _gradients_agree(groups: Sequence[Group], same_norm: bool = False) -> bool:
    """Whether the results of clipping and the optimizer agree: they use the complete gradients. Without such results,
    whether the gradients agree, which are those of the last part only."""
    after, last = [], []
    for (match, rows), phase in zip(groups, phases_of(groups)):
        if phase is Phase.AFTER:
            after += [row for row in rows if is_tensor(row.golden)]
        elif match.call.kind == "grads":
            last += rows
    if same_norm and not after:
        return True
    rows = after or last
    agree = [row for row in rows if row.verdict == PASS]
    return bool(agree) and all(row.verdict == PASS or row.why.kind in BENIGN for row in rows)


def _explain_parts(groups: Sequence[Group]) -> Judgements:
    """Before the gradients are complete, the two runs compute different things."""
    why = covered("the runs take the batch in another number of parts, and what is computed from all gradients agrees")
    phases = phases_of(groups)
    return {
        id(row): why
        for (_, rows), phase in zip(groups, phases)
        if phase is not Phase.AFTER
        for row in rows
        if row.verdict != PASS and row.why.kind not in BENIGN
    }


class _Explainer:
    def __init__(self, groups: Sequence[Group], stacks: Stacks, other_update: str) -> None:
        self._groups = groups
        self._stacks = stacks
        self._run = RunAgreement(groups)
        self._other_way = other_update == "how" or _updates_in_another_way(groups, self._run.phases)
        self._other_order = other_update == "order"
        self._other_clipping = other_update == "clipping"
        self._found: Judgements = {}
        self._doubtful: set[str] = set()  # modules that contain one whose results differ
        self._reordered: dict[tuple[str, str], list[tuple[Row, bool]]] = {}
        self._values: dict[tuple[str, str], tuple[set[object], set[object]]] = {}

    @functools.cached_property
    def _ours(self) -> Effects:
        return Effects(self._groups, golden=False)

    @functools.cached_property
    def _theirs(self) -> Effects:
        return Effects(self._groups, golden=True)

    @functools.cached_property
    def _backward_agrees(self) -> bool:
        backward = [row for match, rows in self._groups if match.call.direction in (BACKWARD, GRADS) for row in rows]
        return bool(backward) and not any(row.verdict in (WARNING, ERROR) for row in backward)

    @functools.cached_property
    def _updates_are_recorded(self) -> bool:
        """Whether the calls of the optimizer were recorded: they show whether all gradients agree. What a script logs
        does not show it."""
        after = (match for (match, _), phase in zip(self._groups, self._run.phases) if phase is Phase.AFTER)
        return any(match.how != "unmatched" and updates_weights(match, self._stacks) for match in after)

    @functools.cached_property
    def _both(self) -> set[str]:
        """The modules that both runs call: a gradient of their weights that only one run has is lost in the other."""
        return {match.call.key for match, _ in self._groups if match.how != "unmatched" and match.call.kind == "module"}

    @functools.cached_property
    def _rewritten(self) -> set[str]:
        """The modules with calls that have no counterpart in the other run, and the modules around them."""
        alone = [match.call.parent for match, _ in self._groups if match.how == "unmatched"]
        return {name for parent in alone for side in (self._ours, self._theirs) for name in side.around(parent)}

    def _is_elsewhere(self, row: Row) -> bool:
        """Both values occur in other calls of the same API in the same module of the other run. Keys are rounded: two
        that are equal here say only that the difference is small, not that the values were found elsewhere."""
        if not self._values:
            for match, rows in self._groups:
                ours, theirs = self._values.setdefault(_place(match), (set(), set()))
                for other in rows:
                    ours.add(result_key(other.target))
                    theirs.add(result_key(other.golden))
        ours, theirs = self._values[_place(row.match)]
        target, golden = result_key(row.target), result_key(row.golden)
        if row.why.kind is Kind.NULL:
            return target in theirs and golden in ours
        return target is not None and golden is not None and target != golden and target in theirs and golden in ours

    def _cover_reordered(self) -> None:
        """Calls that a module makes in another order, though its results agree: most values are found elsewhere in it
        (sums on the way are not). Or the module is written differently: one run makes calls that the other does not."""
        for (module, _), rows in self._reordered.items():
            mostly = 2 * sum(elsewhere for _, elsewhere in rows) >= len(rows)
            # A small difference may not show in the results; a large one that does not show there has been compensated.
            large = all(row.distance is None or row.distance > LARGE for row, _ in rows)
            rewritten = large and module in self._rewritten - self._doubtful
            if mostly or rewritten or self._has_same_terms(rows):
                for row, _ in rows:
                    why = f"{row.reason}: other values at this place, but the results of {module} agree"
                    self._found[id(row)] = covered(why)

    def _has_same_terms(self, rows: Sequence[tuple[Row, bool]]) -> bool:
        """Whether the rows are only sums, or only products, that combine the same terms in another order."""
        calls = {id(row.match) for row, _ in rows}
        if {operation_of(row.match.call.key) for row, _ in rows} not in ({"add"}, {"mul"}):
            return False
        terms: tuple[Counter[object], Counter[object]] = (Counter(), Counter())
        for match, all_rows in self._groups:
            for row in all_rows if id(match) in calls else ():
                for side, item in zip(terms, (row.target, row.golden)):
                    side[result_key(item)] += 1 if row.is_input else -1
        ours, theirs = (+side for side in terms)
        return None not in ours and ours == theirs

    def explain(self, odd: Sequence[int]) -> Judgements:
        self._explain_recomputation()
        self._explain_split_gradients()
        if self._other_clipping:
            self._found.update(explain_clipping(self._groups, self._run.phases, self._stacks))
        for place in odd:
            match, rows = self._groups[place]
            is_update = self._run.phases[place] is Phase.AFTER and updates_weights(match, self._stacks)
            if is_update and self._other_way:
                self._cover_update(rows)
            elif is_update and self._other_order:
                self._cover_moved_update(rows)
            elif is_made_by_engine(match, self._stacks) and self._backward_agrees:
                why = "made in the backward of a function, and all gradients that were compared agree"
                self._found.update((id(row), covered(why)) for row in rows if row.verdict != PASS)
            elif match.how != "unmatched":
                self._explain_matched(place, match, rows)
            elif not match.call.recompute:
                side = self._theirs if match.target is None else self._ours
                lost = match.call.direction == GRADS and match.call.key in self._both
                why = side.covering(match.call, rows) or ("" if lost else self._run.why(place))
                if not why and clears_gradients(match, self._stacks):
                    why = "zero_grad fills the gradients with zeros; the other run sets them to None"
                if why:
                    self._found.update((id(row), covered(why)) for row in rows)
        self._cover_reordered()
        self._cover_factors()
        if Phase.BACKWARD not in self._run.phases:
            self._found.update(explain_sequence_parts(self._groups, self._found))
        return self._found

    def _cover_factors(self) -> None:
        """Without modules (level L1): the runs multiply by a factor at different places, but the last result of the
        forward and everything computed from the gradients agree."""
        if any(match.call.kind in ("module", "grads") for match, _ in self._groups):
            return
        if not self._updates_are_recorded or not _gradients_agree(self._groups):
            return
        forward = [p for p, phase in enumerate(self._run.phases) if phase is Phase.FORWARD]
        odd = [(place, row) for place, (_, rows) in enumerate(self._groups) for row in rows if self._is_open(row)]
        bad = [(place, row) for place, row in odd if row.verdict != NOT_COMPARED]
        last = max((place for place, _ in bad if place <= forward[-1]), default=-1) if forward else -1
        if last >= 0 and self._run.agrees_after(last) and all(is_multiple(row.target, row.golden) for _, row in bad):
            why = "the runs multiply by a factor in another place, and what is computed from all gradients agrees"
            self._found.update((id(row), covered(f"{row.reason}; {why}")) for _, row in odd)

    def _is_open(self, row: Row) -> bool:
        return row.verdict != PASS and row.why.kind not in BENIGN and id(row) not in self._found

    def _explain_recomputation(self) -> None:
        """A run that recomputes its forwards needs gradients of more inputs (position bias of T5). If the gradients of
        all parameters agree, nothing is lost."""
        if not any(match.how == "unmatched" and match.call.recompute for match, _ in self._groups):
            return
        gradients = [row for match, rows in self._groups if match.call.kind == "grads" for row in rows]
        if not gradients or any(row.verdict in (WARNING, ERROR) for row in gradients):
            return
        for match, rows in self._groups:
            for row in rows if match.call.direction == BACKWARD else ():
                if row.verdict == ERROR and row.why.kind is Kind.NULL:
                    self._found[id(row)] = covered(
                        f"{row.reason}; one run recomputes, and all parameters' gradients agree"
                    )

    def _explain_split_gradients(self) -> None:
        """If one run computes a value once and the other twice, its gradient has two parts there. If the forward and
        everything computed from the gradients agree, nothing is lost."""
        alone = [
            row
            for match, rows in self._groups
            for row in rows
            if match.how == "unmatched" and match.call.direction == BACKWARD
        ]
        if not alone or not _gradients_agree(self._groups):
            return
        bad = [(match, row) for match, rows in self._groups for row in rows if row.verdict in (WARNING, ERROR)]
        if all(match.call.direction == BACKWARD and row.why.kind in _NUMBERS for match, row in bad):
            why = "one run computes this in more calls, and what is computed from all gradients agrees"
            self._found.update((id(row), covered(f"{row.reason}; {why}")) for _, row in bad)
            self._found.update((id(row), covered(why)) for row in alone)

    def _cover_update(self, rows: Sequence[Row]) -> None:
        why = "the two runs update their weights in another way (foreach or fused optimizers, fused weights)"
        for row in rows:
            by_parameter = row.why == UNSPLIT or (row.joined is not None and row.joined.recorded)
            if row.verdict != PASS and not by_parameter:
                self._found[id(row)] = covered(why)

    def _cover_moved_update(self, rows: Sequence[Row]) -> None:
        """The settings of each parameter were compared by its name. Here the same values must occur for another
        parameter."""
        why = covered("the two runs update their parameters in another order")
        odd = [row for row in rows if row.verdict != PASS]
        self._found.update((id(row), why) for row in odd if not is_tensor(row.golden) or self._is_elsewhere(row))

    def _explain_matched(self, place: int, match: Match, rows: Sequence[Row]) -> None:
        # Rows that agree have nothing to explain; most do.
        unlike = [row for row in rows if row.judgement is not PASSED or row.measurement is not EQUAL]
        found, side = self._found, self._ours
        explain_items(match, rows, unlike, found)
        if match.call.kind == "api":
            lost = [row for row in unlike if row.why.kind is Kind.GRADIENT]
            if any(not row.is_input for row in lost) and side.has_gradient_around(match.call):
                found.update((id(row), Judgement(PASS, 0.0, row.why)) for row in lost)
        bad = [row for row in unlike if row.verdict != PASS and _is_number(match, row) and id(row) not in found]
        module = side.module_with_same_results(match.call) if bad else None
        if module is not None:
            place_of = (module, match.call.direction)
            self._reordered.setdefault(place_of, []).extend((row, self._is_elsewhere(row)) for row in bad)
            if side.is_doubtful(match.call):
                self._doubtful.add(module)
            if is_other_api(match):
                alone = [row for row in unlike if row.absent and not is_tensor(row.target or row.golden)]
                found.update((id(row), covered(f"the results of {module} agree")) for row in alone)
        elif bad and side.has_same_results_itself(match.call) and all(_is_lost_on_the_way(row) for row in bad):
            why = "this gradient belongs to another of its results; the gradients that it returns agree"
            found.update((id(row), covered(f"{row.reason}; {why}")) for row in bad)
        for row in unlike if match.call.kind == "module" else ():
            if row.absent and not row.is_input and id(row) not in found:
                self._explain_lone_result(match, row, rows)
        moved = [row for row in moved_rows(match, unlike) if id(row) not in found]
        hidden = [row for row in unlike if row.why.kind in (Kind.HIDDEN, Kind.SHAPE) and id(row) not in found]
        if moved or hidden:
            explain_moved(match, rows, moved, side, found)
            explain_hidden(match, rows, hidden, side, self._run.why(place), found)

    def _explain_lone_result(self, match: Match, row: Row, rows: Sequence[Row]) -> None:
        """A second result that a module gives in one run only (the last state), where no call takes it, or those that
        take it agree."""
        side = self._theirs if row.absent == "target" else self._ours
        if results_agree([one for one in rows if not one.absent]) and side.agrees_where_used(match.call, row):
            self._found[id(row)] = covered(f"the other results of {match.call.name} agree, and nothing differs by it")


def _is_number(match: Match, row: Row) -> bool:
    """Whether the values differ, a number is in place of a tensor, or only one run has a gradient."""
    if row.why.kind is Kind.NULL or row.absent:
        return match.call.direction == BACKWARD
    return row.why.kind in (*_NUMBERS, Kind.KIND)


def _is_lost_on_the_way(row: Row) -> bool:
    """A gradient that enters a backward in one run only."""
    return row.is_input and row.why.kind is Kind.NULL


def _place(match: Match) -> tuple[str, str]:
    """The module around a call, without its number, and the API with its direction."""
    call = match.call
    return (call.parent or "").rpartition(".")[0], f"{call.key}.{call.direction}"


def _updates_in_another_way(groups: Sequence[Group], phases: Sequence[Phase]) -> bool:
    """Whether one run updates its weights in lists (foreach, fused) and the other one by one."""
    listed = {True: False, False: False}
    single = {True: False, False: False}
    for (match, _), phase in zip(groups, phases):
        if phase is Phase.AFTER and match.how == "unmatched":
            word = match.call.key.rpartition(".")[2]
            side = match.target is None
            if word.startswith(("_foreach_", "_fused_")):
                listed[side] = True
            else:
                single[side] = True
    return (
        (listed[True] and not listed[False])
        or (listed[False] and not listed[True])
        or (listed[True] and listed[False] and not any(single.values()))
    )
