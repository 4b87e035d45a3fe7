"""Lines, one screen of tables, and a progress bar for the commands.

Names in a dump are untrusted: control characters are printed escaped. In a file or a pipe everything is as wide as its
content. A terminal gets at most one screen: `Screen` shortens names, leaves columns and rows out, and says how to see
the rest.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Optional, TextIO

_BOLD = "1"
_LABEL = re.compile(r"  (?:used at|seen in|\w*:?) +")  # "  source  …", "  source: …", or the indent of a continued line
_LEAST = 20
"""A terminal is taken to be at least this wide."""
_PROMPT = 2
_LINES_OF_A_LOG = 24


def printable(value: object) -> str:
    """A value as one line of text without control characters."""
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def number(value: Optional[float]) -> str:
    """A number with six digits; empty for None."""
    return "" if value is None else f"{value:.6g}"


def print_lines(lines: Iterable[str], bold: bool = True, stream: Optional[TextIO] = None) -> None:
    """Prints an answer: long lines are broken between words on a terminal. Its first line is bold, and comes again at
    the end if it has scrolled out, unless `bold` is false."""
    stream = stream or sys.stdout
    on_terminal = stream.isatty()
    shown = [wrap_line(line, terminal_width()) if on_terminal else [printable(line)] for line in lines]
    if bold and shown:
        shown[0] = [paint(part, _BOLD) if on_terminal else part for part in shown[0]]
        shown += shown[:1] if sum(map(len, shown)) > screen_lines(stream) else []
    for parts in shown:
        print("\n".join(parts), file=stream)


def announce(text: str) -> None:
    """What a command does now, on stderr."""
    print_lines([f"[msprobe] {text}"], bold=False, stream=sys.stderr)
    sys.stderr.flush()


def wrap_line(line: str, width: int, whole: bool = False) -> list[str]:
    """A line of an answer in parts that fit, broken between words. A word that is too long is shortened in the middle,
    unless the names are wanted `whole`."""
    line = printable(line)
    head = _LABEL.match(line)
    indent = len(head[0]) if head is not None else 2
    room = max(width - indent, _LEAST)
    words = line[indent:]
    if not whole and any(text_width(word) > room for word in words.split(" ")):
        words = " ".join(shorten(word, room) for word in words.split(" "))
    if text_width(words) <= room:
        return [line[:indent] + words]
    first, *rest = textwrap.wrap(words, room, break_long_words=False, break_on_hyphens=False) or [words]
    return [line[:indent] + first, *(" " * indent + part for part in rest)]


def shorten(text: str, room: int) -> str:
    """A text that is too long, shortened in the middle: the beginning says what it is, the end which one."""
    if text_width(text) <= room:
        return text
    if room < 8:
        return _last(text, room)
    end = _last(text, -(-(room - 1) * 62 // 100) + 1)
    return _first(text, room - text_width(end)) + end


def shorten_end(text: str, room: int) -> str:
    """A sentence that is too long, without its end."""
    return text if text_width(text) <= room else _first(text, room - 1).rstrip() + "…"


def shorten_path(text: str, room: int) -> str:
    """`…/train.py:14`: a place in a file without what follows it, then without its first directories."""
    return text if text_width(text) <= room else _end_of_path(text.partition(" ")[0], room)


def _end_of_path(place: str, room: int) -> str:
    return place if text_width(place) <= room else _last(place, room)


_PHASES = {"forward": "fwd", "backward": "bwd", "parameters_grad": "grad"}
_LEAST_SLOT = 8


def shorten_name(name: str, room: int) -> str:
    """The name of a row in less space, as the page has it: first without what its neighbours also have (the class of a
    module, the first word), then the outer modules as one letter each. What distinguishes rows stays: numbers, the
    module, the call and its slot."""
    parts = name.split(".")
    phase = next((place for place, part in enumerate(parts) if part in _PHASES), -1)
    if text_width(name) <= room:
        return name
    if phase < 2:
        return shorten(_shorten_outer(parts, room) if name.replace(".", "_").isidentifier() else name, room)
    is_module = parts[0] in ("Module", "Cell")
    last = phase - 2 if is_module else phase - 3
    slot = ".".join(parts[phase + (2 if is_module else 1) :])

    def text() -> str:
        return ".".join(parts).replace("….", "…")

    if is_module and phase > 2:
        parts[phase - 1] = "…"
    if text_width(text()) > room:
        parts[0] = "…"
    if text_width(text()) > room:
        parts[phase] = _PHASES[parts[phase]]
    for place in range(1, last):
        if text_width(text()) > room and not parts[place].isdigit():
            parts[place] = parts[place][:1]
    made = text()
    call = made[: len(made) - len(slot)]
    if text_width(call) + _LEAST_SLOT > room:
        return shorten(made, room)
    return call + shorten(slot, room - text_width(call))


def _shorten_outer(parts: list[str], room: int) -> str:
    """The name of a module or parameter with its outer modules as one letter each, as many as needed."""
    made = list(parts)
    for place, part in enumerate(parts[:-2]):
        if text_width(".".join(made)) > room and not part.isdigit():
            made[place] = part[:1]
    return ".".join(made)


def _first(text: str, room: int) -> str:
    text = text[: max(room, 0)]
    while text and text_width(text) > room:
        text = text[:-1]
    return text


def _last(text: str, room: int) -> str:
    """The end of a text, after an ellipsis."""
    text = text[len(text) - max(room - 1, 1) :]
    while len(text) > 1 and text_width(text) > room - 1:
        text = text[1:]
    return "…" + text


def screen_lines(stream: TextIO) -> int:
    """How many lines can be seen at once: those of the terminal without the next prompt; a log is on a screen too."""
    return shutil.get_terminal_size().lines - _PROMPT if stream.isatty() else _LINES_OF_A_LOG


def terminal_width() -> int:
    return max(shutil.get_terminal_size().columns, _LEAST)


def paint(text: str, code: str = _BOLD) -> str:
    return text if os.environ.get("NO_COLOR") else f"\x1b[{code}m{text}\x1b[0m"


def text_width(text: str) -> int:
    """The width of a text on a terminal: wide characters (Chinese) take two cells."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cell_text(value: object) -> str:
    return number(value) if isinstance(value, float) else printable("" if value is None else value)


def align(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> Iterable[str]:
    """The lines of a table. rich needs a second of CPU time for a few thousand lines."""
    sizes = [[text_width(text) for text in row] for row in rows]
    widths = [max(column) for column in zip(*sizes)]
    for row, size in zip(rows, sizes):
        parts = []
        for text, taken, width, to_the_right in zip(row, size, widths, right):
            space = " " * (width - taken)
            parts.append(space + text if to_the_right else text + space)
        yield "  ".join(parts).rstrip()
