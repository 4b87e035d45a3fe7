"""Exports the numbers of a watched run to csv, TensorBoard event files or parquet. One file or folder per rank.

A tensor that is spread over ranks (DTensor) also gets rows with rank `global`, with its norm from those of the parts.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import numpy as np

from msprobe.dump.errors import DumpError
from msprobe.dump.untrusted.csv_cells import safe_cell
from msprobe.watch.reading.run import RankRun, Run
from msprobe.watch.reading.shards import global_norms
from msprobe.watch.store import is_absent
from msprobe.watch.targets import ALL_STATISTICS, VALUE

COLUMNS = ("rank", "step", "kind", "name", *ALL_STATISTICS)
Row = tuple[Any, ...]


def export(directory: Path, form: str, output: Path) -> list[Path]:
    """Writes one format and returns the files."""
    run = Run(directory)
    output.mkdir(mode=0o750, parents=True, exist_ok=True)
    try:
        return {"csv": _csv, "tensorboard": _tensorboard, "parquet": _parquet}[form](run, output)
    finally:
        run.close()


def rows_of(rank: RankRun) -> Iterator[Row]:
    """One row per target and step; statistics that the target does not have are None."""
    series = rank.series()
    steps, _, table = rank.table()
    places = [[COLUMNS.index(name) for name in one.statistics] for one in series]
    for step, numbers in zip(steps, table):
        absent = is_absent(numbers)
        for one, columns in zip(series, places):
            there = ~absent[one.first : one.first + len(columns)]
            if not there.any():
                continue
            row: list[Any] = [rank.rank or 0, step, one.target.kind, one.target.name, *[None] * (len(COLUMNS) - 4)]
            for value, column, known in zip(numbers[one.first :], columns, there):
                row[column] = float(value) if known else None
            yield tuple(row)


def _all_rows(run: Run) -> Iterator[tuple[str, Iterator[Row]]]:
    for rank in run.ranks:
        yield ("rank" if rank.rank is None else f"rank{rank.rank}"), rows_of(rank)
    spread = list(global_norms(run))
    if spread:
        empty = [None] * (len(COLUMNS) - 5)
        yield "global", (("global", step, kind, name, norm, *empty) for step, kind, name, norm in spread)


def _open(path: Path) -> Any:
    return os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o640), "w", newline="", encoding="utf-8")


def _csv(run: Run, output: Path) -> list[Path]:
    written = []
    for name, rows in _all_rows(run):
        path = output / f"{name}.csv"
        with _open(path) as stream:
            writer = csv.writer(stream)
            writer.writerow(COLUMNS)
            writer.writerows(["" if value is None else safe_cell(value) for value in row] for row in rows)
        written.append(path)
    return written


def _tensorboard(run: Run, output: Path) -> list[Path]:
    from msprobe.watch.writers import TensorBoardWriter

    written = []
    for rank in run.ranks:
        folder = output / "tensorboard" / ("rank" if rank.rank is None else f"rank{rank.rank}")
        writer = TensorBoardWriter(folder)
        tags = [
            (one.target.label if statistic == VALUE else f"{one.target.label}/{statistic}", one.first + offset)
            for one in rank.series()
            for offset, statistic in enumerate(one.statistics)
        ]
        steps, times, table = rank.table()
        for step, when, numbers in zip(steps, times, table):
            absent = is_absent(numbers)
            there = [(tag, column) for tag, column in tags if column < len(numbers) and not absent[column]]
            writer.write(step, {tag: float(numbers[column]) for tag, column in there}, float(when))
        writer.close()
        written.append(folder)
    return written


def _parquet(run: Run, output: Path) -> list[Path]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DumpError("--parquet needs pyarrow: pip install pyarrow.") from None
    written = []
    for name, rows in _all_rows(run):
        columns = list(zip(*rows)) or [()] * len(COLUMNS)
        arrays = {column: _typed(column, values) for column, values in zip(COLUMNS, columns)}
        path = output / f"{name}.parquet"
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o640))
        pyarrow.parquet.write_table(pyarrow.table(arrays), path)
        written.append(path)
    return written


def _typed(column: str, values: tuple[Any, ...]) -> Any:
    import pyarrow

    if column in ("rank", "kind", "name"):
        return pyarrow.array([str(value) for value in values], pyarrow.string())
    kind: Optional[Any] = pyarrow.int64() if column == "step" else pyarrow.float64()
    if column == "step":
        return pyarrow.array(np.array(values, np.int64), kind)
    return pyarrow.array(list(values), kind)
