"""Plain tables and a progress bar for the commands.

Names in a dump are untrusted: control characters are printed escaped. In a file or a pipe a table is as wide as its
content. On a terminal that is too narrow for it, each row becomes a block of lines: a name or a path is never split.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Optional, TextIO, TypeVar

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


def print_lines(lines: Iterable[str], bold: bool = True, stream: Optional[TextIO] = None) -> None:
    """Prints an answer: its first line is bold on a terminal, and long lines are broken between words."""
    stream = stream or sys.stdout
    for position, line in enumerate(map(printable, lines)):
        if not stream.isatty():
            print(line, file=stream)
            continue
        head = _LABEL.match(line)
        indent = len(head[0]) if head is not None else 2
        first, *rest = _wrap(line[indent:], max(shutil.get_terminal_size().columns - indent, 20))
        for part in (line[:indent] + first, *(" " * indent + part for part in rest)):
            print(_paint(part, _BOLD) if bold and position == 0 else part, file=stream)


def _print_to_terminal(columns: Sequence[str], cells: list[list[str]], right: list[bool]) -> None:
    width = shutil.get_terminal_size().columns
    lines = list(_align([list(columns), *cells], right))
    if max(map(_width, lines)) <= width:
        for row, line in zip([None, *cells], lines):
            print(_paint(line, _BOLD) if row is None else _paint_first(line, row[0]))
        return
    label = max(map(_width, columns))
    for row in cells:
        for position, (column, text) in enumerate(zip(columns, row)):
            if not text and position:
                continue
            head = f"{column}{' ' * (label - _width(column))}  "
            first, *rest = _wrap(text, max(width - label - 2, 20))
            print(_paint_first(f"{head}{first}", text) if not position else f"{head}{first}")
            for part in rest:
                print(" " * (label + 2) + part)
        print()


def _wrap(text: str, width: int) -> list[str]:
    """The text in parts that fit, broken between words only: a word that is too long stays one."""
    if _width(text) <= width:
        return [text]
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [text]


_LABEL = re.compile(r"  \w*:? +")  # "  source  …", "  source: …", or the indent of a continued line
_BOLD = "1"
_COLOURS = {
    **dict.fromkeys(("error", "failed", "producer", "overflow"), "31"),
    **dict.fromkeys(("warning", "too large", "too small", "all zero", "unchanged", "out of range"), "33"),
    "pass": "32",
}


def _paint(text: str, code: str) -> str:
    return text if os.environ.get("NO_COLOR") else f"\x1b[{code}m{text}\x1b[0m"


def _paint_first(line: str, cell: str) -> str:
    """A row in the colour of its verdict, which is its first cell."""
    code = next((code for word, code in _COLOURS.items() if cell.split("  ")[-1].strip() == word), None)
    return line if code is None else _paint(line, code)


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
