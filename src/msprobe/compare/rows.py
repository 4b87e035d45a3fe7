"""The rows of a comparison: one tensor or plain value of one call, on both sides.

A row keeps the two recorded items as they are in the dumps; what was measured and judged is added to it. Rows are
made by the hundred thousand, hence a slotted class and no copying.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Optional

from msprobe.compare.align.translate import Translation, parameter_name
from msprobe.compare.calls import DEBUG, GRADS, Call, Match, shapes
from msprobe.dump.reader import items, leaves

if TYPE_CHECKING:
    from msprobe.compare.measure.tensors import TensorMetrics

PASS = "pass"
WARNING = "warning"
ERROR = "error"
NOT_COMPARED = "not_compared"

OTHER_BYTES = "the same statistics, other bytes: the same numbers in another order, or other signs of zero"
RAISED = "raised"
"""The slot of the exception that a call ended with, and the member of its record."""

INTRODUCED = "introduced"
PROPAGATED = "propagated"

Item = Optional[dict[str, Any]]


class Row:
    """One compared item. `slot` is `input.0`, `output.1`, `parameters.weight`, …

    `distance` is the relative difference that the verdict rests on (0 when equal as far as recorded, None when it
    could not be measured); `absent` is the side that has no such item at all ("target", "golden" or empty); `role` is
    introduced, propagated or empty; `merged` says how shards were put together; `cause` names a discrete choice that
    the difference follows from.
    """

    __slots__ = (
        "absent",
        "cause",
        "distance",
        "golden",
        "golden_slot",
        "match",
        "measured",
        "merged",
        "reason",
        "role",
        "slot",
        "target",
        "tolerance",
        "verdict",
    )

    def __init__(self, match: Match, slot: str, golden_slot: str, target: Item, golden: Item, absent: str = "") -> None:
        self.match = match
        self.slot = slot
        self.golden_slot = golden_slot
        self.target = target
        self.golden = golden
        self.absent = absent
        self.distance: Optional[float] = None
        self.measured: Optional[TensorMetrics] = None
        self.tolerance = 0.0
        self.verdict = NOT_COMPARED
        self.reason = ""
        self.role = ""
        self.merged = ""
        self.cause = ""

    @property
    def is_input(self) -> bool:
        return self.slot.startswith(("input.", "parameters."))

    @property
    def target_name(self) -> Optional[str]:
        call = self.match.target
        return None if call is None or self.absent == "target" else _row_name(call, self.slot)

    @property
    def golden_name(self) -> Optional[str]:
        call = self.match.golden
        return None if call is None or self.absent == "golden" else _row_name(call, self.golden_slot)

    @property
    def name(self) -> str:
        return self.target_name or self.golden_name or self.match.call.name


def _row_name(call: Call, slot: str) -> str:
    return f"{call.key if call.direction == GRADS else call.name}.{slot}"


def is_tensor(item: Item) -> bool:
    return item is not None and "dtype" in item and "shape" in item


def slots(call: Call) -> Iterator[tuple[str, Item]]:
    """(slot, item) of a call's record: leaves only, in recorded order; a null leaf is None."""
    if call.direction == DEBUG or not isinstance(call.record, dict):
        for slot, item in leaves("", call.record):
            yield slot[1:] or "value", item if item is None or isinstance(item, dict) else _plain(item)
        return
    yield from slots_of(call.record)


def slots_of(record: dict[str, Any]) -> Iterator[tuple[str, Item]]:
    for slot, item in items(record):
        yield slot, item if item is None or isinstance(item, dict) else _plain(item)
    if RAISED in record:
        yield RAISED, _plain(record[RAISED])


def _plain(value: Any) -> dict[str, Any]:
    return {"type": type(value).__name__, "value": value}


def rows_of(match: Match, translation: Translation) -> list[Row]:
    """The rows of one match; items that only one side has are rows too, without a counterpart."""
    target, golden = match.target, match.golden
    if target is None or golden is None:
        only = match.call
        rows = []
        for slot, item in slots(only):
            if item is not None:
                if golden is None:
                    rows.append(Row(match, slot, slot, item, None, "golden"))
                else:
                    rows.append(Row(match, slot, slot, None, item, "target"))
        return rows
    if match.how == "fused":
        return _fused_rows(match)
    ours, theirs = list(slots(target)), dict(slots(golden))
    if RAISED in theirs or any(slot == RAISED for slot, _ in ours):
        theirs.setdefault(RAISED, _plain(None))
        ours += [] if any(slot == RAISED for slot, _ in ours) else [(RAISED, _plain(None))]
    rows = []
    loose: list[tuple[str, Item]] = []
    rule = translation.apis.get(target.key)
    for slot, item in ours:
        to = slot
        if not translation.plain:
            mapped = translation.slots.get(_row_name(target, slot))
            if mapped is not None:
                to = mapped.removeprefix(golden.name + ".")
            elif rule is not None:
                to = (rule.inputs if slot.startswith("input") else rule.outputs).get(slot, slot)
            elif translation.across and to not in theirs:
                to = parameter_name(slot)
        if to in theirs:
            other = theirs.pop(to)
            if item is not None or other is not None:
                rows.append(Row(match, slot, to, item, other))
        elif item is not None:
            loose.append((slot, item))
    if loose or theirs:
        rows += _by_shape(match, loose, {slot: item for slot, item in theirs.items() if item is not None})
    return rows


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
    """One call against several: the outputs of the last, and the inputs whose shapes find each other."""
    target, golden = match.target, match.golden
    assert target is not None
    assert golden is not None
    ours, theirs = dict(slots(target)), dict(slots(golden))
    rows = []
    for slot, item in ours.items():
        if slot.startswith("output") and is_tensor(item) and is_tensor(theirs.get(slot)):
            rows.append(Row(match, slot, slot, item, theirs[slot]))
    return rows
