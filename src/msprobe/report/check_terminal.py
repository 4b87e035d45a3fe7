"""Prints the summary of a check on the terminal: the worst first, each with its reason."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msprobe.check.core.judge import ERROR, PASS, SKIP, WARNING
from msprobe.check.core.precheck import Checked, Report, overall
from msprobe.dump.plural import count
from msprobe.messages import beside
from msprobe.report.screen import MARK, NAME, PATH, TEXT, Column, Screen


def print_report(report: Report, everything: bool = False, reserved: int = 0) -> None:
    """`reserved` lines follow."""
    screen = Screen(everything, reserved)
    counts = [f"{report.count(status)} {word}" for status, word in _WORDS]
    screen.say([f"{count(len(report.checked), 'call')}: {', '.join(counts)}"])
    groups = report.groups
    if groups:
        several = len({one.unit for one in report.checked}) > 1
        rows = [
            [_name(group, several), group[0].forward, group[0].backward, group[0].message, group[0].where]
            for group in groups
        ]
        columns = [
            Column("API", NAME), Column("forward", MARK), Column("backward", MARK), Column("reason", TEXT),
            Column("where", PATH, drop=1),
        ]  # fmt: skip
        screen.table(columns, rows, "The worst first")
    skipped = Counter(one.message for one in report.checked if overall(one) == SKIP)
    if skipped:
        reasons = [(number, why) for why, number in skipped.most_common()]
        screen.table([Column("calls"), Column("not checked, because", TEXT)], reasons)
    if report.notes:
        screen.say(report.notes, drop=1)
    screen.show()


def as_json(report: Report) -> dict[str, Any]:
    """The counts, every finding with its reason (worst first), and the written files."""
    return {
        "calls": len(report.checked),
        **{word.replace(" ", "_"): report.count(status) for status, word in _WORDS},
        "findings": [{**vars(one), **beside(vars(one), "", "message")} for one in report.worst_first],
        "notes": report.notes,
        **beside({"notes": report.notes}, "", "notes"),
        "files": [str(path) for path in report.files],
    }


def _name(group: list[Checked], with_unit: bool) -> str:
    first = group[0]
    name = f"{first.unit} {first.call}" if with_unit else first.call
    return name if len(group) == 1 else f"{name} and {len(group) - 1} more"


_WORDS = ((PASS, "pass"), (WARNING, "warning"), (ERROR, "error"), (SKIP, "not checked"))
