"""Which item of a call belongs to which item of its counterpart.

Slots with the same name belong together. Exceptions: names that a mapping gives, keywords against positions, operands
of a commutative operation that changed places, and gradients that moved because an argument is None in one run.
"""

from __future__ import annotations

from msprobe.compare.align.translate import Translation, operation_of, parameter_name
from msprobe.compare.calls import BACKWARD, FORWARD, Call, Match, shapes
from msprobe.compare.measure.distance import result_key
from msprobe.compare.operators import COMMUTATIVE
from msprobe.compare.rows import RAISED, Item, Row, is_tensor, plain, row_name, slots

_FIRST, _SECOND = "input.0", "input.1"


class Pairing:
    """For one rank and step. Pass the matches in execution order, because a backward follows its forward."""

    def __init__(self, translation: Translation) -> None:
        self._translation = translation
        self._plain = translation.plain
        self._swapped: set[tuple[str, int]] = set()

    def rows(self, match: Match) -> list[Row]:
        """The rows of one match; items that only one side has are rows too, without a counterpart."""
        target, golden = match.target, match.golden
        if target is None or golden is None:
            side = "golden" if golden is None else "target"
            sides = ((slot, item) for slot, item in slots(match.call) if item is not None)
            if golden is None:
                return [Row(match, slot, slot, item, None, side) for slot, item in sides]
            return [Row(match, slot, slot, None, item, side) for slot, item in sides]
        if match.how == "fused":
            return _fused_rows(match)
        ours, theirs = slots(target), dict(slots(golden))
        raised = RAISED in [slot for slot, _ in ours]
        if raised or RAISED in theirs:
            theirs.setdefault(RAISED, plain(None))
            ours += [] if raised else [(RAISED, plain(None))]
        moved = self._moved_slots(match, target, ours, theirs)
        rows = []
        loose: list[tuple[str, Item]] = []
        for slot, item in ours:
            to = slot
            if moved or not self._plain:
                to = moved[slot] if slot in moved else self._golden_slot(target, golden, slot, theirs)
            if to in theirs:
                other = theirs.pop(to)
                if item is not None or other is not None:
                    rows.append(Row(match, slot, to, item, other))
            elif item is not None:
                loose.append((slot, item))
        if loose or theirs:
            rows += _by_shape(match, loose, {slot: item for slot, item in theirs.items() if item is not None})
        return rows

    def _golden_slot(self, target: Call, golden: Call, slot: str, theirs: dict[str, Item]) -> str:
        translation = self._translation
        if self._plain:
            return slot
        rule = translation.apis.get(target.key)
        mapped = translation.slots.get(row_name(target, slot))
        if mapped is not None:
            return mapped.removeprefix(golden.name + ".")
        if rule is not None:
            return (rule.inputs if slot.startswith("input") else rule.outputs).get(slot, slot)
        if translation.across and slot not in theirs:
            return parameter_name(slot)
        return slot

    def _moved_slots(
        self, match: Match, target: Call, ours: list[tuple[str, Item]], theirs: dict[str, Item]
    ) -> dict[str, str]:
        if target.direction == FORWARD:
            if target.kind == "api" and operation_of(target.key) in COMMUTATIVE and _operands_swapped(ours, theirs):
                self._swapped.add((target.key, target.number))
                return {_FIRST: _SECOND, _SECOND: _FIRST}
        elif target.direction == BACKWARD:
            if (target.key, target.number) in self._swapped:
                return {"output.0": "output.1", "output.1": "output.0"}
            return _shifted_gradients(ours, theirs)
        return {}


def _operands_swapped(ours: list[tuple[str, Item]], theirs: dict[str, Item]) -> bool:
    """Whether the two operands have changed places."""
    if len(ours) < 2 or ours[0][0] != _FIRST or ours[1][0] != _SECOND:
        return False
    (_, first), (_, second) = ours[:2]
    one, other = theirs.get(_FIRST), theirs.get(_SECOND)
    if not first or not second or not one or not other or first.get("Norm") == one.get("Norm") is not None:
        return False
    if not is_tensor(first) or not is_tensor(other) or not _same_result(first, other):
        return False
    if is_tensor(second):
        return _same_result(second, one)
    return not is_tensor(one) and second.get("value") == one.get("value")


def _same_result(one: Item, other: Item) -> bool:
    """Whether the results are known to be the same: never without statistics (booleans, checksums alone)."""
    key = result_key(one)
    return key is not None and key == result_key(other)


def _shifted_gradients(ours: list[tuple[str, Item]], theirs: dict[str, Item]) -> dict[str, str]:
    """If both runs have equally many gradients at different places (an argument is None in one run), pairs the n-th
    with the n-th."""
    if len(ours) == len(theirs) and not [s for s, item in ours if (item is None) != (theirs.get(s) is None)]:
        return {}
    left = [(slot, item) for slot, item in ours if item is not None and slot.startswith("output.")]
    right = [(slot, item) for slot, item in theirs.items() if item is not None and slot.startswith("output.")]
    if len(left) != len(right) or [slot for slot, _ in left] == [slot for slot, _ in right]:
        return {}
    if any(shapes(a) != shapes(b) for (_, a), (_, b) in zip(left, right)):
        return {}
    moved = {a: b for (a, _), (b, _) in zip(left, right)}
    taken = set(moved.values())
    return {**{slot: "" for slot, item in ours if item is None and slot in taken}, **moved}


def _by_shape(match: Match, loose: list[tuple[str, Item]], theirs: dict[str, Item]) -> list[Row]:
    """Items under different slots (a keyword on one side, a position on the other): same part and shape, in order."""
    rows = []
    for slot, item in loose:
        part = slot.partition(".")[0]
        partner = None
        if is_tensor(item):
            partner = next(
                (
                    to
                    for to, other in theirs.items()
                    if to.partition(".")[0] == part and is_tensor(other) and shapes(other) == shapes(item)
                ),
                None,
            )
        if partner is None:
            rows.append(Row(match, slot, slot, item, None, "golden"))
        else:
            rows.append(Row(match, slot, partner, item, theirs.pop(partner)))
    rows += [Row(match, slot, slot, None, item, "target") for slot, item in theirs.items()]
    return rows


def _fused_rows(match: Match) -> list[Row]:
    """One call against several: pairs the outputs of the last one, and the inputs whose shapes match."""
    target, golden = match.target, match.golden
    assert target is not None
    assert golden is not None
    ours, theirs = dict(slots(target)), dict(slots(golden))
    rows = []
    for slot, item in ours.items():
        if slot.startswith("output") and is_tensor(item) and is_tensor(theirs.get(slot)):
            rows.append(Row(match, slot, slot, item, theirs[slot]))
    return rows
