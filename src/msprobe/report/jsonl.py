"""Writes a comparison for programs: the summary on the first line, then one row per line. Strict JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from msprobe.compare.result import Comparison, row_record
from msprobe.dump import layout


def write_jsonl(comparison: Comparison, path: Path) -> None:
    layout.write_file(path, _lines(comparison))


def _lines(comparison: Comparison) -> Iterator[bytes]:
    encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
    yield encode(comparison.summary()).encode() + b"\n"
    for unit, row in comparison.rows():
        yield encode(row_record(unit, row)).encode() + b"\n"
