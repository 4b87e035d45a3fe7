"""Settled: a value is settled if every path from it to an observable crosses a compared value that agrees.

Observables are the loss, the results of the model, the gradients and the updates of parameters, memory that outlives
the step, and every compared value that no recorded call uses. One sweep over the values of the forward, from the last
to the first, and one over their gradients, from the first to the last, decide it for every value of one side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Optional

from msprobe.compare.calls import FORWARD, forward_name
from msprobe.compare.flow.graph import Graph, Part, Step, Value
from msprobe.compare.measure.distance import count, dtype_name, is_masked, of_statistics, result_key, value_key
from msprobe.compare.measure.order import is_in_order, is_other_order, order_distance
from msprobe.compare.operators import LOSS, MIXES, REORDERS, is_derived, keeps_statistics, word_of
from msprobe.compare.reasons import Kind
from msprobe.compare.rows import ERROR, PASS, WARNING, Group, Item, Row, is_tensor

LARGE = 0.05
"""A difference this large does not fade: it shows in what follows, or it was compensated."""
ABOVE_ROUNDING = 30.0
"""How much larger than the tolerance of a row it must be."""
OTHER = 0.5
"""Tensors that are this far apart are different tensors, not one with rounding: even rows in low precision show it."""
ABOVE_COARSE = 4.0
"""How much larger than the tolerance of such a row it must be."""
NEAR = 0.05
"""How far off Order may be in noise, relative to the norm."""
FEW = 4
"""Tensors with fewer elements are not recognised by their statistics."""
SAME_WRITE = 1e-5
"""How far apart the statistics of the same number may be, if two runs compute it by different calls."""


class Settled:
    """What is settled on one side. `is_update` says of a call that it belongs to clipping or to an optimizer;
    `updates_agree`: every parameter was compared before and after its update, and agrees. `in_backward` says of a call
    that a backward made it; `backward_agrees`: all gradients that were compared agree. `is_forward` says of a call
    that it belongs to a forward. `gradients`: those of all parameters, if
    they agree. `moved`: the rows (by id) that pair values which do not belong together."""

    def __init__(
        self,
        graph: Graph,
        groups: Sequence[Group],
        is_update: Callable[[str], bool],
        updates_agree: bool,
        in_backward: Callable[[str], bool],
        backward_agrees: bool,
        is_forward: Callable[[str], bool],
        gradients: list[Row],
        moved: set[int],
        same_optimizer: bool,
        observed: bool,
    ) -> None:
        self.graph = graph
        self._observed = observed
        self._is_update = is_update
        self._updates_agree = updates_agree
        self._in_backward = in_backward
        self._backward_agrees = backward_agrees
        self._is_forward = is_forward
        self._gradients = gradients
        self._moved = moved
        self._same_optimizer = same_optimizer
        self._last_bad, self._last_good = _tail(groups)
        self._knows_loss = graph.has_identity and any(step.call.key == LOSS for step in graph.steps.values())
        self._finals = {id(last): first for first, last in graph.written.values()}
        self._same_elsewhere: dict[int, Value] = {}
        self.own: set[int] = set()
        """What only this run writes to memory that outlives the step: the other run writes nothing there."""
        self._packed: dict[int, tuple[Row, ...]] = {}
        self._weak: set[int] = set()
        for value in graph.values:  # a source comes before its views
            if _is_reordered(value.maker) or _is_computed_from(value, self._weak):
                self._weak.add(id(value))
            value.is_small = not observed and any(_is_small(row) and id(row) not in self._moved for row in value.rows)
            small = any(_is_small(row) and id(row) not in self._moved for row in value.rows)
            sure = self._sure(value)
            value.agrees = bool(sure) and not small and not _is_contradicted(value, sure)
            if value.agrees and value.source is not None and _is_first_seen_as(value, value.source):
                value.source.agrees = True

    def _sure(self, value: Value) -> list[Row]:
        """The rows that show that a value agrees."""
        shown = [row for row in value.rows if is_evidence(row) and id(row) not in self._moved]
        return [row for row in shown if id(value) not in self._weak or _sees_order(row)]

    def accept_packed(self, packed: dict[int, tuple[Row, ...]]) -> None:
        """Rows of parameters that the other run packs differently, with the rows of the other run."""
        self._packed = packed

    def lone_values(self) -> list[Value]:
        """Values that were not compared, or with one that does not belong to them: numbers enough to recognise them."""
        return [
            value
            for value in self.graph.values
            if not value.agrees
            and value.item is not None
            and count(value.item) >= FEW
            and dtype_name(value.item).startswith(("float", "bfloat"))
            and (value.uses or value.views)
            and (id(value) not in self._weak or (value.item.get("Order") is not None and not is_masked(value.item)))
        ]

    def open_writes(self) -> list[tuple[Value, Value]]:
        """Memory that outlives the step and was written, first and last value, if the last was not compared."""
        return [
            (first, last)
            for first, last in self.graph.written.values()
            if not last.uses and not last.views and not last.agrees and last.item is not None
        ]

    def lasting_write(self, name: str) -> Optional[Value]:
        """The value that a call leaves in memory which outlives the step, if nothing shows that it agrees."""
        for _, last in self.graph.written.values():
            if last.maker is not None and last.maker.call.name == name and not self.ok(last):
                return last
        return None

    def is_kept(self, value: Value) -> bool:
        """Whether it is in memory that the step writes, that outlives it, and that is no parameter."""
        return value.memory in self.graph.written and value.memory not in self.graph.of_updates

    def accept(self, value: Value, other: Value) -> None:
        """The other run writes the same to its memory."""
        self._same_elsewhere[id(value)] = other

    def accept_copies(self) -> None:
        """Values that only this run has, and that have the numbers of one that agrees: copies for a log. What this run
        alone leaves in memory that outlives the step is no such copy: the other run lacks it."""
        alone = [value for value in self.graph.values if self._is_alone(value)]
        agreeing = (value for value in self.graph.values if value.agrees and value.item is not None) if alone else ()
        known = {value_key(value.item): value for value in agreeing}
        for value in alone:
            copied = known.get(value_key(value.item))
            if copied is not None:
                self.accept(value, copied)
                value.agrees = True

    def _is_alone(self, value: Value) -> bool:
        """Whether only this run has the value, with numbers enough to recognise a copy of it."""
        if value.agrees or not value.rows or id(value) in self._weak or id(value) in self._finals:
            return False
        return _is_distinct(value.item) and all(row.absent for row in value.rows)

    def sweep(self) -> None:
        for value in reversed(self.graph.values):
            value.settled = self._is_settled(value)
        for value in self.graph.values:
            value.returned = self._is_returned(value)

    def leads_to(self, rows: set[int]) -> set[int]:
        """The values (by id) that differ and from which such a row follows, without a value that agrees in between."""
        found: set[int] = set()
        for value in reversed(self.graph.values):
            after = [*value.views, *(effect for step in value.uses for effect in step.effects)]
            shown = any(id(row) in rows and not row.is_input for row in value.rows)
            if not value.agrees and (shown or any(id(one) in found for one in after)):
                found.add(id(value))
        return found

    # The forward.

    def ok(self, value: Value) -> bool:
        return value.agrees or value.settled

    def _is_settled(self, value: Value) -> bool:
        if value.is_small:
            return False
        if self._is_state(value):
            return self._write_agrees(value)
        if not value.uses and not value.views:
            if id(value) not in self._finals:
                return self._sink_is_settled(value)
            return self._write_agrees(value) or (self._is_temporary(value) and self._sink_is_settled(value))
        return all(self.ok(view) for view in value.views) and all(self._use_is_settled(value, s) for s in value.uses)

    def _use_is_settled(self, value: Value, step: Step) -> bool:
        effects = [effect for effect in step.effects if effect is not value]
        if effects:
            return all(map(self.ok, effects))
        if step.alone:
            return True  # it returns nothing, or what it was given
        shown = [part.row for part in step.takes if part.value is value and part.row is not None]
        returned = any(part.value is value for part in step.results)
        return returned or all(row.verdict == PASS for row in shown)

    def _is_state(self, value: Value) -> bool:
        """Whether an optimizer that both runs have writes its state (a moment), and keeps it for the next step."""
        step = value.maker
        if id(value) not in self._finals or step is None or step.alone or not self._same_optimizer:
            return False
        return self._is_update(step.call.name)

    def _belongs_to_update(self, step: Step) -> bool:
        """Whether a call is part of an update that the other run computes by different calls."""
        return self._is_update(step.call.name) and (step.alone or not self._same_optimizer)

    def _is_beside(self, value: Value) -> bool:
        """Whether only this run keeps such memory, and it is not the model's: an average of the weights."""
        if value.memory is None or any(row.distance is not None for row in value.rows):
            return False
        return id(value) in self.own and value.memory not in self.graph.of_model

    def _is_temporary(self, value: Value) -> bool:
        """Whether a module wrote memory that is not the model's: made by a call that is not recorded (zeros)."""
        if value.memory is None or value.memory in self.graph.of_model or value.maker is None:
            return False
        if keeps_statistics(value.maker.call.key):
            return False
        return self.border(value.maker) is not None

    def _write_agrees(self, value: Value) -> bool:
        if value.agrees or id(value) in self._same_elsewhere:
            return True
        step = value.maker
        if step is None:
            return False
        if self._updates_agree and (self._belongs_to_update(step) or self._is_beside(value)):
            return True
        if self._updates_agree and value.memory is not None and value.memory in self.graph.of_updates:
            return True  # compared at the end of the step, whichever calls wrote it
        return value.item is None and not step.alone and _was_given_the_same(step)

    def _sink_is_settled(self, value: Value) -> bool:
        """Nothing that was recorded uses it: it reaches the results of the module around it, or nothing."""
        maker = value.maker
        if maker is None:
            return not any(
                row.judgement.verdict in (WARNING, ERROR) for row in value.rows if is_derived(row.match.call.key)
            )
        if self._updates_agree and self._belongs_to_update(maker):
            return True
        if self._in_backward(maker.call.name):
            return self._backward_agrees
        border = self._border_of(value, maker)
        if border is not None:
            return all(self.ok(part.value) or _is_lone_result(part, value) for part in border.results)
        if self._observed and self.graph.backward_of(maker) is not None:
            return True  # unrecorded code (an index) passes it to the loss, which agrees, and so do all gradients
        if value.rows and not maker.alone and not self._is_left_open(value, maker):
            return False
        if value.taken:  # the loss, or unrecorded code uses it
            return self._knows_loss and self._agrees_after(maker)
        if not self.graph.has_identity:
            return self._agrees_after(maker)
        # In the forward, what matters is used. After it: a number for the log; anything larger may be kept.
        return self._is_forward(maker.call.name) or (value.item is not None and count(value.item) <= 1)

    def _is_left_open(self, value: Value, maker: Step) -> bool:
        """Whether it was not compared with anything: a result that one run alone returns, or of a different shape where
        all that the step computes agrees."""
        lone = all(row.absent for row in value.rows)
        other = self._observed and all(row.why.kind is Kind.SHAPE for row in value.rows)
        return (lone or other) and self._is_forward(maker.call.name)

    def _border_of(self, value: Value, maker: Step) -> Optional[Step]:
        """The module whose results a value reaches: the nearest around its call that does not return it as it is."""
        border = self.border(maker)
        while border is not None and any(part.value is value for part in border.results):
            outer = self.border(border)
            if outer is None and any(_is_lone_result(part, value) for part in border.results):
                break
            border = outer
        return border

    def border(self, step: Step) -> Optional[Step]:
        """The nearest module around a call that returns tensors."""
        around = self.graph.steps.get(step.call.parent or "")
        while around is not None and not around.results:
            around = self.graph.steps.get(around.call.parent or "")
        return around

    def _agrees_after(self, step: Step) -> bool:
        return self._last_good > step.call.order > self._last_bad

    # The backward.

    def gradient_ok(self, value: Value) -> bool:
        return value.returned or self._gradient_agrees(value)

    def _gradient_agrees(self, value: Value) -> bool:
        return any(
            part.row is not None and (is_evidence(part.row) or id(part.row) in self._packed)
            for step in value.taken
            for part in step.takes
            if part.value is value
        )

    def _is_returned(self, value: Value) -> bool:
        if value.taken:
            steps = [step for step in value.taken if step.match.target is not None or step.match.golden is not None]
            if len(steps) < len(value.taken):
                return False  # the gradient of a parameter was compared, and does not agree
            return all(self.given_back(step) for step in steps)
        if value.source is not None:
            return self.gradient_ok(value.source)
        step = value.maker or (value.uses[0] if value.uses else None)
        return step is not None and bool(value.given or value.views) and self._module_returns_the_same(step)

    def given_back(self, step: Step) -> bool:
        """Whether all gradients that the backward of a call returns agree, or what they become."""
        return all(self.gift_ok(part, step) for part in step.gives)

    def gift_ok(self, part: Part, step: Step) -> bool:
        if part.row is not None and is_evidence(part.row):
            return True
        if part.value.taken or part.value.source is not None:
            return self.gradient_ok(part.value)
        small = part.row is not None and _is_small(part.row) and id(part.row) not in self._moved
        return (self._observed or not small) and self._module_returns_the_same(step)

    def _module_returns_the_same(self, step: Step) -> bool:
        """What becomes of this gradient is not known: it reaches the gradients that the module around it returns, or
        those of parameters."""
        return bool(self._behind_module(step))

    def _behind_module(self, step: Step) -> list[Row]:
        """The gradients that the nearest module around a call returns, or those of all parameters, if they agree."""
        forward = self.graph.steps.get(forward_name(step.call))
        around = self.border(forward) if forward is not None else None
        while around is not None:
            back = self.graph.backward_of(around)
            if back is not None and back.gives and back is not step:
                rows = [part.row for part in back.gives if part.row is not None and is_evidence(part.row)]
                return rows if len(rows) == len(back.gives) else []
            around = self.border(around)
        return self._gradients

    # Evidence.

    def evidence(self, values: Iterable[Value], most: int = 3) -> list[Row]:
        """Rows that agree and lie behind these values, the nearest first."""
        found: dict[int, Row] = {}
        seen: set[int] = set()
        waiting = list(values)
        while waiting and len(found) < most:
            value = waiting.pop(0)
            if id(value) in seen:
                continue
            seen.add(id(value))
            rows = self._sure(value) if value.agrees else []
            if not rows and id(value) in self._same_elsewhere:
                rows = self._same_elsewhere[id(value)].rows
            if rows:
                chosen = next((row for row in rows if not row.is_input), rows[0])
                found.setdefault(id(chosen), chosen)
                continue
            waiting += value.views
            waiting += [effect for step in value.uses for effect in step.effects]
            if not value.uses and not value.views and value.maker is not None:
                border = self._border_of(value, value.maker)
                if border is not None and border is not value.maker:
                    waiting += [part.value for part in border.results]
        return list(found.values())

    def backward_evidence(self, parts: Iterable[Part], step: Step, most: int = 3) -> list[Row]:
        """Rows that agree and lie behind these gradients, which the backward of a call returns."""
        found: dict[int, Row] = {}
        seen: set[int] = set()
        waiting = [(part, step) for part in parts]
        while waiting and len(found) < most:
            part, giver = waiting.pop(0)
            if part.row is not None and is_evidence(part.row):
                found.setdefault(id(part.row), part.row)
                continue
            value: Optional[Value] = part.value
            while value is not None and id(value) not in seen:
                seen.add(id(value))
                if not value.taken and value.source is None:
                    found.update((id(row), row) for row in self._behind_module(giver)[:1])
                for taker in value.taken:
                    shown = [p.row for p in taker.takes if p.value is value and p.row is not None]
                    rows = [row for row in shown if is_evidence(row)]
                    rows += [other for row in shown for other in self._packed.get(id(row), ())]
                    found.update((id(row), row) for row in rows[:1])
                    if not rows:
                        waiting += [(one, taker) for one in taker.gives]
                value = value.source
        return list(found.values())


def _is_contradicted(value: Value, sure: Sequence[Row]) -> bool:
    """Whether the same two values differ elsewhere: they passed only because much noise is expected of a call."""
    bad = [row for row in value.rows if row.judgement.verdict == ERROR and row.distance]
    keys = {(value_key(row.target), value_key(row.golden)) for row in sure} if bad else set()
    return any((value_key(row.target), value_key(row.golden)) in keys for row in bad)


def _is_first_seen_as(view: Value, value: Value) -> bool:
    """Whether a view shows the same numbers of a value that only this run has: what is written to its memory later is
    different."""
    alone = bool(value.rows) and all(row.absent for row in value.rows)
    return alone and value_key(view.item) is not None and value_key(view.item) == value_key(value.item)


def _is_lone_result(part: Part, value: Value) -> bool:
    """A second result of the model that only one run returns, and that no call uses."""
    if part.value is not value or part.row is None:
        return False
    return bool(part.row.absent) or part.row.why.kind is Kind.NULL


def _was_given_the_same(step: Step) -> bool:
    rows = [part.row for part in step.takes]
    same = bool(rows) and all(row is not None and row.judgement.verdict == PASS for row in rows)
    return same and not step.has_other_arguments


def _tail(groups: Sequence[Group]) -> tuple[int, int]:
    """The last forward calls with a result that differs, and with one that agrees, by their order."""
    bad = good = -1
    for match, rows in groups:
        if match.how == "unmatched" or match.call.direction != FORWARD or is_derived(match.call.key):
            continue
        for row in rows:
            if not row.is_input and is_tensor(row.golden):
                if row.verdict in (WARNING, ERROR):
                    bad = max(bad, match.call.order)
                elif is_evidence(row):
                    good = max(good, match.call.order)
    return bad, good


def is_evidence(row: Row) -> bool:
    """Whether the row shows that a value is the same in both runs. It needs numbers; booleans have none. A row of the
    forward that passes in noise, while its elements have different places, shows nothing."""
    if row.judgement.verdict != PASS or not is_tensor(row.golden) or not is_tensor(row.target) or row.golden is None:
        return False
    call = row.match.call
    if row.distance and call.direction == FORWARD and not is_derived(call.key) and is_other_order(row):
        return False
    return _sees_order(row) or (dtype_name(row.golden) != "bool" and count(row.golden) > 0)


def _is_small(row: Row) -> bool:
    """A difference that fades: in a sum with something large, in a mean, in the statistics of a softmax. Statistics
    that agree later do not say that it was compensated; equal elements do."""
    away = row.distance
    small = row.judgement.verdict == ERROR and away is not None and 0.0 < away < at_least(row)
    return small and row.measured is None and is_of_same_size(row)


def is_of_same_size(row: Row) -> bool:
    """Whether the distance of two tensors says how large their difference is: one is no part of the other."""
    if not is_tensor(row.golden) or not is_tensor(row.target):
        return False
    return count(row.golden or {}) == count(row.target or {})


def at_least(row: Row) -> float:
    """How large a difference must be to show in a row: in low precision, what counts as rounding is large too."""
    return max(LARGE, min(ABOVE_ROUNDING * row.tolerance, max(OTHER, ABOVE_COARSE * row.tolerance)))


def _is_computed_from(value: Value, weak: set[int]) -> bool:
    """Whether it has the order of such a value: a view, or the result of a call that keeps elements in their places. A
    single number has no order."""
    if value.item is not None and count(value.item) == 1:
        return False
    if value.source is not None:
        return id(value.source) in weak
    step = value.maker
    if step is None or step.is_border or word_of(step.call.key) in MIXES:
        return False
    takes = [part for part in step.takes if id(part.value) in weak]
    return bool(takes) and not any(_shows_order(part, takes[0], weak) for part in step.takes)


def _shows_order(part: Part, of: Part, weak: set[int]) -> bool:
    """Whether an operand has its elements in a known order, and as many as the other: what is computed from both,
    element by element, shows the order of the other."""
    item = part.value.item or {}
    if part.row is None or part.row.absent or id(part.value) in weak:
        return False
    return count(item) > 1 and count(item) == count(of.value.item or {}) and item.get("Max") != item.get("Min")


def _is_reordered(step: Optional[Step]) -> bool:
    """Whether a call was given the same numbers in a different order, or reorders elements and was given something
    different: the statistics of its result may be the same by nature."""
    if step is None:
        return False
    given = [part.row for part in step.takes]
    if word_of(step.call.key) in REORDERS:
        return any(row is None or row.judgement.verdict != PASS for row in given)
    bad = [row for row in given if row is not None and row.judgement.verdict in (WARNING, ERROR) and not row.absent]
    ours, theirs = (sorted(str(result_key(item)) for item in side) for side in _sides(bad))
    return len(bad) > 1 and ours == theirs


def _sides(rows: Sequence[Row]) -> tuple[list[Item], list[Item]]:
    return [row.target for row in rows], [row.golden for row in rows]


def _sees_order(row: Row) -> bool:
    return row.measured is not None or bool((row.golden or {}).get("md5")) or is_in_order(row) or _is_near_order(row)


def _is_near_order(row: Row) -> bool:
    """Whether Order is no further off than noise allows: a different order would be far off."""
    if is_masked(row.target or {}) or is_masked(row.golden or {}):
        return False
    away = order_distance(row.target, row.golden)
    return away is not None and away <= min(row.tolerance, NEAR)


def same_values(target: Settled, golden: Settled) -> None:
    """Values around calls that were not matched, and that are the same in both runs."""
    theirs: dict[object, list[Value]] = {}
    for value in golden.lone_values():
        theirs.setdefault(result_key(value.item), []).append(value)
    for value in target.lone_values():
        for other in theirs.get(result_key(value.item), ()):
            if _is_same(value, other):
                target.accept(value, other)
                golden.accept(other, value)
                value.agrees = other.agrees = True
                break


def same_writes(target: Settled, golden: Settled) -> None:
    """Memory that outlives the step, and that the runs write by calls that were not matched: the same values written
    over the same values."""
    theirs = golden.open_writes()
    for first, last in target.open_writes():
        for entry in theirs:
            if _is_same(first, entry[0]) and _is_same(last, entry[1]):
                target.accept(last, entry[1])
                golden.accept(entry[1], last)
                theirs.remove(entry)
                break
    for one, other in ((target, golden), (golden, target)):
        held = [first for first, _ in other.open_writes()]
        one.own = {id(last) for first, last in one.open_writes() if not any(_is_same(first, same) for same in held)}


def _is_distinct(item: Item) -> bool:
    """Whether a tensor is recognised by its numbers: no constant, no zero or one."""
    highest = (item or {}).get("Max")
    if not isinstance(highest, float) or not math.isfinite(highest):
        return False
    return (item or {}).get("Min") != highest if count(item or {}) > 1 else not highest.is_integer()


def _is_same(one: Value, other: Value) -> bool:
    if one.item is None or other.item is None or one.item.get("shape") != other.item.get("shape"):
        return False
    if ("Order" in one.item) != ("Order" in other.item):
        return False
    away = of_statistics(one.item, other.item).distance
    moved = order_distance(one.item, other.item)
    return away is not None and max(away, moved or 0.0) <= SAME_WRITE
