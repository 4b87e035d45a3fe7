"""The summary of a check on the terminal: the worst first, each with its reason."""

from __future__ import annotations

from collections import Counter

from msprobe.check.core.judge import ERROR, PASS, SKIP, WARNING
from msprobe.check.core.precheck import Report, overall
from msprobe.report.terminal import print_table, printable

_SHOWN = 40


def print_report(report: Report) -> None:
    for sentence in report.notes:
        print(printable(sentence))
    found = report.worst_first
    if found:
        several = len({one.unit for one in report.checked}) > 1
        head = ["API", "forward", "backward", "reason"]
        rows = [
            [f"{one.unit} {one.call}" if several else one.call, one.forward, one.backward, one.message]
            for one in found[:_SHOWN]
        ]
        print_table(head, rows)
        if len(found) > _SHOWN:
            print(f"… and {len(found) - _SHOWN} more in the results file.")
    skipped = Counter(one.message for one in report.checked if overall(one) == SKIP)
    if skipped:
        if found:
            print()
        print_table(["calls", "not checked, because"], [(count, why) for why, count in skipped.most_common(8)])
        if len(skipped) > 8:
            print(f"… and {len(skipped) - 8} more reasons in the results file.")
    counts = [f"{report.count(status)} {word}" for status, word in _WORDS]
    print(f"\n{len(report.checked)} calls: {', '.join(counts)}")


_WORDS = ((PASS, "pass"), (WARNING, "warning"), (ERROR, "error"), (SKIP, "not checked"))
