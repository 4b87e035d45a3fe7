"""Writes a comparison as xlsx, with the columns and highlighting of mindstudio-probe.

The format is a zip of small XML files. They are written row by row, so this needs no spreadsheet library and never
holds the complete table in memory. A sheet has at most a million rows; further rows go to another sheet.
"""

from __future__ import annotations

import os
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from xml.sax.saxutils import escape

from msprobe.compare.result import Comparison
from msprobe.compare.rows import ERROR, NOT_COMPARED, WARNING, Row
from msprobe.dump import layout
from msprobe.report.comparison_columns import Columns

ROWS_A_SHEET = 1_000_000
CELL_CHARACTERS = 32_000
_PLAIN, _BOLD, _RED, _YELLOW, _GREY = range(5)
_FILL = {ERROR: _RED, WARNING: _YELLOW, NOT_COMPARED: _GREY}
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_XML = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_STYLES = (
    f'{_XML}<styleSheet xmlns="{_MAIN}"><fonts count="2"><font/><font><b/></font></fonts>'
    '<fills count="5"><fill><patternFill patternType="none"/></fill><fill><patternFill patternType="gray125"/></fill>'
    + "".join(
        f'<fill><patternFill patternType="solid"><fgColor rgb="FF{colour}"/></patternFill></fill>'
        for colour in ("FF9999", "FFF2A8", "DDDDDD")
    )
    + '</fills><borders count="1"><border/></borders><cellStyleXfs count="1"><xf/></cellStyleXfs>'
    '<cellXfs count="5"><xf/><xf fontId="1" applyFont="1"/>'
    + "".join(f'<xf fillId="{fill}" applyFill="1"/>' for fill in (2, 3, 4))
    + '</cellXfs><cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles></styleSheet>'
)


def write_xlsx(comparison: Comparison, path: Path) -> None:
    """The file appears complete or not at all."""
    columns = Columns(comparison)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        fd = layout.open_file(str(temporary), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        with os.fdopen(fd, "w+b") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as book:
            _write_book(book, columns)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _write_book(book: zipfile.ZipFile, columns: Columns) -> None:
    rows = columns.rows()
    sheets = 0
    more = True
    while more:
        sheets += 1
        with book.open(f"xl/worksheets/sheet{sheets}.xml", "w", force_zip64=True) as sheet:
            more = _write_sheet(sheet, columns.names, rows)
    numbers = range(1, sheets + 1)
    book.writestr("xl/styles.xml", _STYLES)
    book.writestr(
        "xl/workbook.xml",
        f'{_XML}<workbook xmlns="{_MAIN}" xmlns:r="{_RELATIONS}"><sheets>'
        + "".join(f'<sheet name="compare{n if n > 1 else ""}" sheetId="{n}" r:id="rId{n}"/>' for n in numbers)
        + "</sheets></workbook>",
    )
    book.writestr(
        "xl/_rels/workbook.xml.rels",
        f'{_XML}<Relationships xmlns="{_PACKAGE}/relationships">'
        + "".join(
            f'<Relationship Id="rId{n}" Type="{_RELATIONS}/worksheet" Target="worksheets/sheet{n}.xml"/>'
            for n in numbers
        )
        + f'<Relationship Id="rId0" Type="{_RELATIONS}/styles" Target="styles.xml"/></Relationships>',
    )
    book.writestr(
        "_rels/.rels",
        f'{_XML}<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="rId1" '
        f'Type="{_RELATIONS}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
    )
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    book.writestr(
        "[Content_Types].xml",
        f'{_XML}<Types xmlns="{_PACKAGE}/content-types"><Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        '<Default Extension="xml" ContentType="application/xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{kind}.sheet.main+xml"/>'
        f'<Override PartName="/xl/styles.xml" ContentType="{kind}.styles+xml"/>'
        + "".join(
            f'<Override PartName="/xl/worksheets/sheet{n}.xml" ContentType="{kind}.worksheet+xml"/>' for n in numbers
        )
        + "</Types>",
    )


def _write_sheet(sheet: IO[bytes], names: list[str], rows: Iterator[tuple[Row, list[Any]]]) -> bool:
    """Writes one sheet. Returns True if rows are left for another."""
    head = (
        f'{_XML}<worksheet xmlns="{_MAIN}"><sheetViews><sheetView workbookViewId="0"><pane ySplit="1" '
        'topLeftCell="A2" state="frozen"/></sheetView></sheetViews><sheetData>'
    )
    sheet.write((head + _row(names, _BOLD)).encode())
    more = False
    for written, (row, cells) in enumerate(rows, 1):
        sheet.write(_row(cells, _FILL.get(row.verdict, _PLAIN)).encode())
        if written == ROWS_A_SHEET:
            more = True
            break
    sheet.write(b"</sheetData></worksheet>")
    return more


def _row(cells: list[Any], style: int) -> str:
    mark = f' s="{style}"' if style else ""
    return "<row>" + "".join([_cell(cell, mark) for cell in cells]) + "</row>"


def _cell(value: Any, mark: str) -> str:
    if isinstance(value, bool):
        value = str(value)
    if isinstance(value, (int, float)):
        if abs(value) <= sys.float_info.max:
            return f"<c{mark}><v>{value!r}</v></c>"
        value = str(value) if isinstance(value, float) else f"an integer of {value.bit_length()} bits"
    if not value:
        return f"<c{mark}/>"
    text = escape(_FORBIDDEN.sub("?", str(value)[:CELL_CHARACTERS]))
    return f'<c{mark} t="inlineStr"><is><t xml:space="preserve">{text}</t></is></c>'
