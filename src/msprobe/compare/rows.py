"""The rows of a comparison: one tensor or plain value of one call, on both sides.

A row keeps the two recorded items as they are in the dumps; what was measured and judged is added to it. A comparison
makes hundreds of thousands of rows: therefore the class has slots, and nothing is copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from msprobe.compare.calls import DEBUG, GRADS, Call, Match
from msprobe.compare.reasons import NO_REASON, Kind, Reason
from msprobe.dump.reader import items, leaves
from msprobe.dump.record_keys import DAMAGED

if TYPE_CHECKING:
    from msprobe.compare.layout.case import Case
    from msprobe.compare.measure.tensors import TensorMetrics

PASS = "pass"
WARNING = "warning"
ERROR = "error"
NOT_COMPARED = "not_compared"

RAISED = "raised"
"""The slot of the exception that a call raised, and the key of its record."""

SIGNALS = ("_StopRecomputationError",)
"""Exceptions that are no failure: torch ends a recomputation with one as soon as it has all that it needs."""

LARGEST_SIZE = 1 << 62

INTRODUCED = "introduced"
PROPAGATED = "propagated"

Item = Optional[dict[str, Any]]


class Measurement(NamedTuple):
    """How far the two sides of a row are apart.

    `distance` is the largest relative difference (0 when equal as far as recorded, None when it could not be
    measured); `average` that of the norm and the mean, which average rounding out; `metrics` those of saved tensors.
    """

    distance: Optional[float] = None
    reason: Reason = NO_REASON
    average: float = 0.0
    metrics: Optional[TensorMetrics] = None


class Judgement(NamedTuple):
    """The verdict on a row, the tolerance that was used, and why."""

    verdict: str = NOT_COMPARED
    tolerance: float = 0.0
    reason: Reason = NO_REASON


UNMEASURED = Measurement()
EQUAL = Measurement(0.0)
UNJUDGED = Judgement()
PASSED = Judgement(PASS)


class Excuse(NamedTuple):
    """Why a difference is harmless: the rule that says so, and the rows that prove it. They agree, and lie behind what
    is excused."""

    rule: str
    reason: Reason
    evidence: tuple[Row, ...]


class Row:
    """One compared item. `slot` is `input.0`, `output.1`, `parameters.weight`, …

    What it is made of (the match, the two slots and items) is fixed. Each stage of a comparison returns its own result,
    and the row holds it: `measurement` of measuring, `judgement` of judging (it stays, also if there is an `excuse`),
    `role` (introduced, propagated or empty)
    of following the differences, `cause` of the origin (the discrete choice that the difference follows from). `absent`
    is the side that has no such item ("target", "golden" or empty). If the ranks of a run were compared as one,
    `joined` has the shards and how they were put together (`layout.case.Case`).
    """

    __slots__ = (
        "absent",
        "cause",
        "excuse",
        "golden",
        "golden_slot",
        "is_input",
        "joined",
        "judgement",
        "match",
        "measurement",
        "role",
        "slot",
        "target",
    )

    def __init__(
        self,
        match: Match,
        slot: str,
        golden_slot: str,
        target: Item,
        golden: Item,
        absent: str = "",
    ) -> None:
        self.match = match
        self.slot = slot
        self.is_input = slot.startswith(("input.", "parameters."))
        self.golden_slot = golden_slot
        self.target = target
        self.golden = golden
        self.absent = absent
        self.joined: Optional[Case] = None
        self.measurement = UNMEASURED
        self.judgement = UNJUDGED
        self.excuse: Optional[Excuse] = None
        self.role = ""
        self.cause = ""

    @property
    def distance(self) -> Optional[float]:
        return self.measurement.distance

    @property
    def measured(self) -> Optional[TensorMetrics]:
        return self.measurement.metrics

    @property
    def verdict(self) -> str:
        return self.judgement.verdict if self.excuse is None else NOT_COMPARED

    @property
    def tolerance(self) -> float:
        return self.judgement.tolerance

    @property
    def why(self) -> Reason:
        return self.difference if self.excuse is None else self.excuse.reason

    @property
    def difference(self) -> Reason:
        """Why it was judged as it was, also if there is an excuse."""
        reason = self.judgement.reason
        return self.measurement.reason if reason.kind is Kind.NONE else reason

    @property
    def reason(self) -> str:
        """`why` in words: a Message, or empty."""
        why = self.why
        return "" if why.kind is Kind.NONE else why.message

    @property
    def target_name(self) -> Optional[str]:
        call = self.match.target
        return None if call is None or self.absent == "target" else row_name(call, self.slot)

    @property
    def golden_name(self) -> Optional[str]:
        call = self.match.golden
        return None if call is None or self.absent == "golden" else row_name(call, self.golden_slot)

    @property
    def name(self) -> str:
        return self.target_name or self.golden_name or self.match.call.name


Group = tuple[Match, list[Row]]
"""A match with its rows."""


def row_name(call: Call, slot: str) -> str:
    return f"{call.key if call.direction == GRADS else call.name}.{slot}"


def is_tensor(item: Item) -> bool:
    return item is not None and "dtype" in item and item.get("shape").__class__ is list


def slots(call: Call) -> list[tuple[str, Item]]:
    """(slot, item) of a call's record: leaves only, in recorded order; a null leaf is None."""
    if call.direction == DEBUG or not isinstance(call.record, dict):
        return [(slot[1:] or "value", _sound(item)) for slot, item in leaves("", call.record)]
    return slots_of(call.record)


def slots_of(record: dict[str, Any]) -> list[tuple[str, Item]]:
    found = [(slot, _sound(item)) for slot, item in items(record)]
    if RAISED in record and record[RAISED] not in SIGNALS:
        found.append((RAISED, plain(record[RAISED])))
    if DAMAGED in record and not isinstance(record[DAMAGED], list):
        damage = {"type": DAMAGED, "dtype": None, "shape": [], "unreadable": record[DAMAGED]}
        found.append((DAMAGED, damage))
    return found


def _sound(item: Any) -> Item:
    """The item in a form that later stages can use: a tensor whose shape is not a list of sizes becomes unreadable."""
    if not isinstance(item, dict):
        return None if item is None else plain(item)
    known: dict[str, Any] = _of_parts(item) if item.get("layout") == "nested" else item
    shape = known.get("shape")
    if type(shape) is list:
        for size in shape:
            if type(size) is not int or not 0 <= size <= LARGEST_SIZE:
                return {"type": "damaged", "dtype": None, "shape": [], "unreadable": "it has no valid shape"}
    return known


def _of_parts(item: dict[str, Any]) -> dict[str, Any]:
    """A nested tensor has no shape; the number of its parts replaces it."""
    places = item.get("places")
    sizes = places.get("sizes") if isinstance(places, dict) else None
    shape = sizes.get("shape") if isinstance(sizes, dict) else None
    return {**item, "shape": shape[:1] if isinstance(shape, list) else []}


def plain(value: Any) -> dict[str, Any]:
    return {"type": type(value).__name__, "value": value}
