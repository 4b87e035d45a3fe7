"""Plain tables and a progress bar for the commands.

Names in a dump are untrusted: control characters are printed escaped. In a file or a pipe a table is as wide as its
content; only a terminal limits the width.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Optional, TypeVar

T = TypeVar("T")
_SHOW_BAR_AFTER = 2.0


def printable(value: object) -> str:
    """A value as one line of text without control characters."""
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def number(value: Optional[float]) -> str:
    """A number with six digits; empty for None."""
    return "" if value is None else f"{value:.6g}"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: Optional[str] = None) -> None:
    """Prints a table to standard output. Numbers are aligned to the right."""
    listed = [list(row) for row in rows]
    right = [
        bool(listed) and all(isinstance(row[position], (int, float)) for row in listed)
        for position in range(len(columns))
    ]
    cells = [[_cell(value) for value in row] for row in listed]
    if title:
        print(f"\n{title}")
    if sys.stdout.isatty():
        _print_to_terminal(columns, cells, right)
    else:
        print("\n".join(_align([list(columns), *cells], right)))


def _print_to_terminal(columns: Sequence[str], cells: list[list[str]], right: list[bool]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column, to_the_right in zip(columns, right):
        table.add_column(Text(column), justify="right" if to_the_right else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    Console().print(table)


def _align(rows: list[list[str]], right: list[bool]) -> Iterator[str]:
    """The lines of the table. rich needs a second of CPU time for a few thousand lines."""
    sizes = [[_width(text) for text in row] for row in rows]
    widths = [max(column) for column in zip(*sizes)]
    for row, size in zip(rows, sizes):
        parts = []
        for text, taken, width, to_the_right in zip(row, size, widths, right):
            space = " " * (width - taken)
            parts.append(space + text if to_the_right else text + space)
        yield "  ".join(parts).rstrip()


def _width(text: str) -> int:
    """The width of a text on a terminal: wide characters (Chinese) take two cells."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def progress(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Yields the items; shows a bar on standard error after two seconds if that is a terminal."""
    if not sys.stderr.isatty():
        yield from items
        return
    bar: Any = None
    started = time.monotonic()
    try:
        for done, item in enumerate(items):
            if bar is None and time.monotonic() - started > _SHOW_BAR_AFTER:
                bar = _start_bar(what, total)
            if bar is not None:
                bar.update(bar.task_ids[0], completed=done)
            yield item
    finally:
        if bar is not None:
            bar.stop()


def _start_bar(what: str, total: int) -> Any:
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    bar.add_task(what, total=total)
    bar.start()
    return bar


def _cell(value: object) -> str:
    return number(value) if isinstance(value, float) else printable("" if value is None else value)
