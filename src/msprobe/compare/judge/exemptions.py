"""Rows that say nothing about the run: memory that a call only writes, and memory that was not written yet.

Two equal runs must compare as equal, but such memory has other bytes each time.
"""

from __future__ import annotations

from collections.abc import Sequence

from msprobe.compare.calls import FORWARD, Match
from msprobe.compare.measure.distance import ValueKey, value_key
from msprobe.compare.operators import FILLING, RECEIVING, UNINITIALISED, VIEWS
from msprobe.compare.reasons import Kind, Reason
from msprobe.compare.rows import Row
from msprobe.messages import Message

_GATHER_BUFFER = "all_gather_copy_in"
"""The call of FSDP that returns the buffer for the next collective."""

_DESTINATION = Reason(Kind.DESTINATION, Message("destination.written"))
_BUFFER = Reason(Kind.RECEIVE_BUFFER)
_UNWRITTEN = Reason(Kind.UNINITIALISED)


class Exemptions:
    """For one rank and step. Pass the calls in execution order."""

    def __init__(self) -> None:
        self._unwritten: set[ValueKey] = set()

    def of_call(self, match: Match, rows: Sequence[Row]) -> dict[int, Reason]:
        """Why rows that do not agree are not judged, by their place among `rows`."""
        call = match.call
        if call.direction != FORWARD:
            return {}
        word = call.key.rpartition(".")[2]
        if word not in UNINITIALISED and all(row.measurement.distance == 0.0 for row in rows):
            return {}
        written = _written(match, word)
        found: dict[int, Reason] = {}
        seen_unwritten = False
        for place, row in enumerate(rows):
            if not row.distance and row.distance is not None and word not in UNINITIALISED:
                continue
            if row.is_input:
                reason = _destination(row, written)
                if not reason and row.distance != 0.0 and self._is_unwritten(row):
                    reason = _UNWRITTEN
                    seen_unwritten = True
                if reason:
                    found[place] = reason
            elif (
                word in UNINITIALISED or word == _GATHER_BUFFER or is_marked(row) or (seen_unwritten and word in VIEWS)
            ):
                found[place] = _UNWRITTEN
                self._unwritten.update(key for key in (value_key(row.target), value_key(row.golden)) if key)
        return found

    def _is_unwritten(self, row: Row) -> bool:
        if is_marked(row):
            return True
        return value_key(row.target) in self._unwritten and value_key(row.golden) in self._unwritten


def is_marked(row: Row) -> bool:
    """Whether the collector saw in both runs that some of this memory was not written yet."""
    return all(item is not None and item.get("uninitialised") is True for item in (row.target, row.golden))


def _written(match: Match, word: str) -> tuple[Reason, str]:
    """The reason for the arguments that the call only writes, and the start of their slot names."""
    key = match.call.key
    if key.startswith(("Distributed.", "MintDistributed.")) and word in RECEIVING:
        return _BUFFER, "input.0"
    if key.startswith("Ops.fsdp."):
        return _BUFFER, "input."
    if word in FILLING:
        return _DESTINATION, "input.0"
    return _DESTINATION, "input.out"


def _destination(row: Row, written: tuple[Reason, str]) -> Reason:
    if (row.target or {}).get("destination") is True or (row.golden or {}).get("destination") is True:
        return _DESTINATION
    reason, slot = written
    if row.slot == slot or (row.slot.startswith(slot) and (slot.endswith(".") or row.slot[len(slot)] == ".")):
        return reason
    return Reason()
