"""One screen of output: the answer, then tables. What does not fit on the terminal is left out in a stated order.

Tables first lose rows, then the least important lines go, then complete tables. In a table names become shorter first,
then columns go, those with the smallest `drop` first. In a file or a pipe (a log of CI) only rows go: what is missing
in a log cannot be asked for again. `everything` (--all) prints every row whole.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Optional

from msprobe.report.terminal import (
    align,
    cell_text,
    paint,
    print_lines,
    printable,
    screen_lines,
    shorten,
    shorten_end,
    shorten_name,
    shorten_path,
    terminal_width,
    text_width,
    wrap_line,
)

ROWS = 8
"""Rows of a table."""
_FEW = 3
"""Tables keep this many rows as long as there is a line to leave out."""

NAME, PATH, TEXT, MARK = "name", "path", "text", "mark"
"""What a column has: names become shorter in the middle, paths at the beginning, texts at the end; a mark colours its
row."""

_LEAST = {NAME: 34, PATH: 24, TEXT: 20}
_SHORTEN = {NAME: shorten_name, PATH: shorten_path, TEXT: shorten_end}
_COLOURS = {
    **dict.fromkeys(("error", "failed", "producer", "overflow"), "31"),
    **dict.fromkeys(("warning", "too large", "too small", "all zero", "unchanged", "out of range"), "33"),
    "pass": "32",
}


@dataclass(frozen=True)
class Column:
    """`drop`: on a narrow terminal, columns with a number go, the smallest number first; 0 always stays."""

    title: str
    kind: str = ""
    drop: int = 0


class Table:
    """`total` is the number of rows there are, if `rows` has only the first of them."""

    def __init__(
        self, columns: Sequence[Column], rows: Iterable[Sequence[object]], title: str = "", total: Optional[int] = None
    ) -> None:
        listed = [list(row) for row in rows]
        self.columns = columns
        self.title = title
        self.total = len(listed) if total is None else total
        self.cells = [[cell_text(value) for value in row] for row in listed]
        self.right = [
            bool(listed) and all(isinstance(row[place], (int, float)) for row in listed)
            for place in range(len(columns))
        ]

    def head(self, shown: int) -> list[str]:
        """The lines above the columns."""
        left_out = f"{shown} of {self.total}; --all prints all" if shown < self.total else ""
        text = ": ".join(part for part in (printable(self.title), left_out) if part)
        return ["", text] if text else [""]

    def whole(self, shown: int) -> list[str]:
        """The lines of the table as wide as its content."""
        return list(align([[column.title for column in self.columns], *self.cells[:shown]], self.right))

    def fitted(self, shown: int, width: int) -> list[str]:
        """The lines of the table on a terminal, coloured."""
        kept, widths = _fit(self.columns, self.cells[:shown], width)
        columns = [self.columns[place] for place in kept]
        cells = [
            [_SHORTEN.get(column.kind, shorten)(row[place], room) for place, column, room in zip(kept, columns, widths)]
            for row in self.cells[:shown]
        ]
        titles = [shorten_end(column.title, room) for column, room in zip(columns, widths)]
        lines = list(align([titles, *cells], [self.right[place] for place in kept]))
        marks = [place for place, column in enumerate(self.columns) if column.kind == MARK]
        painted = [_paint_row(line, [row[place] for place in marks]) for line, row in zip(lines[1:], self.cells)]
        return [paint(lines[0]), *painted]


class Screen:
    """Collects the parts of an answer and prints them with `show`. `reserved` lines follow later; a `listing` has every
    row in a file or a pipe."""

    def __init__(self, everything: bool = False, reserved: int = 0, listing: bool = False) -> None:
        self._everything = everything
        self._reserved = reserved
        self._listing = listing
        self._parts: list[tuple[int, list[str]]] = []
        """Lines that belong together, with the order in which they go: 1 first, 0 never."""
        self._tables: list[tuple[int, Table]] = []
        """Tables, with the number of parts before each."""

    @property
    def _on_terminal(self) -> bool:
        return sys.stdout.isatty()

    @property
    def rows(self) -> Optional[int]:
        """How many rows of a table can appear at most; None: all."""
        return None if self._everything or (self._listing and not self._on_terminal) else ROWS

    def say(self, lines: Iterable[str], drop: int = 0) -> None:
        """Lines that belong together. If there is too little room, those with the smallest `drop` go first, and 0
        never."""
        self._parts.append((drop, list(lines)))

    def table(
        self, columns: Sequence[Column], rows: Iterable[Sequence[object]], title: str = "", total: Optional[int] = None
    ) -> None:
        self._tables.append((len(self._parts), Table(columns, rows, title, total)))

    def show(self) -> None:
        """Prints everything. The first line comes again at the end if it has scrolled out; on a terminal it is bold."""
        room = max(screen_lines(sys.stdout) - self._reserved, 4)
        rows = [min(self.rows or len(table.cells), len(table.cells)) for _, table in self._tables]
        left_out: set[int] = set()
        lines = self._render(rows, left_out)
        while len(lines) > room and self.rows is not None and self._leave_out(rows, left_out):
            lines = self._render(rows, left_out)
        print("\n".join(lines))
        if len(lines) > room and self._parts and (self._on_terminal or not self._listing):
            print_lines(self._parts[0][1][:1])

    def _leave_out(self, rows: list[int], left_out: set[int]) -> bool:
        """Leaves one more thing out; False if there is nothing left to leave out."""
        longest = max(range(len(rows)), key=lambda place: rows[place], default=None)
        if longest is not None and rows[longest] > _FEW:
            rows[longest] -= 1
            return True
        if not self._on_terminal:
            return False
        drops = [(drop, -place) for place, (drop, _) in enumerate(self._parts) if drop and place not in left_out]
        if drops:
            left_out.add(-min(drops)[1])
            return True
        if longest is not None and rows[longest] > 1:
            rows[longest] -= 1
            return True
        last = max((place for place, count in enumerate(rows) if count), default=None)
        if last is None:
            return False
        rows[last] = 0
        return True

    def _render(self, rows: list[int], left_out: set[int]) -> list[str]:
        lines: list[str] = []
        for place in range(len(self._parts) + 1):
            for (at, table), shown in zip(self._tables, rows):
                if at == place:
                    lines += self._render_table(table, shown)
            if place < len(self._parts) and place not in left_out:
                for text in self._parts[place][1]:
                    parts = self._wrap(text)
                    lines += map(paint, parts) if self._on_terminal and not lines else parts
        if left_out:
            count = sum(len(self._parts[place][1]) for place in left_out)
            lines.append(f"… {count} line{'s' if count > 1 else ''} of the answer left out: --all")
        return lines

    def _wrap(self, text: str) -> list[str]:
        return wrap_line(text, terminal_width(), whole=self._everything) if self._on_terminal else [printable(text)]

    def _render_table(self, table: Table, shown: int) -> list[str]:
        if self._everything or not self._on_terminal:
            return [*table.head(shown), *table.whole(shown)]
        head = [part for line in table.head(shown) for part in self._wrap(line)]
        if not shown and table.cells:
            return head[1:]  # without the empty line
        return [*head, *(table.fitted(shown, terminal_width()) if table.cells else [])]


def _paint_row(line: str, marks: Iterable[str]) -> str:
    """A row in the colour of its verdict."""
    codes = (code for mark in marks for word, code in _COLOURS.items() if mark.split("  ")[-1].strip() == word)
    code = next(codes, None)
    return line if code is None else paint(line, code)


def _fit(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int) -> tuple[list[int], list[int]]:
    """The columns that stay, and their widths. An empty column goes."""
    natural = [
        max(text_width(text) for text in (column.title, *(row[place] for row in cells)))
        for place, column in enumerate(columns)
    ]
    kept = [place for place in range(len(columns)) if any(row[place] for row in cells)]
    while True:
        room = width - 2 * (len(kept) - 1)
        least = [min(natural[place], _LEAST.get(columns[place].kind, natural[place])) for place in kept]
        droppable = [place for place in kept if columns[place].drop]
        if sum(least) <= room or not droppable:
            return kept, _squeeze([natural[place] for place in kept], least, room)
        kept.remove(min(droppable, key=lambda place: columns[place].drop))


def _squeeze(natural: list[int], least: list[int], room: int) -> list[int]:
    """Widths that fit: the widest column gives first, none below its least as long as that is possible."""
    widths = list(natural)
    while sum(widths) > room:
        giving = [place for place in range(len(widths)) if widths[place] > least[place]]
        giving = giving or [place for place in range(len(widths)) if widths[place] > 1]
        if not giving:
            break
        widths[max(giving, key=lambda place: widths[place])] -= 1
    return widths
