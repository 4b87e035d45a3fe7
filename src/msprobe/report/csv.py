"""Writes a comparison as csv, with the columns of mindstudio-probe."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from msprobe.compare.result import Comparison
from msprobe.dump import layout
from msprobe.report.comparison_columns import Columns

_ROWS_AT_ONCE = 1000


def write_csv(comparison: Comparison, path: Path) -> None:
    layout.write_file(path, _parts(Columns(comparison, as_text=True)))


def _parts(columns: Columns) -> Iterator[bytes]:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns.names)
    for number, (_, cells) in enumerate(columns.rows(), 1):
        writer.writerow(cells)
        if number % _ROWS_AT_ONCE == 0:
            yield text.getvalue().encode("utf-8", "backslashreplace")
            text.seek(0)
            text.truncate()
    yield text.getvalue().encode("utf-8", "backslashreplace")
