"""Writes the page and its data as one HTML file that opens offline and looks like `msprobe view`.

The data are compressed: the rows as packed columns, the details of calls in blocks that the page opens on demand. The
Content-Security-Policy of the file allows only its own script and style, by their hashes. Names in a dump are data: in
the file they occur only inside the compressed text.
"""

from __future__ import annotations

import base64
import gzip
import html
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msprobe.compare import Comparison
from msprobe.compare.rows import INTRODUCED, PASS
from msprobe.dump import layout
from msprobe.view import page_files
from msprobe.view.columns import Table
from msprobe.view.comparing import of_comparison
from msprobe.view.material import Material
from msprobe.view.routes import encode
from msprobe.view.session import Contents

BLOCK = 200
MOST_DETAILED = 5_000
"""If a comparison has more calls than this, the file has the details of the first calls that do not pass."""


def export_comparison(comparison: Comparison, path: Path) -> None:
    """`compare --html`."""
    export_material(of_comparison(comparison), path)


def export_material(material: Material, path: Path) -> None:
    sides, material.sides = material.sides, []  # the file has no tensors
    try:
        contents = Contents(material)
    finally:
        material.sides = sides
    layout.write_file(path, _parts(contents))


def _parts(contents: Contents) -> Iterator[bytes]:
    page = page_files.page(offline=True)
    yield page.before.encode()
    for name, data in _data(contents):
        packed = base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()
        yield f'<script type="text/plain" class="data" data-name="{html.escape(name)}">{packed}</script>\n'.encode()
    yield page.after.encode()


def _detailed(table: Table) -> set[int]:
    """The calls whose details are in the file: all, or those that introduced a difference and the next that differ."""
    if len(table.groups) <= MOST_DETAILED:
        return set(range(len(table.groups)))
    calls = [(call, rows) for call, (_, (_, rows)) in enumerate(table.groups)]
    first = [call for call, rows in calls if any(row.role == INTRODUCED for row in rows)]
    others = [call for call, rows in calls if any(row.verdict != PASS for row in rows)]
    return set([*first, *others][:MOST_DETAILED])


def _data(contents: Contents) -> Iterator[tuple[str, bytes]]:
    """The server's responses, under the same names."""
    table = contents.table
    yield "answer", encode({**contents.answer, "version": 0, "mapping": {}, "living": False})
    yield "table", encode(table.head())
    yield "columns", table.packed()
    wanted = _detailed(table)
    block: dict[int, Any] = {}
    for call in range(len(table.groups)):
        if call in wanted:
            block[call] = contents.details.of(call)
        if call % BLOCK == BLOCK - 1 and block:
            yield f"calls{call // BLOCK}", encode(block)
            block = {}
    if block:
        yield f"calls{(len(table.groups) - 1) // BLOCK}", encode(block)
    watched = contents.material.watched
    if watched is not None:
        known = watched.trends()
        yield "trends", encode(known)
        for statistic in known["statistics"]:
            for number in range(len(known["ranks"])):
                yield f"matrix-{statistic}-{number}", encode(watched.matrix(statistic, number))
