"""The rows as columns: each distinct text once, numbers as packed arrays that the page uses without parsing.

Two hundred thousand rows take a few megabytes, and the browser keeps one copy of them.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Callable
from typing import Any, Optional

import numpy as np

from msprobe.compare.calls import BACKWARD, FORWARD, GRADS, Call, forward_name
from msprobe.compare.measure.distance import number
from msprobe.compare.reasons import Kind, Reason
from msprobe.compare.result import UnitResult
from msprobe.compare.rows import ERROR, INTRODUCED, NOT_COMPARED, PASS, PROPAGATED, WARNING, Group, Item, Row
from msprobe.dump.collectives import is_collective
from msprobe.dump.items import true_count
from msprobe.dump.names import module_class, module_path, parse_name
from msprobe.dump.stack_frames import is_library, parse_frame
from msprobe.messages import translations
from msprobe.view.unit_groups import UnitGroups

VERDICTS = (PASS, WARNING, ERROR, NOT_COMPARED)
ROLES = ("", INTRODUCED, PROPAGATED)
KINDS = {"api": 0, "module": 1, "grads": 2}
DIRECTIONS = {FORWARD: 0, BACKWARD: 1, GRADS: 1}
COLLECTIVE = 1
GOLDEN_ONLY = 16
"""In the state of a row: only the golden run has it."""
LONGEST_PLAIN = 80
_ROW = {"call": "i4", "slot": "i4", "reason": "i4", "state": "u1", "distance": "f4", "target": "f4", "golden": "f4"}
_CALL = {
    "unit": "i4", "target": "i4", "golden": "i4", "target_module": "i4", "golden_module": "i4", "source": "i4",
    "how": "i4", "kind": "u1", "direction": "u1", "flags": "u1", "first": "i4",
    "ranks": "i4",
}  # fmt: skip
_CODES = {"i4": "i", "f4": "f", "u1": "B"}
_NONE = float("nan")
_LARGEST = 1.7e308
_VERDICT = {verdict: place for place, verdict in enumerate(VERDICTS)}
_ROLE = {role: 4 * place for place, role in enumerate(ROLES)}


def _head_of(unit: UnitResult) -> dict[str, Any]:
    """`ranks`: those of a unit whose ranks were compared as one; else null."""
    ranks = sorted({rank for ranks in unit.ranks.values() for rank in ranks}) or None
    return {"label": unit.label, "step": unit.step, "rank": unit.rank, "ranks": ranks}


def _made_by(unit: UnitResult, call: Optional[Call]) -> str:
    """The ranks that made a call: `0 1`; empty for one that only the golden run made."""
    return " ".join(map(str, unit.ranks.get(call.name, ()))) if call is not None else ""


class _Texts:
    """Each distinct text once; columns hold its number."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {"": 0}

    def __call__(self, text: Optional[str]) -> int:
        return self.known.setdefault(text or "", len(self.known))


class Table:
    """The columns of all units, and the row of each row number."""

    def __init__(self, units: list[UnitResult]) -> None:
        self.units = units
        self.groups = UnitGroups(units)
        self._texts = _Texts()
        self._reasons: dict[Reason, int] = {}
        self._sources: dict[int, int] = {}
        self._collective: dict[str, int] = {}
        self._paths: dict[str, str] = {}
        self._classes: dict[str, str] = {}
        self._plain: dict[int, list[str]] = {}
        self._rows: dict[str, array[Any]] = {name: array(_CODES[kind]) for name, kind in _ROW.items()}
        self._calls: dict[str, array[Any]] = {name: array(_CODES[kind]) for name, kind in _CALL.items()}
        for index, unit in enumerate(units):
            self._add_unit(index, unit)
        self.first: array[int] = self._calls["first"]
        self.count = len(self._rows["call"])

    def locate(self, row: int) -> tuple[int, int]:
        """The call of a row, and the row's place in it."""
        call = bisect.bisect_right(self.first, row) - 1  # calls without rows have the number of the next call's row
        return call, row - self.first[call]

    def row(self, number_of_row: int) -> Row:
        call, place = self.locate(number_of_row)
        return self.groups[call][1][1][place]

    def number_of(self, unit: int, row: Row) -> int:
        found = self.groups.locate(unit, row)
        return -1 if found is None else self.first[found[0]] + found[1]

    def head(self) -> dict[str, Any]:
        """What the page needs in addition to the packed columns."""
        return {
            "rows": self.count,
            "calls": len(self.groups),
            "verdicts": VERDICTS,
            "roles": ROLES,
            "units": [_head_of(unit) for unit in self.units],
            "classes": self._classes,
            "plain": self._plain,
            "columns": self._layout(),
            "texts": list(self._texts.known),
            "chinese": translations(reason.message for reason in self._reasons),
        }

    def _layout(self) -> list[tuple[str, str, str, int, int]]:
        """(table, column, type, first byte, length) of each packed column."""
        found, at = [], 0
        for table, types, length in (("row", _ROW, self.count), ("call", _CALL, len(self.groups))):
            for name, kind in types.items():
                found.append((table, name, kind, at, length))
                at += -(-length * int(kind[1]) // 8) * 8
        return found

    def packed(self) -> bytes:
        """The columns one after the other, each at a multiple of eight bytes."""
        parts = []
        for columns, types in ((self._rows, _ROW), (self._calls, _CALL)):
            for name, kind in types.items():
                raw = np.asarray(columns[name]).astype(f"<{kind}", copy=False).tobytes()
                parts += [raw, b"\0" * (-len(raw) % 8)]
        return b"".join(parts)

    def _add_unit(self, index: int, unit: UnitResult) -> None:
        groups = list(unit.groups)  # a unit that is equal on both sides makes its rows each time
        ours, theirs = self._modules(groups, golden=False), self._modules(groups, golden=True)
        add = {name: column.append for name, column in self._calls.items()}
        texts, before = self._texts, len(self.groups)
        self.groups.add(len(groups))
        for number_of_call, group in enumerate(groups, before):
            match, rows = group
            call = match.call
            add["unit"](index)
            add["target"](texts(_title(match.target)))
            add["golden"](texts(_title(match.golden)))
            add["target_module"](texts(ours(match.target)))
            add["golden_module"](texts(theirs(match.golden)))
            add["source"](self._source(unit, group))
            add["how"](texts(match.how))
            add["ranks"](texts(_made_by(unit, match.target)) if unit.ranks else 0)
            add["kind"](KINDS.get(call.kind, 3))
            add["direction"](DIRECTIONS.get(call.direction, 0))
            add["flags"](self._flags(call) if call.direction == FORWARD else 0)
            add["first"](len(self._rows["call"]))
            self._add_rows(number_of_call, rows)

    def _add_rows(self, call: int, rows: list[Row]) -> None:
        """Runs for every row, so it uses local names and tests common cases first."""
        columns, known = self._rows, self._texts.known
        calls, slots, reasons, states = columns["call"], columns["slot"], columns["reason"], columns["state"]
        distances, targets, goldens = columns["distance"], columns["target"], columns["golden"]
        for row in rows:
            measurement, reason = row.measurement, row.why
            slot = row.slot if row.absent != "target" else row.golden_slot
            calls.append(call)
            slots.append(known.setdefault(slot, len(known)))
            reasons.append(0 if reason.kind is Kind.NONE else self._reason(reason))
            alone = GOLDEN_ONLY if row.absent == "target" or row.match.target is None else 0
            states.append(_VERDICT[row.verdict] + _ROLE[row.role] + alone)
            distances.append(_NONE if measurement.distance is None else measurement.distance)
            ours, theirs = _figure(row.target), _figure(row.golden)
            if ours.__class__ is str or theirs.__class__ is str:
                self._plain[len(targets)] = [_shown(ours), _shown(theirs)]
            targets.append(_NONE if ours.__class__ is str else ours)
            goldens.append(_NONE if theirs.__class__ is str else theirs)

    def _flags(self, call: Call) -> int:
        found = self._collective.get(call.key)
        if found is None:
            found = self._collective[call.key] = COLLECTIVE if is_collective(call.key) else 0
        return found

    def _reason(self, reason: Reason) -> int:
        known = self._reasons.get(reason)
        if known is None:
            known = self._reasons[reason] = self._texts(str(reason))
        return known

    def _source(self, unit: UnitResult, group: Group) -> int:
        """The user's lines of a call, innermost first."""
        match = group[0]
        for call, known in zip((match.target, match.golden), unit.stacks):
            frames = known.get(call.name) or known.get(forward_name(call)) if call is not None else None
            if frames:
                found = self._sources.get(id(frames))  # calls of one line share the list
                if found is None:
                    parsed = [frame for text in frames[:64] if (frame := parse_frame(text)) is not None]
                    lines = [f"{frame.file}:{frame.line}" for frame in parsed if not is_library(frame.file)]
                    found = self._sources[id(frames)] = self._texts(" < ".join(lines[:6]))
                return found
        return 0

    def _modules(self, groups: list[Group], golden: bool) -> Callable[[Optional[Call]], str]:
        """The module path of each call; a backward call has the module of its forward call."""
        parents: dict[tuple[str, int], Optional[str]] = {}
        for match, _ in groups:
            call = match.golden if golden else match.target
            if call is None:
                continue
            if call.kind == "module":
                self._classes.setdefault(module_path(call.key), module_class(call.key))
            if call.direction == FORWARD:
                parents[call.key, call.number] = call.parent

        def path(call: Optional[Call]) -> str:
            if call is None:
                return ""
            if call.kind in ("module", "grads"):
                return module_path(call.key)
            parent = parents.get((call.key, call.number), call.parent)
            if parent is None and "/" in call.key:  # an operator of a graph: its scope is its module
                return call.key.rpartition("/")[0].replace(".", "_").replace("/", ".")
            if not parent:
                return ""
            found = self._paths.get(parent)
            if found is None:
                found = self._paths[parent] = module_path(parse_name(parent)[1])
            return found

        return path


def _title(call: Optional[Call]) -> str:
    """The prefix of the names of a call's rows."""
    if call is None:
        return ""
    return call.key if call.direction == GRADS else call.name


def _figure(item: Item) -> Any:
    """The norm of a tensor or the number of a plain value; text if it is not a finite number, and for booleans."""
    if item is None:
        return _NONE
    value = item.get("Norm") if "dtype" in item else item.get("value", item.get("type"))
    if value.__class__ is float and -_LARGEST < value < _LARGEST:
        return value
    if value is None:
        trues = true_count(item)
        return _NONE if trues is None else f"{trues[0]} true"
    if isinstance(value, bool):
        return str(value)
    found = number(value)
    if found is None or found != found or found in (float("inf"), -float("inf")):
        return str(value)
    return found


def _shown(value: Any) -> str:
    if not isinstance(value, str):
        return "" if value != value else f"{value:.6g}"
    return value if len(value) <= LONGEST_PLAIN else f"{value[:40]}…{value[-39:]}"
