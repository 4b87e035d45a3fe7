"""Saves one tensor: its row of statistic.csv, its file, or a sample of it.

One write call appends each row: a killed run leaves only complete rows.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from msprobe.dump.errors import DumpError
from msprobe.dump.tensor_files import npy_file
from msprobe.graphdump.dumping.dump_settings import CATEGORIES
from msprobe.graphdump.files.datatypes import find_type, mindspore_token
from msprobe.graphdump.files.directory import STATISTICS
from msprobe.graphdump.files.names import LONGEST, MAPPING, TensorName, parse_tensor, raw_name, shorten
from msprobe.stats import measure_array

HEAD = ("Op Type", "Op Name", "Task ID", "Stream ID", "Timestamp", "IO", "Slot", "Data Size", "Data Type", "Shape")
FILE_MODE, DIRECTORY_MODE = 0o640, 0o750


class Saver:
    """The files of one iteration's directory."""

    def __init__(self, directory: Path, categories: tuple[str, ...], raw: bool = False) -> None:
        """`raw`: write tensors as raw bytes (.bin) instead of .npy."""
        make_directory(directory)
        self.directory = directory
        self._raw = raw
        self._categories = categories
        if categories:
            self._append(STATISTICS, [[*HEAD, *(CATEGORIES[category] for category in categories)]])

    def row(self, name: TensorName, array: npt.NDArray[Any]) -> None:
        operator = name.operator
        shape = "(" + ",".join(map(str, array.shape)) + ")"
        head = [operator.type, operator.name, operator.task, operator.stream, operator.timestamp, name.io, name.slot]
        dtype = name.dtype or array.dtype.name
        self._append(
            STATISTICS, [[*head, array.nbytes, dtype, shape, *map(str, statistics_of(array, self._categories))]]
        )

    def keep(self, path: Path, file: str, original: str) -> None:
        """Moves a finished file into the dump. `original` is its full name if `file` is a short name for it."""
        path.rename(self.directory / file)
        self._map(file, original)

    def write(self, file: str, original: str, array: npt.NDArray[Any]) -> None:
        """Writes a new file, in a type that numpy can read. The file gets its name when it is complete.

        `original` is the full name of the tensor; `file` is the same, or MindSpore's short name for it."""
        if self._raw:
            self._write_raw(original, array)
            return
        row = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
        self._write_parts(file, original, npy_file.encode(row.dtype.name, row.shape, row.tobytes()))

    def _write_raw(self, original: str, array: npt.NDArray[Any]) -> None:
        parsed, kind = parse_tensor(original), find_type(array.dtype.name)
        if parsed is None or kind is None:
            raise DumpError(f"Cannot save {original} as raw bytes: the type {array.dtype} is not supported.")
        name = raw_name(parsed, array.shape, mindspore_token(kind))
        self._write_parts(name if len(name) <= LONGEST else shorten(name), name, [array.tobytes()])

    def _write_parts(self, file: str, original: str, parts: Iterable[Any]) -> None:
        unfinished = self.directory / f".{os.getpid()}.part"
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE), "wb") as stream:  # noqa: PTH123
            for part in parts:
                stream.write(part)
        unfinished.rename(self.directory / file)
        self._map(file, original)

    def _map(self, file: str, original: str) -> None:
        if original != file:
            self._append(MAPPING, [[Path(file).stem, original]])

    def _append(self, file: str, rows: list[list[Any]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        descriptor = os.open(self.directory / file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
        try:
            os.write(descriptor, text.getvalue().encode())
        finally:
            os.close(descriptor)


def make_directory(directory: Path) -> None:
    """Creates the directory and its parents, none readable by others."""
    for one in (*reversed(directory.parents), directory):
        if not one.is_dir():
            one.mkdir(mode=DIRECTORY_MODE, exist_ok=True)


def statistics_of(array: npt.NDArray[Any], categories: tuple[str, ...]) -> list[object]:
    """The statistics in the given order; empty text for one that this tensor does not have."""
    if array.dtype.kind == "c":
        return ["" if category not in ("count", "md5") else _special(array, category) for category in categories]
    figures = measure_array(array)
    known = {
        "max": figures.max,
        "min": figures.min,
        "avg": figures.mean,
        "l2norm": _norm(array) if array.dtype.kind == "b" else figures.norm,
        "count": figures.count,
        "nan count": figures.nan,
        "positive inf count": figures.posinf,
        "negative inf count": figures.neginf,
        "zero count": figures.zero,
    }
    values = [known[category] if category in known else _special(array, category) for category in categories]
    return ["" if value is None else value for value in values]


def _norm(array: npt.NDArray[Any]) -> float:
    return math.sqrt(int(np.count_nonzero(array)))


def _special(array: npt.NDArray[Any], category: str) -> object:
    if category == "md5":
        return hashlib.md5(np.ascontiguousarray(array).tobytes(), usedforsecurity=False).hexdigest()
    if category == "count":
        return array.size
    wide = array.astype(np.float32) if array.dtype.kind == "V" or array.dtype.name == "bfloat16" else array
    if category == "negative zero count":
        return int(np.count_nonzero(wide < 0))
    return int(np.count_nonzero(wide > 0))


def sample(array: npt.NDArray[Any], number: int) -> npt.NDArray[Any]:
    """At most `number` elements of the flat tensor, evenly spaced, starting with the first."""
    flat: npt.NDArray[Any] = array.reshape(-1)
    if flat.size <= number:
        return flat
    chosen: npt.NDArray[Any] = flat[np.arange(number, dtype=np.int64) * flat.size // number]
    return chosen
