"""A check as one self-contained HTML file that opens offline. Names in a dump are data: the page shows them as text."""

from __future__ import annotations

import json
from pathlib import Path

from msprobe.check.core.precheck import Report, overall
from msprobe.dump import layout

_PLACE = b"/*DATA*/null"


def write_page(report: Report, path: Path) -> None:
    before, _, after = Path(__file__).with_name("check_page.html").read_bytes().partition(_PLACE)
    several = len({one.unit for one in report.checked}) > 1
    rows = [
        [f"{one.unit} {one.call}" if several else one.call, one.forward, one.backward, one.message, overall(one)]
        for one in report.checked
    ]
    text = json.dumps({"rows": rows}, separators=(",", ":"))
    safe = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    layout.write_file(path, [before, safe.encode("utf-8", "backslashreplace"), after])
