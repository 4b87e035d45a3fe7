"""Aligns the calls of two runs that did not make the same calls, inside the module tree.

Modules are matched by path first; what ran inside two matched modules is aligned as one short sequence, so that an
inserted, removed or renamed call disturbs only its own module. Each sequence is aligned in rounds, from the surest
evidence (the same values) to the weakest (the same place). A round works only in the gaps that the earlier rounds left.
Without a module tree the complete run is one sequence.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Optional

from msprobe.compare.align.passes import Side, has_gradient, without_evaluations
from msprobe.compare.align.sequence import common_order
from msprobe.compare.align.translate import Translation, fused_ends, operation_of
from msprobe.compare.calls import Call, Match, arguments, fingerprint, shapes
from msprobe.compare.measure.distance import count, number, order_key, result_key
from msprobe.compare.operators import MIXES, word_of
from msprobe.compare.rows import is_tensor

Calls = Sequence[Call]
Token = Callable[[Call, int], Hashable]
_TARGET, _GOLDEN = 0, 1
_FEW = 4
"""Tensors with fewer elements are not recognised by their norm."""
_PROJECTIONS = {"linear", "matmul", "conv1d", "conv2d"}


def align_tree(target: Calls, golden: Calls, translation: Translation, of_parts: bool = False) -> list[Match]:
    """Matches of forward calls of two runs, in no particular order. `of_parts`: one run has parts of tensors, so that
    equal shapes say nothing of calls that both runs make equally often."""
    ours, theirs = without_evaluations(target, golden, (translation.target_path, translation.golden_path))
    modules = _modules_by_path(ours, theirs)
    partner = {t.name: g.name for t, g in modules}
    matches = []
    for t, g in modules:
        same = t.name == g.name
        matches.append(Match(t, g, "exact" if same else "renamed", 1.0 if same else 0.95))
    left = _sections(ours.calls, {name: name for name in partner})
    right = _sections(theirs.calls, {to: name for name, to in partner.items()})
    marks = {t.name: t.name for t, _ in modules}, {g.name: t.name for t, g in modules}
    aligner = _Aligner(translation, *marks, of_parts, by_gradient=bool(ours.skipped or theirs.skipped))
    for section, calls in left.items():
        matches += aligner.align(calls, right.get(section, []))
    return matches


def _modules_by_path(target: Side, golden: Side) -> list[tuple[Call, Call]]:
    """The modules with the same path: inside the same modules, by their number. If one run calls a module more often
    there, by what they return, then by their parameters: an update in between shows which calls correspond."""
    known = {golden.place(c): c for c in golden.calls if c.kind == "module"}
    modules = [call for call in target.calls if call.kind == "module"]
    if len(known) == len(modules) and all(target.place(call) in known for call in modules):
        return [(call, known[target.place(call)]) for call in modules]
    levels = _by_depth(target.calls), _by_depth(golden.calls)
    around: tuple[dict[str, str], dict[str, str]] = ({}, {})
    pairs = []
    for depth in range(max(map(len, levels))):
        groups: list[dict[Hashable, list[Call]]] = []
        for side, level, names in zip((target, golden), levels, around):
            grouped: dict[Hashable, list[Call]] = defaultdict(list)
            for call in level[depth] if depth < len(level) else ():
                names[call.name] = names.get(call.parent or "", "")
                grouped[side.path_of(call), names[call.name]].append(call)
            groups.append(grouped)
        for key, calls in groups[0].items():
            for ours, theirs in _same_modules(calls, groups[1].get(key, [])):
                pairs.append((ours, theirs))
                around[0][ours.name] = around[1][theirs.name] = ours.name
    return pairs


def _by_depth(calls: Calls) -> list[list[Call]]:
    """The module calls by how many recorded modules are around them."""
    parents = {call.name: call.parent for call in calls if call.kind == "module"}
    depths: dict[Optional[str], int] = {}
    found: list[list[Call]] = []
    for call in calls:
        if call.kind != "module":
            continue
        trail = []
        name: Optional[str] = call.name
        while name in parents and name not in depths:
            trail.append(name)
            name = parents[name]
        start = depths.get(name, -1)
        depths.update((passed, start + 1 + place) for place, passed in enumerate(reversed(trail)))
        depth = depths[call.name]
        while len(found) <= depth:
            found.append([])
        found[depth].append(call)
    return found


def _same_modules(target: Calls, golden: Calls) -> list[tuple[Call, Call]]:
    if len(target) == len(golden) or not golden:
        return list(zip(target, golden))
    pairs: list[tuple[int, int]] = []
    for token in (_returned, _held, _out):
        gaps = [(-1, -1), *pairs, (len(target), len(golden))]
        for (i, j), (x, y) in zip(gaps, gaps[1:]):
            found = common_order([token(c) for c in target[i + 1 : x]], [token(c) for c in golden[j + 1 : y]])
            pairs += [(i + 1 + a, j + 1 + b) for a, b in found]
        pairs.sort()
    return [(target[i], golden[j]) for i, j in pairs]


def _returned(call: Call) -> Hashable:
    return result_key(_first_output(call)) or id(call)


def _held(call: Call) -> Hashable:
    return fingerprint(call.record.get("parameters")) if isinstance(call.record, dict) else ""


def _sections(calls: Calls, labels: dict[str, str]) -> dict[Optional[str], list[Call]]:
    """The calls of each matched module, in order. In the sequence of its parent, a matched module is a mark."""
    parents = {call.name: call.parent for call in calls}
    nearest: dict[Optional[str], Optional[str]] = {None: None}
    sections: dict[Optional[str], list[Call]] = defaultdict(list)
    for call in calls:
        trail = []
        name = call.parent
        while name not in nearest:
            assert name is not None
            if name in labels:
                nearest[name] = labels[name]
                break
            trail.append(name)
            nearest[name] = None
            name = parents.get(name)
        section = nearest[name]
        for passed in trail:
            nearest[passed] = section
        sections[section].append(call)
    return sections


class _Aligner:
    def __init__(
        self,
        translation: Translation,
        ours: dict[str, str],
        theirs: dict[str, str],
        of_parts: bool = False,
        by_gradient: bool = False,
    ) -> None:
        """`by_gradient`: one run also evaluates; a call with a gradient is never matched with one without."""
        self.translation = translation
        self.marks = (ours, theirs)
        self._of_parts = of_parts
        self._by_gradient = by_gradient
        self._counted: set[str] = set()
        """The keys that are known by their number, not by shapes."""

    def align(self, target: Calls, golden: Calls) -> list[Match]:
        if not target or not golden:
            return []
        found: list[Match] = []
        if self._of_parts:
            ours, theirs = (
                Counter(self._key_of(c, side) for c in calls) for side, calls in enumerate((target, golden))
            )
            self._counted = {key for key, number in ours.items() if number == theirs[key]}
        gaps = [(target, golden)]
        rounds: list[tuple[Token, str, float]] = [
            (self._value, "sequence", 1.0),
            (self._same_elements, "sequence", 0.95),
            (self._api_elements, "fused", 0.9),
            (self._same_call, "sequence", 0.95),
            (self._api_result, "fused", 0.9),
            (self._near_call, "sequence", 0.95),
            (self._call, "sequence", 0.95),
            (self._key_and_shape, "sequence", 0.9),
            (self._key, "sequence", 0.8),
            (self._module_data, "renamed", 0.9),
            (self._operation, "renamed", 0.7),
            (self._result, "fused", 0.6),
        ]
        for token, how, confidence in rounds:
            rest: list[tuple[Calls, Calls]] = []
            for a, b in gaps:
                pairs = common_order([token(c, _TARGET) for c in a], [token(c, _GOLDEN) for c in b])
                i = j = 0
                for x, y in [*pairs, (len(a), len(b))]:
                    if i < x and j < y:
                        rest.append((a[i:x], b[j:y]))
                    if x < len(a) and a[x].name not in self.marks[_TARGET]:
                        alone = () if how != "fused" or (i < x and j < y) else (*a[i:x], *b[j:y])
                        found.append(_match(a[x], b[y], how, confidence, self._unmarked(alone)))
                    i, j = x + 1, y + 1
            gaps = rest
        for a, b in gaps:
            a = [c for c in a if c.name not in self.marks[_TARGET]]
            b = [c for c in b if c.name not in self.marks[_GOLDEN]]
            if a and b:
                found += _by_place(a, b)
        if _projections(target) != _projections(golden):  # equally many, of other shapes: shards of one
            found = [match for match in found if not _is_other_projection(match)]
        found = self._with_same_gradients(found, target, golden)
        return found + self._moved(target, golden, found)

    def _with_same_gradients(self, found: list[Match], target: Calls, golden: Calls) -> list[Match]:
        """Of two calls with the same values, takes the one with a gradient if the other run's has one: a script may log
        a detached copy."""
        wrong = [place for place, match in enumerate(found) if match.how != "fused" and _is_cut(match)]
        if not wrong:
            return found
        free = self._free(found, target, _TARGET), self._free(found, golden, _GOLDEN)
        for place in wrong:
            ours, theirs = found[place].target, found[place].golden
            assert ours is not None
            assert theirs is not None
            twins = [free[side].get((one.key, self._value(one, side)), []) for side, one in enumerate((ours, theirs))]
            others = [(one, theirs, _TARGET) for one in twins[_TARGET]] + [
                (ours, one, _GOLDEN) for one in twins[_GOLDEN]
            ]
            for a, b, side in others:
                if has_gradient(a) == has_gradient(b):
                    found[place] = _match(a, b, "sequence", 0.95, ())
                    twins[side].remove((a, b)[side])
                    break
        return found

    def _free(self, found: list[Match], calls: Calls, side: int) -> dict[tuple[str, object], list[Call]]:
        """The calls of one side that have no match yet, by their API and values."""
        taken = {call.name for match in found for call in (match.target, match.golden) if call is not None}
        waiting: dict[tuple[str, object], list[Call]] = defaultdict(list)
        for call in calls:
            if call.name not in taken:
                waiting[call.key, self._value(call, side)].append(call)
        return waiting

    def _moved(self, target: Calls, golden: Calls, found: list[Match]) -> list[Match]:
        """Matches calls that one run makes in a different order: the same API with the same values."""
        taken = {call.name for match in found for call in (match.target, *match.before) if call is not None}
        given = {call.name for match in found for call in (match.golden, *match.before) if call is not None}
        waiting: dict[Hashable, list[Call]] = defaultdict(list)
        for call in golden:
            if call.name not in given and call.name not in self.marks[_GOLDEN] and isinstance(call.record, dict):
                waiting[self._key_of(call, _GOLDEN), fingerprint(call.record)].append(call)
        moved = []
        for call in target if waiting else ():
            if call.name not in taken and call.name not in self.marks[_TARGET] and isinstance(call.record, dict):
                text = fingerprint(call.record)
                partners = waiting.get((self._key_of(call, _TARGET), text)) if text else None
                if partners:
                    moved.append(Match(call, partners.pop(0), "moved", 0.9))
        return moved

    def _unmarked(self, calls: Calls) -> tuple[Call, ...]:
        return tuple(c for c in calls if c.name not in self.marks[_TARGET] and c.name not in self.marks[_GOLDEN])

    def _mark(self, call: Call, side: int) -> Optional[str]:
        return self.marks[side].get(call.name)

    def _key_of(self, call: Call, side: int) -> str:
        return self.translation.golden_key(call) if side else self.translation.target_key(call)

    def _value(self, call: Call, side: int) -> Hashable:
        mark = self._mark(call, side)
        if mark is not None:
            return mark
        text = fingerprint(call.record.get("output")) if isinstance(call.record, dict) else ""
        return (self._key_of(call, side), text) if text else (side, call.name)

    def _same_call(self, call: Call, side: int) -> Hashable:
        """The same API with the same result, but for rounding."""
        found = self._result(call, side)
        return (self._key_of(call, side), found) if isinstance(found, tuple) else found

    def _near_call(self, call: Call, side: int) -> Hashable:
        """The same API with a result of about the same norm: of several such calls, one run may make one more."""
        mark = self._mark(call, side)
        item = _first_output(call)
        norm = number(item.get("Norm")) if isinstance(item, dict) and count(item) >= _FEW else None
        if mark is not None or not norm:
            return mark or (side, call.name)
        return self._key_of(call, side), _out(call), f"{norm:.2e}", self._gradient(call)

    def _call(self, call: Call, side: int) -> Hashable:
        key = self._key_of(call, side)
        given = "" if key in self._counted else arguments(call.record)
        return self._mark(call, side) or (key, given, self._gradient(call))

    def _key_and_shape(self, call: Call, side: int) -> Hashable:
        key = self._key_of(call, side)
        return self._mark(call, side) or (key, "" if key in self._counted else _out(call), self._gradient(call))

    def _gradient(self, call: Call) -> object:
        return has_gradient(call) if self._by_gradient else None

    def _key(self, call: Call, side: int) -> Hashable:
        return self._mark(call, side) or self._key_of(call, side)

    def _result(self, call: Call, side: int) -> Hashable:
        """Another call with the same result: the last of several calls, if one fused call computes it directly."""
        mark = self._mark(call, side)
        if mark is not None:
            return mark
        key = result_key(_first_output(call))
        return (call.kind, _out(call), key) if key else (side, call.name)

    def _same_elements(self, call: Call, side: int) -> Hashable:
        """The same API with the same elements in the same places: a turned vector has the norm of the vector, and may
        have its extremes."""
        found = self._api_elements(call, side)
        return (self._key_of(call, side), found) if isinstance(found, tuple) else found

    def _api_elements(self, call: Call, side: int) -> Hashable:
        order = order_key(_first_output(call))
        found = self._api_result(call, side)
        known = order is not None and isinstance(found, tuple)
        return (found, order) if known else self._mark(call, side) or (side, call.name)

    def _api_result(self, call: Call, side: int) -> Hashable:
        """Before calls of the same API are matched that compute something different. Calls with weights are not: their
        counterpart has the same weights."""
        mark = self._mark(call, side)
        known = call.kind == "api" and word_of(call.key) not in MIXES
        return mark or (self._result(call, side) if known else (side, call.name))

    def _operation(self, call: Call, side: int) -> Hashable:
        """The weakest key. For modules it includes the shape of the result: a fused projection is not the first of
        several."""
        mark = self._mark(call, side)
        if mark is not None or call.kind != "module":
            return mark or self.translation.operation(call)
        return (self.translation.operation(call), _out(call))

    def _module_data(self, call: Call, side: int) -> Hashable:
        """Modules under other names by what they compute."""
        mark = self._mark(call, side)
        if mark is not None or call.kind != "module":
            return mark or (side, call.name)
        key = result_key(_first_output(call))
        return (self.translation.operation(call), key) if key else (side, call.name)


def _is_cut(match: Match) -> bool:
    target, golden = match.target, match.golden
    return target is not None and golden is not None and has_gradient(target) != has_gradient(golden)


def _first_output(call: Call) -> object:
    output = call.record.get("output") if isinstance(call.record, dict) else None
    return output[0] if isinstance(output, list) and output else None


def _out(call: Call) -> str:
    return shapes(call.record.get("output")) if isinstance(call.record, dict) else ""


def _projections(calls: Calls) -> int:
    return sum(call.kind != "module" and operation_of(call.key) in _PROJECTIONS for call in calls)


def _is_other_projection(match: Match) -> bool:
    """The same input, a different weight and result: a fused projection, and one of those that it replaces."""
    target, golden = match.target, match.golden
    if target is None or golden is None or target.kind == "module" or operation_of(target.key) not in _PROJECTIONS:
        return False
    ours, theirs = (c.record.get("input_args") if isinstance(c.record, dict) else None for c in (target, golden))
    if not isinstance(ours, list) or not isinstance(theirs, list) or min(len(ours), len(theirs)) < 2:
        return False
    return (
        shapes(ours[0]) == shapes(theirs[0]) and shapes(ours[1]) != shapes(theirs[1]) and _out(target) != _out(golden)
    )


def _match(target: Call, golden: Call, how: str, confidence: float, before: tuple[Call, ...]) -> Match:
    if target.name == golden.name and how != "fused":
        return Match(target, golden, "exact", 1.0)
    return Match(target, golden, how, confidence, before)


def _by_place(target: Calls, golden: Calls) -> list[Match]:
    """Matches what is left in a gap: one call with one, or one fused call with several, if the outputs have the same
    shape."""
    if len(target) > 1 and len(golden) > 1:
        pairs = common_order([_place(c) for c in target], [_place(c) for c in golden])
        return [Match(target[i], golden[j], "position", 0.4) for i, j in pairs]
    one, many = (target[0], golden) if len(target) == 1 else (golden[0], target)
    last = _last_of_fused(one, many)
    if last is None:
        return []
    if len(many) == 1:
        return [Match(target[0], golden[0], "position", 0.5)]
    ours, theirs = (one, many[last]) if one is target[0] else (many[last], one)
    return [Match(ours, theirs, "fused", 0.5, tuple(many[:last]))]


def _place(call: Call) -> Hashable:
    """The key if both sides have several calls: the values of the first input, how many tensors it is given, and the
    shape of the output."""
    inputs = call.record.get("input_args") if isinstance(call.record, dict) else None
    key = result_key(inputs[0]) if isinstance(inputs, list) and inputs else None
    return (call.kind, _out(call), sum(map(is_tensor, inputs)), key) if key and inputs else (id(call),)


def _last_of_fused(one: Call, many: Calls) -> Optional[int]:
    """Which of several calls has the result of the fused one: the last one with an operation that, by the table, ends
    such a sequence; otherwise the last of all."""
    fitting = [i for i, call in enumerate(many) if call.kind == one.kind and _out(call) == _out(one)]
    ends = fused_ends(one.key)
    known = [i for i in fitting if operation_of(many[i].key) in ends]
    if known:
        return known[-1]
    return len(many) - 1 if fitting and fitting[-1] == len(many) - 1 else None
