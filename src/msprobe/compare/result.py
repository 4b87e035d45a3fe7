"""The result of a comparison: typed for programs, in the same form that `--json FILE` writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Optional

from msprobe.compare.measure.distance import number
from msprobe.compare.origin.describe import Origin
from msprobe.compare.origin.source import Made
from msprobe.compare.reasons import BENIGN, Kind
from msprobe.compare.rows import ERROR, NOT_COMPARED, PASS, WARNING, Group, Item, Row
from msprobe.dump.strict_json import strict
from msprobe.messages import Message, beside

SCHEMA = "msprobe/compare/1"
SAME = "same"
DIFFERS = "differs"
UNLIKE = ("note.same_run", "note.other_steps", "note.unlike_models")
"""Notes that say why no origin is named though the runs differ."""
_VERDICTS = (PASS, WARNING, ERROR, NOT_COMPARED)


@dataclass(frozen=True)
class Tally:
    """The number of rows by verdict and, for rows that were not compared, by reason; and the kinds of these reasons."""

    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    kinds: set[Kind] = field(default_factory=set)

    def add(self, other: Tally) -> None:
        self.counts.update(other.counts)
        self.reasons.update(other.reasons)
        self.kinds.update(other.kinds)


def tally_rows(groups: Sequence[Group]) -> Tally:
    """Counts rows that have been judged."""
    tally = Tally()
    for _, rows in groups:
        for row in rows:
            verdict = row.verdict
            tally.counts[verdict] += 1
            if verdict == NOT_COMPARED:
                tally.reasons[row.why.word] += 1
                tally.kinds.add(row.why.kind)
    return tally


@dataclass(frozen=True)
class UnitResult:
    """One rank in one step: its matched calls with their rows, in execution order.

    If both sides are equal byte for byte, each access to `groups` makes the rows again; `tally` has their number.
    """

    step: Optional[int]
    rank: Optional[int]
    label: str
    groups: Sequence[Group] = field(repr=False)
    stacks: tuple[Mapping[str, list[str]], Mapping[str, list[str]]] = field(repr=False)
    tally: Tally = field(default_factory=Tally, repr=False)
    ranks: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False)
    """If the ranks of a step were compared as one: the ranks of the target that made each call, by the name of the
    call."""
    made: Made = field(default=({}, {}), repr=False)

    @property
    def differs(self) -> bool:
        return bool(self.tally.counts[ERROR] or self.tally.counts[WARNING])

    def rows(self) -> Iterator[Row]:
        for _, rows in self.groups:
            yield from rows


@dataclass(frozen=True)
class Comparison:
    """The answer. `verdict` is same, differs or not_compared. `notes` are facts that the reader must know first."""

    target: Path
    golden: Path
    verdict: str
    origin: Optional[Origin]
    counts: Counter[str]
    notes: list[Message]
    units: list[UnitResult] = field(repr=False)
    reasons: Counter[str]

    @property
    def exit_code(self) -> int:
        return {SAME: 0, DIFFERS: 1}.get(self.verdict, 2)

    def rows(self) -> Iterator[tuple[UnitResult, Row]]:
        for unit in self.units:
            for row in unit.rows():
                yield unit, row

    def _repr_html_(self) -> str:
        """The answer in a notebook: a few lines, in place of pages of rows."""
        origin = self.origin
        first = f"Origin: {origin.sentence}" if origin is not None else self.verdict.replace("_", " ").capitalize()
        lines = [f"<b>{escape(first)}</b>"]
        if origin is not None:
            places = (origin.name, origin.module, f"step {origin.step}", origin.source)
            lines += [f"<code>{escape(str(place))}</code>" for place in places if place and place != "step None"]
        counts = ", ".join(f"{self.counts[name]} {name.replace('_', ' ')}" for name in _VERDICTS)
        lines.append(escape(f"Rows: {sum(self.counts.values())}, of them {counts}"))
        return "<br>".join(lines)

    def summary(self) -> dict[str, Any]:
        """What `--json` prints, and the first line of `--json FILE`."""
        origin = None
        if self.origin is not None:
            origin = asdict(self.origin)
            origin["evidence"] = list(self.origin.evidence)
            origin["next"] = self.origin.next or ""
            origin.update(beside(origin, "sentence", "evidence", "next"))
            for key in ("ranks", "dimension", "collective", "callers", "golden_callers"):
                if not origin[key]:
                    del origin[key]
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "origin": origin,
            "rows": sum(self.counts.values()),
            **{name: self.counts[name] for name in _VERDICTS},
            "not_compared_reasons": dict(self.reasons),
            "notes": self.notes,
            **beside({"notes": self.notes}, "", "notes"),
            "target": str(self.target),
            "golden": str(self.golden),
        }


def conclude(counts: Counter[str], kinds: Iterable[Kind], origin: Optional[Origin], complete: bool) -> str:
    """The verdict: differs if anything differs; else not_compared if something that matters was not compared; else
    same.

    `complete`: both dumps have every step and rank that the other has, and all their records could be read."""
    if counts[ERROR] or counts[WARNING] or origin is not None:
        return DIFFERS
    if not counts[PASS] or not complete or any(kind not in BENIGN for kind in kinds):
        return NOT_COMPARED
    return SAME


def row_id(unit: UnitResult, row: Row) -> str:
    """`step0/rank1/NAME.output.0`; a row that only the golden run has ends with `@golden`."""
    return f"{unit.label}/{row.name}" + ("@golden" if row.target_name is None else "")


def row_record(unit: UnitResult, row: Row) -> dict[str, Any]:
    """A row as plain values for JSON. `id` is the same in every comparison of the same two runs."""
    match = row.match
    record: dict[str, Any] = {
        "id": row_id(unit, row),
        "module": match.call.parent,
        "step": unit.step,
        "rank": unit.rank,
        "target": row.target_name,
        "golden": row.golden_name,
        "verdict": row.verdict,
        "reason": row.reason,
        **beside({"reason": row.reason}, "reason"),
        "role": row.role,
        "cause": row.cause,
        "distance": strict(row.distance),
        "tolerance": strict(row.tolerance),
        "match": match.how,
        "confidence": match.confidence,
        "target_item": _side(row.target),
        "golden_item": _side(row.golden),
    }
    if row.measured is not None:
        record["metrics"] = {key: strict(value) for key, value in row.measured._asdict().items()}
    return record


def _side(item: Item) -> Optional[dict[str, Any]]:
    if item is None:
        return None
    side: dict[str, Any] = {
        key: item.get(key) for key in ("type", "dtype", "shape", "value", "requires_grad", "md5") if key in item
    }
    for key in ("Max", "Min", "Mean", "Norm"):
        if key in item:
            side[key] = strict(number(item[key]))
    return {key: strict(value) for key, value in side.items()}
