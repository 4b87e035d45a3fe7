"""Writes the results of a check as one HTML file that works offline.

Names in a dump are data: the page shows them as text.
"""

from __future__ import annotations

import json
from pathlib import Path

from msprobe.check.core.judge import ERROR, WARNING
from msprobe.check.core.precheck import Checked, Report, overall
from msprobe.dump import layout

_PLACE = b"/*DATA*/null"


def write_page(report: Report, path: Path) -> None:
    before, _, after = Path(__file__).with_name("check_page.html").read_bytes().partition(_PLACE)
    several = len({one.unit for one in report.checked}) > 1
    others = [[one] for one in report.checked if overall(one) not in (ERROR, WARNING)]
    rows = [_row(group, several) for group in (*report.groups, *others)]
    text = json.dumps({"rows": rows}, separators=(",", ":"))
    safe = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    layout.write_file(path, [before, safe.encode("utf-8", "backslashreplace"), after])


def _row(group: list[Checked], with_unit: bool) -> list[object]:
    first = group[0]
    name = f"{first.unit} {first.call}" if with_unit else first.call
    if len(group) > 1:
        name += f" and {len(group) - 1} more"
    return [name, first.forward, first.backward, first.message, overall(first), first.where, len(group)]
