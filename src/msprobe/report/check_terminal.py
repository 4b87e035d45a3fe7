"""Prints the summary of a check on the terminal: the worst first, each with its reason."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msprobe.check.core.judge import ERROR, PASS, SKIP, WARNING
from msprobe.check.core.precheck import Checked, Report, overall
from msprobe.dump.plural import count
from msprobe.report.terminal import print_lines, print_table, printable

_SHOWN = 40


def print_report(report: Report) -> None:
    counts = [f"{report.count(status)} {word}" for status, word in _WORDS]
    print_lines([f"{count(len(report.checked), 'call')}: {', '.join(counts)}"])
    groups = report.groups
    if groups:
        several = len({one.unit for one in report.checked}) > 1
        rows = [
            [_name(group, several), group[0].forward, group[0].backward, group[0].message, group[0].where]
            for group in groups[:_SHOWN]
        ]
        print()
        print_table(["API", "forward", "backward", "reason", "where"], rows)
        if len(groups) > _SHOWN:
            print(f"… and {len(groups) - _SHOWN} more in the results file.")
    skipped = Counter(one.message for one in report.checked if overall(one) == SKIP)
    if skipped:
        print()
        print_table(["calls", "not checked, because"], [(count, why) for why, count in skipped.most_common(8)])
        if len(skipped) > 8:
            print(f"… and {count(len(skipped) - 8, 'more reason')} in the results file.")
    for sentence in report.notes:
        print(printable(sentence))


def as_json(report: Report) -> dict[str, Any]:
    """The counts, every finding with its reason (worst first), and the written files."""
    return {
        "calls": len(report.checked),
        **{word.replace(" ", "_"): report.count(status) for status, word in _WORDS},
        "findings": [vars(one) for one in report.worst_first],
        "notes": report.notes,
        "files": [str(path) for path in report.files],
    }


def _name(group: list[Checked], with_unit: bool) -> str:
    first = group[0]
    name = f"{first.unit} {first.call}" if with_unit else first.call
    return name if len(group) == 1 else f"{name} and {len(group) - 1} more"


_WORDS = ((PASS, "pass"), (WARNING, "warning"), (ERROR, "error"), (SKIP, "not checked"))
