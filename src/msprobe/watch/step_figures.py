"""The figures that one step has measured so far: one row of a table for each target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Optional

import numpy as np

from msprobe.stats.figures import COLUMNS
from msprobe.watch.targets import STATISTICS, Figures

Array = np.ndarray[Any, Any]
_THERE = len(STATISTICS)
"""The last column: 1 in a row that has figures."""


class StepFigures:
    """`table` is what the kernel writes to; `reserve` comes first, because it may replace the table."""

    def __init__(self, rows: int) -> None:
        self.table: Array = np.zeros((rows, COLUMNS))

    def reserve(self, rows: int) -> Array:
        if rows > len(self.table):
            bigger = np.zeros((max(rows, 2 * len(self.table)), COLUMNS))
            bigger[: len(self.table)] = self.table
            self.table = bigger
        return self.table

    def __contains__(self, row: int) -> bool:
        return 0 <= row < len(self.table) and bool(self.table[row, _THERE])

    def __getitem__(self, row: int) -> Figures:
        return Figures(*self.table[row, :_THERE].tolist())

    def get(self, row: int) -> Optional[Figures]:
        if row in self:
            return self[row]
        return None

    def __setitem__(self, row: int, figures: Sequence[float]) -> None:
        self.reserve(row + 1)[row] = (*figures, 1)

    def copy(self, sources: list[int], rows: list[int]) -> None:
        """Gives targets the figures of others."""
        if rows:
            table = self.reserve(max(rows) + 1)
            table[rows] = table[sources]

    def items(self) -> Iterator[tuple[int, Figures]]:
        return ((int(row), self[row]) for row in np.flatnonzero(self.table[:, _THERE]))

    def arrays(self, rows: int) -> tuple[Array, Array]:
        """The figures of the first `rows` targets (NaN if a target has none), and which targets have figures."""
        table = self.reserve(rows)[:rows]
        present = table[:, _THERE] > 0
        figures = table[:, :_THERE].copy()
        figures[~present] = np.nan
        return figures, present
