"""The answer of a comparison on the terminal: ten lines, then a table of what differs, the origin's rows first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Optional

from msprobe.compare.measure import distance
from msprobe.compare.origin.describe import Origin
from msprobe.compare.reasons import BENIGN, Kind
from msprobe.compare.result import DIFFERS, SAME, UNLIKE, Comparison, UnitResult
from msprobe.compare.rows import ERROR, NOT_COMPARED, PASS, WARNING, Row
from msprobe.dump.items import true_count
from msprobe.dump.plural import count
from msprobe.report.screen import MARK, NAME, TEXT, Column, Screen
from msprobe.report.terminal import number

NOTES = 8
_COLUMNS = (
    Column("step/rank", drop=7),
    Column("verdict", MARK, drop=4),
    Column("role", drop=5),
    Column("name", NAME),
    Column("target", NAME, drop=2),
    Column("golden", NAME, drop=3),
    Column("difference", drop=6),
    Column("why", TEXT, drop=1),
)
_MANY_NOTES, _EVIDENCE, _THEN, _INSIDE, _CALLERS, _SIDES, _NOTES, _COUNTS = range(1, 9)
"""The lines of the answer that may be left out on a small terminal, in this order."""

_PLAIN = {
    Kind.ROUNDING.value: "gradients that are only rounding",
    Kind.COVERED.value: "settled by other rows",
    Kind.RECOMPUTED.value: "recomputed forwards",
    Kind.DESTINATION.value: "overwritten later",
}
"""Words of reasons that say too little where nothing else explains them."""

Line = tuple[int, str]


def print_comparison(comparison: Comparison, everything: bool = False, reserved: int = 0) -> None:
    """`reserved` lines follow the answer."""
    screen = Screen(everything, reserved)
    for order, line in _lines(comparison):
        screen.say([line], order)
    listed = list(islice(_worth_listing(comparison), screen.rows))
    if listed:
        several = len(comparison.units) > 1
        columns = _COLUMNS if several else _COLUMNS[1:]
        rows = [_cells(unit, row)[not several :] for unit, row in listed]
        counts = comparison.counts
        if comparison.verdict == DIFFERS:
            total = counts[WARNING] + counts[ERROR]
            screen.table(
                columns,
                rows,
                "Rows that differ, those of the origin first" if comparison.origin else "Rows that differ",
                max(total, len(rows)),
            )
        else:
            screen.table(columns, rows, "Rows that could not be compared", max(_hidden(comparison), len(rows)))
    screen.show()


def answer(comparison: Comparison) -> list[str]:
    """The first line is the answer."""
    return [line for _, line in _lines(comparison)]


def _lines(comparison: Comparison) -> Iterator[Line]:
    counts, origin = comparison.counts, comparison.origin
    unlike = bool(comparison.notes) and comparison.notes[0].id in UNLIKE
    if origin is not None:
        yield from _origin_lines(origin)
    elif comparison.verdict == SAME:
        yield 0, "Same: every compared row agrees within the rounding of its dtype."
    elif comparison.verdict == DIFFERS:
        yield 0, "Differs, but no single origin can be named" + (f": {comparison.notes[0]}." if unlike else ".")
    elif counts[PASS]:
        yield 0, "Compared in part: what could be compared agrees, and the rest could not be compared (see below)."
    else:
        yield 0, "Not compared: no row could be compared (see below)."
    reasons = ", ".join(f"{n} {_PLAIN.get(reason, reason)}" for reason, n in comparison.reasons.items())
    yield (
        _COUNTS if origin is not None else 0,
        f"Rows: {sum(counts.values())}, of them {counts[PASS]} pass, {counts[WARNING]} warning, "
        f"{counts[ERROR]} error, {counts[NOT_COMPARED]} not compared" + (f" ({reasons})" if reasons else ""),
    )
    for place, note in enumerate(comparison.notes[:NOTES]):
        yield _NOTES if place < 2 else _MANY_NOTES, f"Note: {note}"
    if len(comparison.notes) > NOTES:
        yield _MANY_NOTES, f"Note: the --json report has {count(len(comparison.notes) - NOTES, 'more note')}"


def _origin_lines(origin: Origin) -> Iterator[Line]:
    place = [] if origin.step is None else [f"step {origin.step}"]
    place += [] if origin.rank is None else [f"rank {origin.rank}"]
    about_loop = origin.kind == "training"  # such a finding has no call of its own, only one that shows it
    facts = [
        (0, "seen in" if about_loop else "call", origin.name if origin.slot or not about_loop else ""),
        (0, "module", origin.module),
        (0, "where", ", ".join([*place, origin.direction])),
        (0, "ranks", ", ".join(map(str, origin.ranks)) + _dimension(origin.dimension) if origin.ranks else ""),
        (0, "after", origin.collective),
        *_both(0, "used at" if origin.kind in _STATE else "source", origin.source, origin.golden_source),
        *_callers(origin),
        *_both(_INSIDE, "inside", origin.library, origin.golden_library),
        *_both(_INSIDE if origin.model or origin.golden_model else _SIDES, "made at", origin.made, origin.golden_made),
        *_both(_SIDES, "model", origin.model, origin.golden_model),
    ]
    yield 0, f"Origin: {origin.sentence}"
    yield from ((order, f"  {name:<7} {text}") for order, name, text in facts if text)
    for line in origin.evidence:
        yield _SIDES if line.startswith(("target: ", "golden: ")) else _EVIDENCE, f"          {line}"
    calls = origin.spread["calls"]
    if calls:
        later = "1 later call differs:" if calls == 1 else f"{calls} later calls differ, first"
        yield _THEN, f"  then    {later} {origin.spread['first'][0]}"
    if origin.next:
        yield 0, f"  next    {origin.next}"


_STATE = ("weight", "parameter", "buffer")


def _callers(origin: Origin) -> list[tuple[int, str, str]]:
    """The lines that call the function of the source line, those of the golden run where it is called differently."""
    lines = [f"at {line}" for line in origin.callers or origin.golden_callers]
    if origin.is_called_differently:
        sides = (("target", origin.callers), ("golden", origin.golden_callers))
        lines = [f"{side}: at {line}" for side, known in sides for line in known]
    return [(_CALLERS, "" if place else "called", line) for place, line in enumerate(lines)]


def _both(order: int, label: str, target: Optional[str], golden: Optional[str]) -> list[tuple[int, str, str]]:
    """A fact of the two runs: one line if it is the same in both or only the target has it, else each labelled."""
    if target == golden or not golden:
        return [(order, label, target)] if target else []
    sides = [f"{side}: {text}" for side, text in (("target", target), ("golden", golden)) if text]
    return [(order, label if not place else "", text) for place, text in enumerate(sides)]


def _dimension(name: str) -> str:
    return f" ({name})" if name and name != "ranks" else ""


def _worth_listing(comparison: Comparison) -> Iterator[tuple[UnitResult, Row]]:
    """The rows that prevent the answer "same": those of the origin, then those of its step and rank, then the others.
    Rows that are left out for a good reason are only counted; the report files have them."""
    if comparison.verdict == SAME:
        return
    wanted = (WARNING, ERROR) if comparison.verdict == DIFFERS else (NOT_COMPARED,)
    units = [unit for unit in comparison.units if any(unit.tally.counts[verdict] for verdict in wanted)]
    origin = comparison.origin
    first: list[tuple[UnitResult, Row]] = []
    if origin is not None:
        here = [unit for unit in units if unit.step == origin.step and (unit.rank == origin.rank or unit.ranks)]
        first = [(unit, row) for unit in here for row in _listable(unit, wanted) if _is_of(origin, row)]
        units = [*here, *(unit for unit in units if unit not in here)]
        yield from first
    said = {id(row) for _, row in first}
    for unit in units:
        yield from ((unit, row) for row in _listable(unit, wanted) if id(row) not in said)


def _is_of(origin: Origin, row: Row) -> bool:
    return origin.name in (row.match.call.name, row.name)


def _listable(unit: UnitResult, wanted: Iterable[str]) -> Iterator[Row]:
    for row in unit.rows():
        if row.verdict in wanted and (row.verdict != NOT_COMPARED or row.why.kind not in BENIGN):
            yield row


def _hidden(comparison: Comparison) -> int:
    benign = sum(n for reason, n in comparison.reasons.items() if reason in {kind.value for kind in BENIGN})
    return comparison.counts[NOT_COMPARED] - benign


def _cells(unit: UnitResult, row: Row) -> list[object]:
    return [
        unit.label.removesuffix("/rank"),  # one process has no number
        row.verdict.replace("_", " "),
        row.role,
        row.name,
        _side(row.target),
        _side(row.golden),
        "" if _is_choice(row.target) else number(row.distance),
        row.reason,
    ]


def _is_choice(item: object) -> bool:
    """Whether an argument is true or false: two of them have no numeric difference."""
    return isinstance(item, dict) and isinstance(item.get("value"), bool)


def _side(item: object) -> str:
    if not isinstance(item, dict):
        return "-"
    if "value" in item:
        return str(item["value"])
    trues = true_count(item)
    if trues is not None:
        return f"{trues[0]} of {trues[1]} true"
    norm = distance.number(item.get("Norm"))
    return f"norm {norm:.6g}" if norm is not None else str(item.get("md5", item.get("type", "")))
