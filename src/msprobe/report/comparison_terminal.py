"""The answer of a comparison on the terminal: ten lines, then a table of what differs."""

from __future__ import annotations

from msprobe.compare.measure import distance
from msprobe.compare.reasons import BENIGN
from msprobe.compare.result import DIFFERS, SAME, Comparison
from msprobe.compare.rows import ERROR, NOT_COMPARED, PASS, WARNING, Row
from msprobe.dump.plural import count
from msprobe.report.terminal import number, print_lines, print_table

ROWS = 20
NOTES = 8


def print_comparison(comparison: Comparison) -> None:
    print_lines(answer(comparison))
    listed = _worth_listing(comparison)
    if listed:
        print_table(["verdict", "role", "name", "target", "golden", "difference", "why"], listed, _title(comparison))


def answer(comparison: Comparison) -> list[str]:
    """The first line is the answer."""
    counts, origin = comparison.counts, comparison.origin
    lines = []
    unlike = bool(comparison.notes) and comparison.notes[0].startswith(("two ", "these look"))
    if origin is not None:
        lines.append(f"Origin: {origin.sentence}")
        place = [f"step {origin.step}" if origin.step is not None else "", f"rank {origin.rank}"]
        facts = {
            "call": origin.name,
            "module": origin.module,
            "where": ", ".join([p for p in place if p and p != "rank None"] + [origin.direction]),
            "ranks": ", ".join(map(str, origin.ranks)) + _dimension(origin.dimension) if origin.ranks else "",
            "after": origin.collective,
            "source": origin.source,
            "inside": origin.library,
        }
        lines += [f"  {name:<7} {text}" for name, text in facts.items() if text]
        lines += [f"          {line}" for line in origin.evidence]
        if origin.spread["calls"]:
            calls = origin.spread["calls"]
            later = "1 later call differs:" if calls == 1 else f"{calls} later calls differ, first"
            lines.append(f"  then    {later} {origin.spread['first'][0]}")
        if origin.next:
            lines.append(f"  next    {origin.next}")
    elif comparison.verdict == SAME:
        lines.append("Same: every compared row agrees within the rounding of its dtype.")
    elif comparison.verdict == DIFFERS:
        lines.append("Differs, but no single origin can be named" + (f": {comparison.notes[0]}." if unlike else "."))
    elif counts[PASS]:
        lines.append("Compared in part: what could be compared agrees, and the rest could not be compared (see below).")
    else:
        lines.append("Not compared: no row could be compared (see below).")
    lines.append(
        f"Rows: {sum(counts.values())}, of them {counts[PASS]} pass, {counts[WARNING]} warning, "
        f"{counts[ERROR]} error, {counts[NOT_COMPARED]} not compared"
        + (f" ({', '.join(f'{reason} {n}' for reason, n in comparison.reasons.items())})" if comparison.reasons else "")
    )
    shown = comparison.notes[:NOTES]
    lines += [f"Note: {note}" for note in shown]
    if len(comparison.notes) > len(shown):
        lines.append(f"Note: the --json report has {count(len(comparison.notes) - len(shown), 'more note')}")
    return lines


def _dimension(name: str) -> str:
    return f" ({name})" if name and name != "ranks" else ""


def _title(comparison: Comparison) -> str:
    counts = comparison.counts
    bad = counts[WARNING] + counts[ERROR]
    if bad:
        return f"The first {min(bad, ROWS)} of {bad} rows that differ, in execution order"
    return "The first rows that could not be compared"


def _worth_listing(comparison: Comparison) -> list[list[object]]:
    """The rows that prevent the answer "same". Rows that are left out for a good reason are only counted; the report
    files have them."""
    wanted = (WARNING, ERROR) if comparison.verdict == DIFFERS else (NOT_COMPARED,)
    listed: list[list[object]] = []
    units = [unit for unit in comparison.units if any(unit.tally.counts[verdict] for verdict in wanted)]
    for row in (row for unit in units for row in unit.rows()) if comparison.verdict != SAME else ():
        if row.verdict in wanted and (row.verdict != NOT_COMPARED or row.why.kind not in BENIGN):
            listed.append(
                [
                    row.verdict.replace("_", " "),
                    row.role,
                    row.name,
                    _side(row, row.target),
                    _side(row, row.golden),
                    "" if _is_choice(row.target) else number(row.distance),
                    row.reason,
                ]
            )
            if len(listed) == ROWS:
                break
    return listed


def _is_choice(item: object) -> bool:
    """Whether an argument is true or false: two of them have no numeric difference."""
    return isinstance(item, dict) and isinstance(item.get("value"), bool)


def _side(row: Row, item: object) -> str:
    if not isinstance(item, dict):
        return "-"
    if "value" in item:
        return str(item["value"])
    norm = distance.number(item.get("Norm"))
    return f"norm {norm:.6g}" if norm is not None else str(item.get("md5", item.get("type", "")))
