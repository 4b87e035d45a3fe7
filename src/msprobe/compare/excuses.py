"""Excuses: why a difference is harmless. One table of rules; each is a function from a row and the step to an excuse.

An excuse is accepted only with evidence: rows that agree and lie behind what is excused. Without evidence the row stays
as it was judged. The first rule that applies wins; the first judgement stays on the row.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Optional

from msprobe.compare.align.translate import operation_of
from msprobe.compare.calls import BACKWARD, FORWARD, GRADS, Match, module_path
from msprobe.compare.flow.graph import Graph, Part, Step
from msprobe.compare.flow.mispaired import apart, compensated_rows, has_nothing_in_common, mispaired_rows, moved_rows
from msprobe.compare.flow.packed import packed_rows, tied_rows
from msprobe.compare.flow.rounded import quotients, rounded_gradients
from msprobe.compare.flow.settle import (
    LARGE,
    Settled,
    at_least,
    is_evidence,
    is_of_same_size,
    same_values,
    same_writes,
)
from msprobe.compare.measure.distance import count, epsilon, number, scale
from msprobe.compare.operators import BUFFER, LOSS, MASKS, UPDATE, is_derived, word_of
from msprobe.compare.phases import Phase, Stacks, is_made_by_engine, phases_of, updates_weights
from msprobe.compare.reasons import BENIGN, UNSPLIT, Kind, Reason
from msprobe.compare.rows import ERROR, PASS, WARNING, Excuse, Group, Item, Row, is_tensor
from msprobe.messages import Message

_BAD = (WARNING, ERROR)
_NEVER = frozenset([Kind.DTYPE, Kind.UNREADABLE, Kind.MISSING_FILE])
"""Differences that no later value can excuse: a different precision, and what could not be read."""
CLEARER = 1 / 3
"""How much better than a difference at the limit later values must agree."""
SHARPER = 1 / 10
"""How much better than two tensors that have nothing in common later values must agree."""
FADING = 1 / 300
"""How much better than a small difference later values must agree."""
BLUNT = 0.5
"""The tolerance from which on a row does not show the effect of an argument."""
NOISY = 0.1
"""The tolerance from which on a row may hide a tensor that one run lacks."""
FAINT = 0.01
"""How far off such a row may be if it does not."""
FINE = 3e-5
"""How far off a loss or a gradient may be that shows whether a small difference has an effect."""
SMALL_CHANGE = 1e-3
"""How far apart the changes of a parameter may be by rounding, relative to the change."""
MANY = 1 / 4
"""The share of parameters whose changes must differ, to be no noise that an optimizer scales up in a few of them."""
_SAME_ADDED = 1e-5
"""How far off the number that is added to a running total may be, relative to the total."""
_FACTORS = ("mul", "div")
_UPDATING = ("clipping", "optimizer")

Phases = Mapping[str, tuple[str, int]]


class Given(NamedTuple):
    """What is known about the two runs of a step: the phase of each call by name (empty if not recorded), whether
    values have numbers, whether the runs use a different number of micro-batches, whether the ranks of a step are
    compared as one, whether the optimizers are of the same class and compute their step in the same way, and whether
    they have different settings."""

    phases: tuple[Phases, Phases] = ({}, {})
    identity: tuple[bool, bool] = (False, False)
    other_parts: bool = False
    is_joined: bool = False
    same_optimizer: bool = False
    other_settings: bool = False


class StepFacts:
    """Both graphs of a step, and what was compared in it as a whole."""

    def __init__(self, groups: Sequence[Group], stacks: Stacks, given: Given) -> None:
        self.groups = groups
        self.stacks = stacks
        self.given = given
        self.phases = phases_of(groups)
        self.updates = [row for match, rows in groups if match.call.key.startswith(UPDATE) for row in rows]
        self.updating = self._named(False, self.is_update), self._named(True, self.is_update)
        self.graphs = Graph(groups, False, self.given.identity[0]), Graph(groups, True, self.given.identity[1])
        known = self.given.identity == (True, True)
        self.rounded = rounded_gradients(groups, self.graphs, self.updating) if known else {}
        self.quotients = quotients(groups, self.graphs) if known else {}
        self.packed = packed_rows(groups)
        self.packed.update(tied_rows(groups))
        self.same_changes = same_changes(groups, self.given.other_settings)
        self.updates_agree = bool(self.updates) and all(map(self._agrees, self.updates)) and self.same_changes
        self.moved = moved_rows(groups) | mispaired_rows(groups, self.graphs) | compensated_rows(groups)
        self.unlike = {id(row) for match, rows in groups if has_nothing_in_common(match, rows) for row in rows}
        self.sides = self._side(False), self._side(True)
        same_values(*self.sides)
        same_writes(*self.sides)
        for side in self.sides:
            side.accept_copies()
        for side in self.sides:
            side.accept_packed(self.packed)
        for side in self.sides:
            side.sweep()

    @functools.cached_property
    def idle(self) -> set[str]:
        """Parameters, by module and name, that no run updates; nothing without records of updates that agree."""
        stepped = any(is_tensor(row.golden) and not (row.golden or {}).get(BUFFER) for row in self.updates)
        if not self.updates_agree or not stepped:
            return set()
        updated = {match.call.key.removeprefix(UPDATE) for match, _ in self.groups if is_derived(match.call.key)}
        held = {
            (module_path(match.call.key), row.slot.removeprefix("parameters."))
            for match, rows in self.groups
            if match.call.kind == "module" and match.call.direction == FORWARD
            for row in rows
            if row.slot.startswith("parameters.")
        }
        parts = {name[place:] for name in updated for place in _beginnings(name)}  # a wrapper may add to a path
        names = {f"{path}.{name}".strip(".") for path, name in held}
        return {name for name in names if not any(name[place:] in parts for place in _beginnings(name)[:2])}

    def is_idle(self, row: Row) -> bool:
        """Whether it is a parameter, or its gradient, that no run updates."""
        kind, _, name = row.slot.partition(".")
        if kind not in ("parameters", "parameters_grad"):
            return False
        return f"{module_path(row.match.call.key)}.{name}".strip(".") in self.idle

    def _agrees(self, row: Row) -> bool:
        known = id(row) in self.packed or id(row) in self.rounded or id(row) in self.quotients
        return known or is_evidence(row) or row.why.kind in BENIGN

    def _side(self, golden: bool) -> Settled:
        return Settled(
            self.graphs[golden],
            self.groups,
            self.updating[golden].__contains__,
            self.updates_agree,
            self._named(golden, self.is_in_backward).__contains__,
            self.backward_agrees,
            self._named(golden, self.is_forward).__contains__,
            self.gradients,
            self.moved | self.unlike,
            self.given.same_optimizer,
            self.observed,
        )

    def _named(self, golden: bool, wanted: Callable[[int], bool]) -> set[str]:
        """The names of the calls of one side for whose place this is true."""
        calls = ((place, match.golden if golden else match.target) for place, (match, _) in enumerate(self.groups))
        return {call.name for place, call in calls if call is not None and wanted(place)}

    def is_update(self, place: int) -> bool:
        """Whether a call belongs to clipping, the loss scaler or an optimizer."""
        match = self.groups[place][0]
        if match.call.direction != FORWARD:
            return False
        recorded = self.phase(match)
        if recorded is not None:
            by_hand = recorded == "other" and self.phases[place] is Phase.AFTER and place < self._first_update
            return recorded in _UPDATING or by_hand
        return self.phases[place] is Phase.AFTER and updates_weights(match, self.stacks)

    @functools.cached_property
    def _first_update(self) -> int:
        """The place of the first call of an optimizer: what a script does before it, it does to the gradients."""
        places = (place for place, (match, _) in enumerate(self.groups) if self.phase(match) == "optimizer")
        return next(places, -1)

    def is_in_backward(self, place: int) -> bool:
        """Whether the backward of a function of the script made this forward call."""
        match = self.groups[place][0]
        if match.call.direction != FORWARD or match.call.recompute:
            return False
        recorded = self.phase(match)
        return recorded == "backward" if recorded is not None else is_made_by_engine(match, self.stacks)

    def is_forward(self, place: int) -> bool:
        """Whether a call belongs to a forward, of training or of an evaluation."""
        return self.phase(self.groups[place][0]) in ("forward", "evaluation")

    def phase(self, match: Match) -> Optional[str]:
        for call, known in zip((match.target, match.golden), self.given.phases):
            if call is not None and known:
                return known.get(call.name, ("other", 0))[0]
        return None

    @functools.cached_property
    def backward_agrees(self) -> bool:
        rows = [row for match, rows in self.groups if match.call.direction in (BACKWARD, GRADS) for row in rows]
        return any(map(is_evidence, rows)) and not any(row.judgement.verdict in _BAD for row in rows)

    @functools.cached_property
    def gradients(self) -> list[Row]:
        """The gradients of parameters, if all of them agree; else nothing. Where no module has them (weights in a
        dictionary), those that the optimizer received."""
        rows = [row for match, rows in self.groups if match.call.kind == "grads" for row in rows]
        rows = rows or [row for row in self.updates if row.slot.endswith(".gradient")]
        if any((row.judgement.verdict in _BAD or row.absent) and not self._is_explained(row) for row in rows):
            return []
        return [row for row in rows if is_evidence(row)]

    def _is_explained(self, row: Row) -> bool:
        return id(row) in self.packed or id(row) in self.rounded or self.is_idle(row) or bool(self.received(row))

    def differing_noise(self) -> list[str]:
        """The parameters whose gradient is only rounding in both runs, if the optimizer makes different steps of it."""
        rows = (row for row in self.updates if row.distance and row.verdict != PASS and id(row) in self.rounded)
        return [self.rounded[id(row)].name for row in rows]

    def received(self, row: Row) -> list[Row]:
        """For the gradient of a parameter after the backward: the gradient that the optimizer received and the update,
        if both agree. A hook on the parameter may change the gradient in between."""
        kind, _, name = row.slot.partition(".")
        if kind != "parameters_grad" or row.absent or not self.updates_agree:
            return []
        path = f"{module_path(row.match.call.key)}.{name}".strip(".")
        rows = [one for one in self.updates if one.match.call.key.removeprefix(UPDATE) == path]
        same = all(is_evidence(one) and (one.distance or 0.0) <= FINE for one in rows)
        return rows if len(rows) == 3 and same else []

    @functools.cached_property
    def observed(self) -> bool:
        """Whether the loss, the gradients and the updates of all parameters were compared, and agree within rounding: a
        small difference before them has no effect."""
        losses = [row for match, rows in self.groups if match.call.key == LOSS for row in rows]
        losses = losses or self._roots()
        if not losses or not all(map(is_evidence, losses)) or not self.gradients or not self.updates_agree:
            return False
        return all((row.distance or 0.0) <= FINE for row in (*losses, *self.gradients))

    def _roots(self) -> list[Row]:
        """The results of the forward with which the backward began, if it was started without a record of the loss
        (`torch.autograd.grad`)."""
        ends = [
            row
            for value in self.graphs[0].values
            if not value.uses
            and not value.views
            and value.maker is not None
            and self.graphs[0].backward_of(value.maker)
            for row in value.rows
        ]
        return [row for row in ends if not row.is_input and count(row.target or {"shape": []}) == 1]

    @functools.cached_property
    def at_the_limit(self) -> set[Optional[float]]:
        """The sizes of differences that were warnings where they first appeared."""
        return {row.distance for _, rows in self.groups for row in rows if row.judgement.verdict == WARNING}

    @functools.cached_property
    def loses_gradients(self) -> bool:
        """Whether a parameter has a gradient in one run only."""
        rows = [row for match, rows in self.groups if match.call.kind == "grads" for row in rows]
        return any((row.absent or row.why.kind is Kind.NULL) and not self._is_explained(row) for row in rows)

    @functools.cached_property
    def results(self) -> list[Row]:
        """What shows all gradients of the step, if all of it agrees: the updates; else what clipping and the optimizer
        compute; else nothing."""
        rows = self.updates
        if not rows:
            places = [place for place, phase in enumerate(self.phases) if phase is Phase.AFTER]
            rows = [row for place in places for row in self.groups[place][1] if is_tensor(row.golden)]
        if not all(map(self._agrees, rows)):
            return []
        return [row for row in rows if is_evidence(row)]

    @property
    def outcome(self) -> list[Row]:
        """What the step computes, if it agrees: where updates were compared, gradients alone do not show it."""
        return self.results or ([] if self.updates else self.gradients)


def _beginnings(name: str) -> list[int]:
    """Where the parts of a dotted name begin, except for its last part."""
    return [0, *(place + 1 for place, sign in enumerate(name) if sign == ".")][: max(name.count("."), 1)]


class Case(NamedTuple):
    """One row that does not agree."""

    row: Row
    match: Match
    rows: Sequence[Row]
    place: int
    facts: StepFacts


Rule = Callable[[Case], Optional[Excuse]]


def excuse(groups: Sequence[Group], stacks: Stacks = ({}, {}), given: Optional[Given] = None) -> Optional[StepFacts]:
    """Gives each row whose difference is harmless its excuse. Returns what is known about the step, if anything
    differs."""
    odd = [
        (place, row)
        for place, (match, rows) in enumerate(groups)
        for row in rows
        if row.judgement.verdict != PASS and row.why.kind not in BENIGN
        if row.why.kind not in _NEVER or (row.why.kind is Kind.DTYPE and has_nothing_in_common(match, rows))
    ]
    if not odd:
        return None
    facts = StepFacts(groups, stacks, given or Given())
    found = []
    for place, row in odd:
        match, rows = groups[place]
        case = Case(row, match, rows, place, facts)
        made = next((made for rule in RULES.values() if (made := rule(case)) is not None and made.evidence), None)
        if made is not None:
            found.append((row, made))
    for row, made in found:
        row.excuse = made
    _take_back(found, [row for _, row in odd], facts)
    return facts


def _take_back(found: Sequence[tuple[Row, Excuse]], odd: Sequence[Row], facts: StepFacts) -> None:
    """A tensor is not excused by what follows from it if a difference without an excuse comes in between: there it
    became small, but not harmless. Nor is a call that only one run makes, if its result leads to such a difference."""
    left = {id(row) for row in odd if row.excuse is None and row.judgement.verdict in _BAD and is_tensor(row.golden)}
    open_ = [side.leads_to(left) for side in facts.sides] if left else []
    alone: set[int] = set()
    for row, made in found:
        differs = row.judgement.verdict in _BAD or (bool(row.absent) and not row.is_input)
        if not left or made.rule != "settled" or not differs or not is_tensor(row.golden or row.target):
            continue
        values = [side.graph.of_row.get(id(row)) for side in facts.sides]
        if row.match.call.direction == FORWARD and any(id(value) in ids for value, ids in zip(values, open_)):
            row.excuse = None
            alone.update([id(row.match)] if row.match.how == "unmatched" else [])
    for row, _ in found:
        if id(row.match) in alone:
            row.excuse = None


def _excuse(rule: str, sentence: Message, evidence: Iterable[Row], row: Optional[Row] = None) -> Excuse:
    if row is not None and not row.absent and row.why:
        sentence = Message("also", parts=[row.why.message, sentence])
    return Excuse(rule, Reason(Kind.COVERED, sentence), tuple(evidence))


def settled(case: Case) -> Optional[Excuse]:
    """Everything that follows from it was compared and agrees."""
    row, match = case.row, case.match
    if row.slot.startswith("parameters.") or match.call.direction == GRADS or row.why.kind is Kind.GRADIENT:
        return None
    if is_derived(match.call.key):
        return None  # an observable
    if case.facts.given.is_joined and row.judgement.verdict in _BAD and not is_other_api(match):
        return None  # a value of a rank that is not put together wrongly differs
    evidence: dict[int, Row] = {}
    for golden, side in enumerate(case.facts.sides):
        call = match.golden if golden else match.target
        if call is None:
            continue
        found = _behind(row, call.name, side, bool(golden))
        if found is None:
            return None
        behind = [one for one in found if one is not row and not (one.is_input and one.match is match)]
        evidence.update((id(one), one) for one in behind)
    unknown = id(row) in case.facts.moved or row.difference.kind is Kind.BYTES
    size = math.inf if unknown else _size(row, case.rows)
    shown = [one.distance or 0.0 for one in evidence.values() if one.judgement.verdict == PASS]
    if id(row) in case.facts.moved and max(shown, default=0.0) > CLEARER * apart(row):
        return None  # in noise, what follows shows nothing
    if not evidence and case.facts.updates_agree and match.how == "unmatched":
        evidence = {id(one): one for one in case.facts.updates[:3]}  # it writes memory beside the model
    if case.facts.observed and size is not None:  # the way to what the step computes may not be recorded
        evidence.update((id(one), one) for one in case.facts.results[: 0 if evidence else 3])
    elif size is None or not all(_would_show(size, row, one) for one in evidence.values()):
        sharp = id(row) in case.facts.unlike and all(_is_sharp(row, one) for one in evidence.values())
        if not sharp:
            return None
    if not evidence:
        return None
    names = list(dict.fromkeys(one.name for one in list(evidence.values())[:2]))
    return _excuse("settled", Message("excuse.settled", names=names), evidence.values(), row)


def is_other_api(match: Match) -> bool:
    return match.target is not None and match.golden is not None and match.target.key != match.golden.key


def _size(row: Row, rows: Sequence[Row]) -> Optional[float]:
    """How large the difference is, for an argument that of the results. None if an argument with a fraction (an eps)
    has a small effect: results that agree within rounding do not show it."""
    if is_tensor(row.golden) and is_tensor(row.target) and row.distance is not None:
        return row.distance if is_of_same_size(row) else math.inf
    if row.absent or not row.is_input or is_tensor(row.golden) or is_tensor(row.target):
        return math.inf
    away = max((one.distance or 0.0 for one in rows if not one.is_input), default=math.inf)
    if away >= LARGE or not away:
        return math.inf
    given = [one for one in rows if one.is_input and is_tensor(one.golden) and is_tensor(one.target)]
    if operation_of(row.match.call.key) in _FACTORS and any((one.distance or 0.0) >= LARGE for one in given):
        return row.distance  # a different tensor and a different factor give the same result
    fraction = any(isinstance((item or {}).get("value"), float) for item in (row.target, row.golden))
    drops = "dropout" in row.match.call.key.lower()
    agrees = all(one.judgement.verdict == PASS or _is_one_sided(one) for one in rows if not one.is_input)
    return (math.inf if drops or not fraction else None) if agrees else away


def _is_one_sided(row: Row) -> bool:
    return bool(row.absent) or row.why.kind in (Kind.NULL, Kind.HIDDEN)


def _would_show(size: float, row: Row, evidence: Row) -> bool:
    """Whether a difference of this size would show in a later row. A large one would. A small one fades: only elements
    that agree far better say that it was compensated. A row that may differ by half (a quantised run) shows no
    argument."""
    if evidence.tolerance >= BLUNT and row.difference.kind is Kind.ARGUMENT:
        return False
    if row.difference.kind is Kind.NULL and not _shows_a_tensor(evidence):
        return False
    if row.judgement.verdict == WARNING and size < math.inf:
        clearer = evidence.distance is not None and evidence.distance <= CLEARER * size
        return clearer and evidence.tolerance <= size
    if size >= at_least(evidence):
        return True
    close = evidence.distance is not None and evidence.distance <= FADING * size
    if close and evidence.match is row.match and word_of(row.match.call.key) in MASKS:
        return row.match.call.direction == BACKWARD  # what differed was dropped
    return close and evidence.measured is not None and count(evidence.golden or evidence.target or {"shape": []}) > 1


def _shows_a_tensor(evidence: Row) -> bool:
    """Whether a row shows that a tensor which one run lacks (the weights of the classes) changes nothing: much noise
    may hide it."""
    return evidence.tolerance < NOISY or (evidence.distance or 0.0) <= FAINT


def _is_sharp(row: Row, evidence: Row) -> bool:
    """Whether a later row agrees far better than the two tensors of a row that may not belong together. What is small
    may only have become small: it fades."""
    if row.target is None or row.golden is None or evidence.distance is None or evidence.judgement.verdict != PASS:
        return False
    return apart(row) >= LARGE and evidence.distance <= SHARPER * apart(row)


def _behind(row: Row, name: str, side: Settled, golden: bool) -> Optional[list[Row]]:
    """The rows that agree behind one side of a row; None if something behind it does not agree."""
    backward = side.graph.backward.get(name)
    if backward is not None:
        return _behind_gradient(row, backward, side, golden)
    step = side.graph.steps.get(name)
    if step is None:
        return None
    if row.is_input:
        effects = list(step.effects)
        if effects:
            return side.evidence(effects) if all(map(side.ok, effects)) else None
        return [] if step.alone else None
    value = side.graph.of_row.get(id(row))
    if value is None:  # this side has no such result
        return []
    return side.evidence([value]) if side.ok(value) else None


def _behind_gradient(row: Row, step: Step, side: Settled, golden: bool) -> Optional[list[Row]]:
    slot = row.golden_slot if golden else row.slot
    if row.slot.startswith("input"):
        if not step.gives:  # a module around the model: what it is given reaches the calls inside
            taken = [part for part in step.takes if part.slot == slot]
            same = step.is_border and all(side.gradient_ok(part.value) for part in taken)
            return side.backward_evidence(taken, step) if same else None
        return side.backward_evidence(step.gives, step) if side.given_back(step) else None
    parts: list[Part] = [part for part in step.gives if part.slot == slot]
    if not parts:
        return []
    if not all(side.gift_ok(part, step) for part in parts):
        return None
    return side.backward_evidence(parts, step)


def unused(case: Case) -> Optional[Excuse]:
    """Only one run makes this call, no recorded call uses its result, and what the step computes agrees."""
    facts, match = case.facts, case.match
    golden = match.target is None
    if match.how != "unmatched" or not facts.given.identity[golden] or match.call.direction != FORWARD:
        return None
    if is_derived(match.call.key):
        return None
    side = facts.sides[golden]
    step = side.graph.steps.get(match.call.name)
    if step is None or not all(map(side.ok, step.effects)):
        return None
    return _excuse("unused", Message("excuse.unused"), facts.outcome or _forward_results(facts))


def _forward_results(facts: StepFacts) -> list[Row]:
    """Results of the forward, if all that was compared there agrees."""
    rows = [row for match, rows in facts.groups if match.call.direction == FORWARD for row in rows]
    if any(row.judgement.verdict in _BAD for row in rows):
        return []
    return [row for row in rows if not row.is_input and is_evidence(row)][-3:]


def gradient_flag(case: Case) -> Optional[Excuse]:
    """`requires_grad` differs, or a gradient is None on one side, and the gradients of all parameters agree."""
    kind = case.row.why.kind
    lost = kind is Kind.NULL and case.match.call.direction == BACKWARD
    only_once = kind is Kind.NULL or bool(case.row.absent)
    if (kind is Kind.GRADIENT or only_once) and case.facts.is_idle(case.row):
        return _excuse("gradient flag", Message("excuse.not_updated"), case.facts.updates, case.row)
    if (kind is not Kind.GRADIENT and not lost) or case.row.slot.startswith("parameters."):
        return None
    evidence = _same_flags(case) or case.facts.gradients
    return _excuse("gradient flag", Message("excuse.gradients"), evidence, case.row)


def _same_flags(case: Case) -> list[Row]:
    """The results of the module around a call, if they agree and need a gradient in both runs, and no parameter lost
    its gradient: the call is inside a function with a backward of its own."""
    if case.row.is_input or case.facts.loses_gradients or case.match.call.kind != "api":
        return []
    side = case.facts.sides[0]
    step = side.graph.steps.get(case.match.target.name) if case.match.target is not None else None
    border = side.border(step) if step is not None else None
    rows = [part.row for part in border.results if part.row is not None] if border is not None else []
    needed = [row for row in rows if is_evidence(row) and (row.target or {}).get("requires_grad")]
    return needed if len(needed) == len(rows) else []


def optional(case: Case) -> Optional[Excuse]:
    """A tensor that one run passes or returns, and the other does not, where the results of the call agree."""
    row, call = case.row, case.match.call
    one_sided = row.why.kind is Kind.NULL or (row.absent and case.match.how != "unmatched")
    if not one_sided or call.direction != FORWARD or row.slot.startswith("parameters."):
        return None
    results = [one for one in case.rows if not one.is_input and one.why.kind is not Kind.NULL and not one.absent]
    if not all(is_evidence(one) or not is_tensor(one.golden) for one in results):
        return None
    results = [one for one in results if is_evidence(one)]
    if not all(map(_shows_a_tensor, results)):
        return None
    for side in case.facts.sides:
        value = side.graph.of_row.get(id(row))
        if not row.is_input and value is not None and value.uses:
            return None
    return _excuse("optional", Message("agrees.results_of", call=call.name), results, row)


def packed(case: Case) -> Optional[Excuse]:
    """Parameters that the runs pack differently (one fused projection, or several): together they are the same."""
    rows = case.facts.packed.get(id(case.row))
    return _excuse("packed", Message("excuse.packed"), rows) if rows else None


def micro_batches(case: Case) -> Optional[Excuse]:
    """The runs divide the batch differently: before the gradients are complete, they compute different things."""
    if not case.facts.given.other_parts or case.facts.phases[case.place] is Phase.AFTER:
        return None
    return _excuse("micro-batches", Message("excuse.micro_batches"), case.facts.results)


def update(case: Case) -> Optional[Excuse]:
    """The runs update their parameters by different calls; each parameter was compared before and after."""
    facts = case.facts
    row = case.row
    if not facts.is_update(case.place) or not facts.updates_agree or row.why == UNSPLIT:
        return None
    by_hand = facts.phase(case.match) == "other"
    alike = (
        facts.given.same_optimizer and not by_hand and case.match.how != "unmatched" and not is_other_api(case.match)
    )
    if alike and row.judgement.verdict == ERROR and not _passes_on(case):
        return None  # the state of the optimizer differs
    if row.judgement.verdict == ERROR and not _is_shown_by_update(row, facts):
        return None
    return _excuse("update", Message("excuse.updated"), facts.updates, row)


def _is_shown_by_update(row: Row, facts: StepFacts) -> bool:
    """Whether the updates would show the difference of a tensor that the optimizer keeps beside the parameters (float32
    copies of weights in bfloat16): they are rounded to the dtype of the parameter."""
    values = [side.graph.of_row.get(id(row)) for side in facts.sides]
    kept = all(value is not None and side.is_kept(value) for value, side in zip(values, facts.sides))
    coarse = [epsilon(one.golden) for one in facts.updates if one.golden is not None]
    return not kept or row.distance is None or row.distance >= max(coarse, default=0.0)


def _passes_on(case: Case) -> bool:
    """Whether a call was given a different tensor and the same plain arguments."""
    bad = [row for row in case.rows if row.is_input and row.judgement.verdict in _BAD]
    return bool(bad) and all(is_tensor(row.golden) and (row.distance or 0.0) < LARGE for row in bad)


def observables(case: Case) -> Optional[Excuse]:
    """A difference of the backward at the limit, where the gradients and the updates of all parameters agree; or a
    gradient that is the same when the optimizer receives it."""
    facts = case.facts
    if case.match.call.direction == GRADS and case.row.judgement.verdict in _BAD:
        return _excuse("observables", Message("excuse.observables"), facts.received(case.row), case.row)
    if case.match.call.direction != BACKWARD or not facts.gradients or not facts.updates_agree:
        return None
    if case.row.judgement.verdict == ERROR and case.row.distance not in facts.at_the_limit:
        return None
    return _excuse("observables", Message("excuse.observables"), facts.gradients, case.row)


def rounded_gradient(case: Case) -> Optional[Excuse]:
    """The gradient of a parameter is only rounding in both runs, and an optimizer scales it up. What the forward
    computes with the parameter, which earlier steps have updated in this way, agrees."""
    found = case.facts.rounded.get(id(case.row))
    if found is None or case.row.judgement.verdict not in _BAD:
        return None
    evidence = []
    for side, effects in zip(case.facts.sides, found.effects):
        if not effects or not all(map(side.ok, effects)):
            return None
        evidence += side.evidence(effects)
    return _excuse("rounded gradient", Message("excuse.rounded_gradient", name=found.name), evidence, case.row)


def quotient(case: Case) -> Optional[Excuse]:
    """An update by a quotient of tensors that agree: where the divisor is only rounding, it makes a full step in either
    direction."""
    evidence = [row for row in case.facts.quotients.get(id(case.row), ()) if is_evidence(row)]
    return _excuse("quotient", Message("excuse.quotient"), evidence, case.row)


def same_changes(groups: Sequence[Group], other_settings: bool = False) -> bool:
    """Whether parameters that were the same, with the same gradient, also change by the same. A small learning rate
    changes a weight by little more than its rounding; a mean is linear and shows the change. If the settings of the
    optimizers differ, a small difference of many changes is their effect, and no noise."""
    seen = small = 0
    for match, rows in groups:
        named = {row.slot.rpartition(".")[2]: row for row in rows} if match.call.key.startswith(UPDATE) else {}
        before, gradient, after = (named.get(key) for key in ("before", "gradient", "after"))
        if before is None or after is None or gradient is None or after.target is None or after.golden is None:
            continue
        ours, theirs = (change_of_mean(before.target, after.target), change_of_mean(before.golden, after.golden))
        if ours is None or theirs is None:
            continue
        noise = 8.0 * epsilon(after.golden) * scale(after.golden) / math.sqrt(max(count(after.golden), 1))
        away = abs(ours - theirs)
        same = before.distance == 0.0 and (gradient.distance or 0.0) <= 1e-7
        if same and away > max(0.02 * abs(theirs), noise):
            return False
        if other_settings and is_evidence(before) and is_evidence(gradient):
            seen += 1
            small += away > max(SMALL_CHANGE * abs(theirs), noise)
    return small < max(2, MANY * seen)


def change_of_mean(before: Item, after: Item) -> Optional[float]:
    start, end = (number((item or {}).get("Mean")) for item in (before, after))
    return None if start is None or end is None else end - start


def running_total(case: Case) -> Optional[Excuse]:
    """A sum of losses for the log that began earlier in one run: both runs add the same number to it."""
    call, rows = case.match.call, case.rows
    if call.parent is not None or call.kind != "api" or call.direction != FORWARD or operation_of(call.key) != "add":
        return None
    bad = [row for row in rows if row.judgement.verdict in _BAD]
    if [row.slot for row in bad] != ["input.0", "output.0"] or not all(map(_is_number, bad)):
        return None
    if case.row not in bad or any(row.judgement.verdict != PASS for row in rows if row not in bad):
        return None
    ours, theirs = _added(bad[0].target, bad[1].target), _added(bad[0].golden, bad[1].golden)
    size = max(abs(number((item or {}).get("Max")) or 0.0) for row in bad for item in (row.target, row.golden))
    if ours is None or theirs is None or not math.isclose(ours, theirs, rel_tol=0.0, abs_tol=_SAME_ADDED * size):
        return None
    for golden, side in enumerate(case.facts.sides):
        step = side.graph.steps.get((case.match.golden if golden else case.match.target or call).name)  # type: ignore[union-attr]
        if step is not None and any(effect.uses or effect.views for effect in step.effects):
            return None
    evidence = [row for row in rows if row not in bad and is_evidence(row)]
    return _excuse("running total", Message("excuse.running_total"), evidence)


def _is_number(row: Row) -> bool:
    """A float tensor of one element, without a gradient."""
    items = (row.target, row.golden)
    return all(item and is_tensor(item) and count(item) == 1 and epsilon(item) for item in items) and not any(
        item and item.get("requires_grad") for item in items
    )


def _added(before: Item, after: Item) -> Optional[float]:
    start, end = (number((item or {}).get("Max")) for item in (before, after))
    return None if start is None or end is None else end - start


RULES: dict[str, Rule] = {
    "update": update,
    "settled": settled,
    "unused": unused,
    "optional": optional,
    "gradient flag": gradient_flag,
    "packed": packed,
    "observables": observables,
    "rounded gradient": rounded_gradient,
    "quotient": quotient,
    "micro-batches": micro_batches,
    "running total": running_total,
}
"""In this order. What a call only writes, memory that was not written yet, buffers of collectives, recomputed calls and
rounding noise are not judged in the first place (judge/)."""
