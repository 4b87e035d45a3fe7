"""The two csv files of a check. They are appended during the check, so that an interrupted check can be resumed.

The details of a call are written before its result: a call with a result is complete.
"""

from __future__ import annotations

import csv
import io
import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Optional

from msprobe.dump import layout
from msprobe.dump.errors import DumpError
from msprobe.dump.names import split_slot
from msprobe.dump.untrusted.csv_cells import safe_cell
from msprobe.dump.untrusted.regular_files import read_regular

RESULT = "accuracy_checking_result_"
DETAILS = "accuracy_checking_details_"
RESULT_COLUMNS = ("API Name", "Forward Test Success", "Backward Test Success", "Message")
DETAIL_COLUMNS = (
    "API Name",
    "Bench Dtype",
    "DEVICE Dtype",
    "Shape",
    "Cosine",
    "Max Abs Error",
    "Rel Error < 1/100",
    "Rel Error < 1/1000",
    "Rel Error < 1/10000",
    "Binary Error Rate",
    "Error Balance",
    "RMSE",
    "Small Value Error Rate",
    "Max Rel Error",
    "Mean Rel Error",
    "Inf/NaN Error Rate",
    "Rel Error Rate",
    "Abs Error Rate",
    "ULP Max",
    "ULP Mean",
    "ULP Share",
    "Status",
    "Message",
)
MOST_BYTES = 1 << 30


def detail_cells(row: Any) -> list[Any]:
    """The cells of one row."""
    head = [row.name, row.bench_dtype, row.device_dtype, json.dumps(row.shape)]
    found = row.metrics
    if found is None:
        return [*head, *[""] * 17, row.verdict.status, row.verdict.reason]
    return [
        *head,
        *(_figure(one) for one in (found.cosine, found.max_abs, *found.shares, found.mismatch_rate, found.balance)),
        *(_figure(one) for one in (found.rmse, found.small_errors, found.max_rel, found.mean_rel)),
        *(_figure(one) for one in (found.special_rate, found.rel_errors, found.abs_errors)),
        *(map(_figure, found.ulp) if found.ulp is not None else ("", "", "")),
        row.verdict.status,
        row.verdict.reason,
    ]


def _figure(value: float) -> str:
    return f"{value:.8g}"


class ResultFiles:
    """The files of one rank directory. `done` has the results of an earlier check that is resumed."""

    def __init__(self, directory: Path, resumed: Optional[Path] = None, stamp: Optional[str] = None) -> None:
        self.done: dict[str, list[str]] = {}
        if resumed is None:
            _make(directory)
            stamp = stamp or time.strftime("%Y%m%d%H%M%S")
            self.result, self.details = directory / f"{RESULT}{stamp}.csv", directory / f"{DETAILS}{stamp}.csv"
            self._result = _open(self.result, os.O_CREAT | os.O_EXCL)
            self._details = _open(self.details, os.O_CREAT | os.O_EXCL)
            self._append(self._result, [RESULT_COLUMNS])
            self._append(self._details, [DETAIL_COLUMNS])
            return
        self.result = resumed
        if not resumed.name.startswith(RESULT):
            raise DumpError(f"{resumed} cannot be resumed: its name does not begin with {RESULT}.")
        self.details = resumed.with_name(DETAILS + resumed.name[len(RESULT) :])
        self._resume()
        self._result, self._details = _open(self.result, 0), _open(self.details, 0)

    def _resume(self) -> None:
        self.done = {row[0]: row for row in read_csv(self.result, RESULT_COLUMNS)}
        known = read_csv(self.details, DETAIL_COLUMNS) if self.details.exists() else []
        kept = [row for row in known if split_slot(row[0])[0] in self.done]
        layout.write_file(self.details, [_text([DETAIL_COLUMNS, *kept])])
        layout.write_file(self.result, [_text([RESULT_COLUMNS, *self.done.values()])])

    def add(self, call: str, forward: str, backward: str, message: str, details: Sequence[Sequence[Any]]) -> None:
        self._append(self._details, details)
        self._append(self._result, [(call, forward, backward, message)])

    def close(self) -> None:
        os.close(self._result)
        os.close(self._details)

    def _append(self, fd: int, rows: Iterable[Sequence[Any]]) -> None:
        text = _text(rows)
        if text:
            layout.write_all(fd, text)


def read_csv(path: Path, columns: Sequence[str]) -> list[list[str]]:
    """The rows below the header; an incomplete last line is ignored. Raises DumpError if it is another kind of file."""
    try:
        content = read_regular(path, limit=MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise DumpError(f"{path} is larger than {MOST_BYTES >> 30} GiB: it is not a results file of msprobe.")
        text = content.decode("utf-8")
    except OSError as error:
        raise DumpError(f"{path} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise DumpError(f"{path} is not a csv file in UTF-8.") from None
    try:
        rows = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise DumpError(f"{path} is not a results file of msprobe: {error}.") from None
    if not rows or tuple(rows[0]) != tuple(columns):
        expected = ", ".join(columns[:3])
        raise DumpError(f"{path} is not a results file of msprobe: its first line must be {expected}, ….")
    if not text.endswith("\n"):
        rows.pop()
    return [row for row in rows[1:] if len(row) == len(columns)]


def _make(directory: Path) -> None:
    try:
        layout.make_directory(directory)
    except OSError as error:
        raise DumpError(f"{directory} cannot be created: {error.strerror or error}.") from None


def _open(path: Path, flags: int) -> int:
    try:
        return layout.open_file(str(path), os.O_WRONLY | os.O_APPEND | flags)
    except OSError as error:
        raise DumpError(f"{path} cannot be written: {error.strerror or error}.") from None


def _text(rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    for row in rows:
        writer.writerow([safe_cell(cell) for cell in row])
    return text.getvalue().encode("utf-8", "backslashreplace")


def write_table(path: Path, rows: Iterable[Sequence[Any]]) -> None:
    layout.write_file(path, [_text(rows)])
