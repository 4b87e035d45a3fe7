"""The csv files of run_ut as rows: one row per checked output, with the status as its verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msprobe.check.core.results import DETAIL_COLUMNS, DETAILS, RESULT, RESULT_COLUMNS, read_csv
from msprobe.compare.calls import Call, Match
from msprobe.compare.measure.distance import number
from msprobe.compare.reasons import Kind, Reason
from msprobe.compare.result import UnitResult
from msprobe.compare.rows import ERROR, INTRODUCED, NOT_COMPARED, PASS, WARNING, Group, Judgement, Measurement, Row
from msprobe.dump.errors import DumpError
from msprobe.dump.names import BACKWARD, FORWARD, parse_name, split_slot
from msprobe.messages import Message
from msprobe.view.material import Answer, Material

DEPTHS = ("", "*/", "*/*/")
"""Where results are: with several ranks, run_ut writes into `step0/rank1/` of its output directory."""
_VERDICTS = {"pass": PASS, "warning": WARNING, "error": ERROR}
_STATUS = DETAIL_COLUMNS.index("Status")
_MESSAGE = DETAIL_COLUMNS.index("Message")
_DISTANCE = DETAIL_COLUMNS.index("Max Rel Error")


def is_check(path: Path) -> bool:
    return bool(_files(path))


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.name.startswith(RESULT) and path.suffix == ".csv" else []
    return sorted(found for depth in DEPTHS for found in path.glob(f"{depth}{RESULT}*.csv"))


def load_check(path: Path) -> Material:
    units = [_unit(file, path) for file in _files(path)]
    if not any(unit.groups for unit in units):
        raise DumpError(f"{path} has results of run_ut, but they contain no API yet.")
    counts = {"rows": 0, PASS: 0, WARNING: 0, ERROR: 0, NOT_COMPARED: 0}
    for unit in units:
        for row in unit.rows():
            counts["rows"] += 1
            counts[row.verdict] += 1
    answer = _answer(units)
    return Material("check", path, None, answer, units, summary=counts)


def _unit(file: Path, root: Path) -> UnitResult:
    results = {row[0]: row for row in read_csv(file, RESULT_COLUMNS)}
    details = file.with_name(DETAILS + file.name[len(RESULT) :])
    rows: dict[tuple[str, str], list[list[str]]] = {}
    for line in read_csv(details, DETAIL_COLUMNS) if details.exists() else []:
        rows.setdefault(split_slot(line[0]), []).append(line)
    groups: list[Group] = []
    for name, (_, forward, backward, message) in results.items():
        for direction, status in ((FORWARD, forward), (BACKWARD, backward)):
            lines = rows.get((name, direction), [])
            if lines or (direction == FORWARD or status in ("warning", "error")):
                groups.append(_group(f"{name}.{direction}", len(groups), lines, status, message))
    inside = file.parent != root and root.is_dir()
    label = file.parent.relative_to(root).as_posix() if inside else file.stem[len(RESULT) :]
    return UnitResult(None, None, label, groups, ({}, {}))


def _group(name: str, order: int, lines: list[list[str]], status: str, message: str) -> tuple[Match, list[Row]]:
    kind, key, count, direction = parse_name(name)
    match = Match(Call(name, kind, key, count, direction, None, order, False, {}), None, "checked", 1.0)
    found = [_row(match, name, line) for line in lines]
    if not found:
        row = Row(match, "output", "output", None, None, absent="golden")
        why = Reason(Kind.VALUES, Message("error", text=message or status))
        row.judgement = Judgement(_VERDICTS.get(status, NOT_COMPARED), 0.0, why)
        found = [row]
    for row in found:
        row.role = INTRODUCED if row.verdict in (WARNING, ERROR) else ""
    return match, found


def _row(match: Match, name: str, line: list[str]) -> Row:
    cells = dict(zip(DETAIL_COLUMNS, line))
    item: dict[str, Any] = {"type": "checked", "dtype": cells["DEVICE Dtype"], "shape": _shape(cells["Shape"])}
    item.update((key, cells[key]) for key in DETAIL_COLUMNS[4:_STATUS] if cells[key])
    slot = line[0][len(name) + 1 :] if line[0].startswith(f"{name}.") else line[0]
    row = Row(match, slot, slot, item, None, absent="golden")
    verdict = _VERDICTS.get(line[_STATUS], NOT_COMPARED)
    if verdict != PASS:  # one value near zero makes it large, though the rule of the API lets it pass
        row.measurement = Measurement(number(line[_DISTANCE]))
    text = line[_MESSAGE]
    row.judgement = Judgement(verdict, 0.0, Reason(Kind.VALUES, Message("error", text=text)) if text else Reason())
    return row


def _shape(text: str) -> list[int]:
    try:
        shape = json.loads(text)
    except ValueError:
        return []
    return shape if isinstance(shape, list) else []


def _answer(units: list[UnitResult]) -> Answer:
    calls = [(index, match, rows) for index, unit in enumerate(units) for match, rows in unit.groups]
    for wanted, id in ((ERROR, "check.fail"), (WARNING, "check.warn")):
        bad = [one for one in calls if any(row.verdict == wanted for row in one[2])]
        if bad:
            unit, match, rows = bad[0]
            row = next(row for row in rows if row.verdict == wanted)
            sentence = Message(id, bad=len(bad), number=len(calls), call=match.call.name)
            facts = [("call", match.call.name), ("evidence", row.reason), ("where", units[unit].label)]
            return Answer("found", sentence, [one for one in facts if one[1]], unit=unit, row=row)
    return Answer("clean", "", [("records", str(len(calls)))])
