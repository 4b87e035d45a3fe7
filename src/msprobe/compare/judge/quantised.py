"""A run in a low-precision format against one that is not quantised: every factor of a product is judged by the error
that its own format has, every product by the errors of its factors.

What a factor was made from is in the same run: the input of its module, the weight, the gradient that its backward
received. So the error of a layer is not mixed with what the layers before it have lost. A weight that is stored only in
the format is compared with that of the golden run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from msprobe.compare.calls import BACKWARD, FORWARD, GRADS, Call, Match
from msprobe.compare.judge.scales import (
    SAME,
    Array,
    Layout,
    best_form,
    decibel,
    explain,
    has_lost_block,
    layout_of,
    scale_factor,
)
from msprobe.compare.phases import Phase, phases_of
from msprobe.compare.reasons import Kind, Reason
from msprobe.compare.rows import ERROR, PASS, WARNING, Excuse, Group, Judgement, Row, is_tensor, slots
from msprobe.compare.sources import Source
from msprobe.dump.errors import DumpError
from msprobe.dump.names import module_path
from msprobe.dump.products import GRADIENTS, INPUTS, WEIGHTS, product_word
from msprobe.messages import Message
from msprobe.stats.damage import measure_damage, usual_damage
from msprobe.stats.formats import BY_NAME

MARGIN = 1.0
"""How many dB a factor may have less than its format gives: rounding of the scale itself."""
BUDGET = 6.0
"""How many dB a format may have less for a tensor than for normally distributed numbers, as in `msprobe precision`."""
SIMILAR = 0.3
"""A factor was made from the tensor that it correlates with, at least this much."""
PRODUCT = 3.0
"""How many times the error of its factors a product may have."""
GROSS = 0.5
"""A tensor that differs by more than this part is not the same in a different format."""
_SAMPLE = 4096
_TOO_LARGE = 1 << 26


@dataclass(frozen=True)
class Finding:
    """What exceeds the error of its format: the place of its call and row among the groups."""

    index: int
    row: Row
    module: str
    role: str
    sentence: str

    @property
    def why(self) -> str:
        """The sentence without the module."""
        return self.sentence.partition(": ")[2]


@dataclass(frozen=True)
class _Source:
    """A tensor of a module that a factor may have been made from."""

    module: str
    role: str
    values: Array


@dataclass(frozen=True)
class _Factor:
    """`row` is that of the factor, or, in calls that one fused call replaces, that of their result."""

    index: int
    row: Row
    call: Call
    slot: str
    layout: Layout
    values: Array
    origin: Optional[_Source]
    turned: bool


def is_quantised(groups: Sequence[Group]) -> bool:
    if any(row.target and "quantised" in row.target for _, rows in groups for row in rows):
        return True
    fused = (call for match, _ in groups if match.how == "fused" for call in (match.target, *match.before))
    return any(item and "quantised" in item for call in fused if call is not None for _, item in slots(call))


def judge_quantised(groups: Sequence[Group], target: Source, golden: Source) -> list[Finding]:
    """What exceeds the errors of the formats, in the order of the calls. If only the target is quantised, rows that do
    not are passed; without saved tensors nothing is known about them, and nothing changes."""
    judge = _Judge(groups, target, golden)
    findings = judge.findings()
    if any(row.golden and "quantised" in row.golden for _, rows in groups for row in rows):
        findings = [one for one in findings if one.row.distance != 0.0]
    elif judge.has_factors:
        _pass_rest(groups, {id(one.row) for one in findings})
    for one in findings:
        one.row.judgement = Judgement(ERROR, 0.0, Reason(Kind.VALUES, Message("quantised.exceeds", why=one.why)))
    return findings


class _Judge:
    def __init__(self, groups: Sequence[Group], target: Source, golden: Source) -> None:
        self._groups = groups
        self._target, self._golden = target, golden
        self._known: dict[str, Optional[Array]] = {}
        self._sources = list(self._find_sources())
        self._factors = list(self._find_factors())

    @property
    def has_factors(self) -> bool:
        """Whether something could be judged."""
        return any(one.origin is not None for one in self._factors)

    def findings(self) -> list[Finding]:
        found = [*self._of_factors(), *self._of_recipes(), *self._of_absent()]
        named = {(one.module, one.role) for one in found}
        found += [one for one in self._of_products() if not any(one.module == module for module, _ in named)]
        return sorted(found, key=lambda one: one.index)

    def _matrix(self, source: Any, item: Any) -> Optional[Array]:
        """The values of a recorded tensor, with its last axis as columns; None without a file."""
        name = item.get("data_name") if isinstance(item, dict) else None
        shape = item.get("shape") if isinstance(item, dict) else None
        if not isinstance(name, str) or not shape or len(shape) < 2 or math.prod(shape) > _TOO_LARGE:
            return None
        key = f"{source.path}/{name}"
        if key not in self._known:
            try:
                values = source.tensor(name).astype(np.float64)
                self._known[key] = values.reshape(-1, values.shape[-1]) if np.isfinite(values).all() else None
            except (DumpError, OSError, ValueError, AttributeError):
                self._known[key] = None
        return self._known[key]

    def _find_sources(self) -> Iterator[_Source]:
        """Inputs, weights and gradients of the modules that have a weight matrix."""
        found = []
        for match, rows in self._groups:
            call = match.target
            if call is None or call.kind != "module" or call.direction not in (FORWARD, BACKWARD):
                continue
            for row in rows:
                role = _role_in_module(row.slot, call.direction == FORWARD)
                if role and row.target is not None:
                    found.append((module_path(call.key), role, row.target))
        products = {module for module, role, item in found if role == WEIGHTS and len(item.get("shape") or ()) > 1}
        for module, role, item in found:
            plain = module in products and "quantised" not in item
            values = self._matrix(self._target, item) if plain else None
            if values is not None:
                yield _Source(module, role, values)

    def _find_factors(self) -> Iterator[_Factor]:
        for index, (match, rows) in enumerate(self._groups):
            for call, slot, item, row in self._inputs(match, rows):
                layout = layout_of(item)
                values = self._matrix(self._target, item) if layout else None
                if layout is not None and values is not None:
                    yield _Factor(index, row, call, slot, layout, values, *self._origin(call, slot, row, values))

    def _inputs(self, match: Match, rows: Sequence[Row]) -> Iterator[tuple[Call, str, Any, Row]]:
        """The inputs of the target's calls. Of calls that one fused call replaces only the result has a row."""
        call = match.target
        if call is None or call.kind != "api" or call.direction != FORWARD:
            return
        for row in rows:
            if row.is_input and row.target:
                yield call, row.slot, row.target, row
        if match.how != "fused" or not rows:
            return
        known = {row.slot for row in rows}
        mine = [one for one in match.before if self._target.records.get(one.name) is one.record]
        for one in (*mine, call):
            for slot, item in slots(one):
                if slot.startswith("input.") and is_tensor(item) and (one is not call or slot not in known):
                    yield one, slot, item, rows[-1]

    def _origin(self, call: Call, slot: str, row: Row, values: Array) -> tuple[Optional[_Source], bool]:
        """The tensor that a factor was made from, and whether it was transposed."""
        inside = module_path(call.parent.rsplit(".", 2)[0]) if call.parent else ""
        best, likeness, flipped = None, SIMILAR, False
        for source in self._sources:
            for turned in (False, True):
                other = source.values.T if turned else source.values
                if other.shape != values.shape:
                    continue
                found = _likeness(values, other) + 0.05 * (source.module == inside)
                if found > likeness + 1e-9:
                    best, likeness, flipped = source, found, turned
        if best is None and row.is_input and row.golden is not None:
            reference = self._matrix(self._golden, row.golden)
            if reference is not None and reference.shape == values.shape and inside:
                role = INPUTS if slot == "input.0" else WEIGHTS
                best = _Source(inside, role, reference)
        return best, flipped

    def _of_factors(self) -> Iterator[Finding]:
        exact = 0
        stale = []
        for one in self._factors:
            if one.origin is None:
                continue
            reference = one.origin.values.T if one.turned else one.origin.values
            form, given = best_form(one.values, reference, one.layout)
            kept = decibel(one.values, reference)
            name = f"{one.origin.module}: {one.origin.role}"
            axis = _summed_axis(one.call, one.slot)
            if kept < given - MARGIN or has_lost_block(one.values, reference, one.layout, form):
                why = explain(one.values, reference, one.layout, form)
                yield self._finding(one, f"{name}: SNR {kept:.1f} dB where {form.name} gives {given:.1f} dB: {why}")
                continue
            if axis is not None and one.layout.axis is not None and axis != one.layout.axis:
                yield self._finding(
                    one,
                    f"{name}: blocks are along axis {one.layout.axis}, but {one.call.name} adds over axis "
                    f"{axis}: a scale belongs to numbers that are not added up",
                )
                continue
            factor = scale_factor(reference, one.layout, form)
            exact += abs(factor - 1) < SAME
            if abs(factor - 1) >= SAME:
                why = f"its largest scale is {factor:.3g} times that of its numbers, so it was not computed from them"
                stale.append((one, f"{name}: {why}"))
            unfit = self._unfit(reference, one, form.name)
            if unfit:
                yield self._finding(one, f"{name}: {unfit}")
        if exact > len(stale):  # with delayed scaling no scale is that of its tensor
            yield from (self._finding(one, text) for one, text in stale)

    def _unfit(self, reference: Array, one: _Factor, name: str) -> str:
        """The format itself loses too much of this tensor."""
        if name not in BY_NAME:
            return ""
        form = BY_NAME[name]
        turned = reference.T if one.layout.axis == 0 else reference
        damage = measure_damage(np.ascontiguousarray(turned), form)[0]
        usual = usual_damage(form)
        if damage.level >= usual.level - BUDGET or damage.underflow < usual.underflow + 0.2:
            return ""
        return (
            f"{damage.level:.1f} dB of its bulk are left where {name} gives {usual.level:.1f} dB: "
            f"{100 * damage.underflow:.0f}% become zero beside outliers, the largest is {damage.outlier:.3g} times the "
            "median of its block"
        )

    def _finding(self, one: _Factor, sentence: str) -> Finding:
        assert one.origin is not None
        return Finding(one.index, one.row, one.origin.module, one.origin.role, sentence)

    def _of_recipes(self) -> Iterator[Finding]:
        """Factors in a format that no other factor of their role has."""
        for role in (INPUTS, WEIGHTS, GRADIENTS):
            members = [one for one in self._factors if one.origin is not None and one.origin.role == role]
            seen = Counter(one.layout.key for one in members)
            if len(seen) < 2:
                continue
            usual, number = seen.most_common(1)[0]
            for one in members:
                assert one.origin is not None
                if one.layout.key != usual and 2 * number > len(members) and 4 * seen[one.layout.key] <= len(members):
                    other = next(member.layout for member in members if member.layout.key == usual)
                    yield self._finding(
                        one,
                        f"{one.origin.module}: {role}: {one.layout.text()}, but {other.text()} in {number} of "
                        f"{len(members)} factors of this role",
                    )

    def _of_absent(self) -> Iterator[Finding]:
        """Factors that only the golden run quantises."""
        for index, (match, rows) in enumerate(self._groups):
            for row in rows:
                if not row.target or not row.golden or "quantised" in row.target or "quantised" not in row.golden:
                    continue
                inside = module_path(match.call.parent.rsplit(".", 2)[0]) if match.call.parent else match.call.name
                role = INPUTS if row.slot == "input.0" else WEIGHTS
                layout = layout_of(row.golden)
                kind = layout.text() if layout else "quantised"
                text = f"{inside}: {role}: {row.target.get('dtype')} in the target, {kind} in the golden run"
                yield Finding(index, row, inside, role, text)

    def _of_products(self) -> Iterator[Finding]:
        """Products that are further from those of their exact factors than the formats explain."""
        quantised = {one.origin.module for one in self._factors if one.origin is not None}
        by_place = {(one.module, one.role): one.values for one in self._sources}
        errors: dict[str, float] = {}
        for one in self._factors:
            if one.origin is not None:
                reference = one.origin.values.T if one.turned else one.origin.values
                _, given = best_form(one.values, reference, one.layout)
                errors[one.origin.module] = max(errors.get(one.origin.module, 0.0), 10 ** (-given / 20))
        for index, (match, rows) in enumerate(self._groups):
            call = match.target
            module = module_path(call.key) if call is not None and call.kind != "api" else ""
            if call is None or module not in quantised:
                continue
            x, weight, gradient = (by_place.get((module, role)) for role in (INPUTS, WEIGHTS, GRADIENTS))
            for row in rows:
                what, wanted = _product(call, row, x, weight, gradient)
                found = self._matrix(self._target, row.target) if wanted is not None else None
                if wanted is None or found is None or found.shape != wanted.shape:
                    continue
                if what == "the output":
                    found = found - np.median(found - wanted, axis=0)  # the bias
                away = math.sqrt(float(np.square(found - wanted).sum()) / (float(np.square(wanted).sum()) or 1.0))
                if away > PRODUCT * math.sqrt(2) * errors[module] + 0.02:
                    factor = float((found * wanted).sum() / (float(np.square(wanted).sum()) or 1.0))
                    rest = f": it is {factor:.3g} times as large" if abs(factor - 1) > 0.15 else ""
                    text = (
                        f"{module}: {what}: off by {100 * away:.3g}% where the format of its factors explains "
                        f"{100 * math.sqrt(2) * errors[module]:.2g}%{rest}"
                    )
                    yield Finding(index, row, module, what, text)


def _role_in_module(slot: str, forward: bool) -> str:
    if not forward:
        return GRADIENTS if slot == "input.0" else ""
    return INPUTS if slot == "input.0" else WEIGHTS if slot == "parameters.weight" else ""


def _product(call: Call, row: Row, x: Any, weight: Any, gradient: Any) -> tuple[str, Optional[Array]]:
    """What a row of a Linear must be, from the exact factors."""
    if call.direction == FORWARD and row.slot == "output.0" and x is not None and weight is not None:
        return ("the output", x @ weight.T) if x.shape[1] == weight.shape[1] else ("", None)
    if gradient is None or (weight is not None and gradient.shape[1] != weight.shape[0]):
        return "", None
    if call.direction == BACKWARD and row.slot == "output.0" and weight is not None:
        return "the gradient of the input", gradient @ weight
    if call.direction == GRADS and row.slot.endswith(".weight") and x is not None and len(x) == len(gradient):
        return "the gradient of the weight", gradient.T @ x
    return "", None


def _likeness(values: Array, other: Array) -> float:
    step = max(values.size // _SAMPLE, 1)
    one, two = values.reshape(-1)[::step], other.reshape(-1)[::step]
    size = float(np.linalg.norm(one) * np.linalg.norm(two))
    return float(one @ two) / size if size else 0.0


def _summed_axis(call: Call, slot: str) -> Optional[int]:
    """The axis of a factor over which its product adds."""
    word = product_word(call.name)
    if word == "linear":
        return 1
    return {"input.0": 1, "input.1": 0}.get(slot) if word in ("mm", "matmul") else None


def _pass_rest(groups: Sequence[Group], found: set[int]) -> None:
    """What differs by no more than a format loses passes; calls that only make factors are no calls of the model."""
    modules = {
        call.parent
        for match, rows in groups
        for call in (match.target,)
        if call is not None and call.parent and any(row.target and "quantised" in row.target for row in rows)
    }
    for (match, rows), phase in zip(groups, phases_of(groups)):
        call = match.call
        inside = call.parent in modules or (call.parent is None and phase is Phase.BACKWARD and call.kind == "api")
        other = any(row.difference.kind is Kind.ARGUMENT and row.verdict in (WARNING, ERROR) for row in rows)
        for row in rows:
            if id(row) in found or (other and not row.is_input):
                continue
            if match.how == "unmatched" or row.absent:
                if inside or (call.kind == "api" and call.direction == BACKWARD):
                    row.excuse = Excuse("quantised", Reason(Kind.ROUNDING, Message("quantised.part")), ())
            elif row.verdict in (WARNING, ERROR) and _is_near(row):
                row.judgement = Judgement(PASS, GROSS, Reason(Kind.ROUNDING, Message("quantised.within")))


def _is_near(row: Row) -> bool:
    """Whether the tensors differ by no more than errors of formats add up to: arguments and shapes must be equal."""
    if not is_tensor(row.golden) or row.difference.kind not in (Kind.VALUES, Kind.BYTES):
        return False
    return (row.measurement.average if row.measured is None else row.measured.relative_l2) <= GROSS
