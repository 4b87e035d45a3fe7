"""The kinds of value that a key can have. Each kind reads one JSON value or reports what is wrong with it.

`parse` never raises: it adds to `problems` and returns None when it cannot use the value. To add a key, choose a
kind in `schema.py`. To add a kind, add a class here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from msprobe.config.errors import Problem, list_allowed, show, show_found, suggest

if TYPE_CHECKING:
    from typing import TypeGuard

MOST_NUMBERS = 1_000_000
LARGEST_NUMBER = 2**31 - 1
_NAME_REGEX = re.compile(r"name-regex\((.*)\)", re.DOTALL)
_RANGE = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?\Z")
_NUMBER_OR_RANGE = f'allowed: an integer from 0 to {LARGEST_NUMBER}, "n" or "a-b"'


class Kind(Protocol):
    """`expected` says which values are allowed: in error messages and in the reference."""

    @property
    def expected(self) -> str: ...

    def parse(self, value: object, path: str, problems: list[Problem]) -> object: ...


def refuse(problems: list[Problem], path: str, value: object, expected: str, meant: str = "") -> None:
    """Adds the problem of a value that cannot be used."""
    problems.append(Problem(path, show_found(value), expected, meant))


def accept_if(valid: bool, value: object, path: str, problems: list[Problem], expected: str) -> object:
    """The value if it is valid; otherwise adds a problem and returns None."""
    if valid:
        return value
    refuse(problems, path, value, expected)
    return None


@dataclass(frozen=True)
class Choice:
    """One word from a list. `elsewhere` has words of mindstudio-probe, with what to use in their place."""

    words: tuple[str, ...]
    elsewhere: tuple[tuple[str, str], ...] = ()

    @property
    def expected(self) -> str:
        return list_allowed(self.words)

    def parse(self, value: object, path: str, problems: list[Problem]) -> object:
        if isinstance(value, str) and value in self.words:
            return value
        for word, remedy in self.elsewhere:
            if value == word:
                problems.append(Problem(path, f"msprobe has no {path} {show(word)} of mindstudio-probe", remedy))
                return None
        meant = suggest(value, self.words) if isinstance(value, str) else ""
        refuse(problems, path, value, self.expected, meant)
        return None


@dataclass(frozen=True)
class Formats:
    """The low-precision formats whose damage is recorded."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Precision:
    """One word from a list, or an object with the names of formats."""

    words: tuple[str, ...]
    formats: tuple[str, ...]

    @property
    def expected(self) -> str:
        return f'{list_allowed(self.words)}, or {{"formats": ["nvfp4", ...]}}'

    def parse(self, value: object, path: str, problems: list[Problem]) -> object:
        if not isinstance(value, dict):
            known = isinstance(value, str) and value in self.words
            if not known:
                meant = suggest(value, self.words) if isinstance(value, str) else ""
                refuse(problems, path, value, self.expected, meant)
            return value if known else None
        names = value.get("formats")
        if set(value) != {"formats"} or not isinstance(names, list) or not names:
            refuse(problems, path, value, self.expected)
            return None
        words = parse_words(self.formats, names, f"{path}.formats", problems)
        return None if words is None else Formats(tuple(map(str, words)))


@dataclass(frozen=True)
class Flag:
    """true or false. `words_too` also allows the strings "true" and "false", as in mindstudio-probe's files."""

    words_too: bool = False
    expected = "allowed: true, false"

    def parse(self, value: object, path: str, problems: list[Problem]) -> object:
        if isinstance(value, bool):
            return value
        if self.words_too and value in ("true", "false"):
            return value == "true"
        word = value.lower() if isinstance(value, str) else ""
        refuse(problems, path, value, self.expected, word if word in ("true", "false") else "")
        return None


@dataclass(frozen=True)
class Integer:
    """An integer from `least` to `most`, or `also`. true is not 1 and 1.0 is not 1."""

    least: int
    most: int = LARGEST_NUMBER
    also: int | None = None

    @property
    def expected(self) -> str:
        also = "" if self.also is None else f"{self.also} or "
        return f"allowed: {also}an integer from {self.least} to {self.most}"

    def parse(self, value: object, path: str, problems: list[Problem]) -> object:
        valid = is_integer(value) and (self.least <= value <= self.most or value == self.also)
        return accept_if(valid, value, path, problems, self.expected)


@dataclass(frozen=True)
class Numbers:
    """Ranks or steps: integers, "n" or "a-b". The result is the set of all numbers."""

    expected = 'allowed: a list of integers, "n" or "a-b", such as [0, 2, "5-8"]'

    def parse(self, value: object, path: str, problems: list[Problem]) -> object:
        if not isinstance(value, list):
            single = is_integer(value) or (isinstance(value, str) and _span(value) is not None)
            refuse(problems, path, value, self.expected, f"[{show(value)}]" if single else "")
            return None
        spans = []
        for index, item in enumerate(value):
            span = _span(item)
            if span is None:
                refuse(problems, f"{path}[{index}]", item, _NUMBER_OR_RANGE, _swap_ends(item))
            else:
                spans.append(span)
        total = sum(last - first + 1 for first, last in spans)
        if total > MOST_NUMBERS:
            most = f"allowed: at most {MOST_NUMBERS} in total; leave the key out to select all"
            problems.append(Problem(path, f"found {total} numbers", most))
            return None
        if len(spans) < len(value):
            return None
        return frozenset(number for first, last in spans for number in range(first, last + 1))


@dataclass(frozen=True)
class Names:
    """A list of names or `name-regex(...)`. The selection decides what they match. With `ends`, the names are the ends
    of a range, which may be the same call."""

    ends: bool = False
    expected: ClassVar[str] = 'allowed: a list of names, such as ["relu"]'

    def parse(self, value: object, path: str, problems: list[Problem]) -> object:
        if not isinstance(value, list):
            meant = f"[{show(value)}]" if isinstance(value, str) and len(value) < 60 else ""
            refuse(problems, path, value, self.expected, meant)
            return None
        bad = [index for index, item in enumerate(value) if not (isinstance(item, str) and item.strip())]
        for index in bad:
            refuse(problems, f"{path}[{index}]", value[index], "allowed: a name that is not empty")
        if bad:
            return None
        before = len(problems)
        for index, item in enumerate(value):
            error = _regex_error(item)
            if error:
                refuse(problems, f"{path}[{index}]", item, f"not a regular expression: {error}")
        if len(problems) > before:
            return None
        return tuple(value) if self.ends else tuple(dict.fromkeys(value))


@dataclass(frozen=True)
class Words:
    """Several words from a list; a single word needs no list. `exclusive` cannot be combined with another word."""

    words: tuple[str, ...]
    exclusive: str

    @property
    def expected(self) -> str:
        others = ", ".join(show(word) for word in self.words if word != self.exclusive)
        return f"allowed: {show([self.exclusive])}, or a list of some of {others}"

    def parse(self, value: object, path: str, problems: list[Problem]) -> object:
        words = [value] if isinstance(value, str) else value
        if not isinstance(words, list):
            refuse(problems, path, words, self.expected)
            return None
        parsed = parse_words(self.words, words, path, problems)
        if parsed is not None and self.exclusive in parsed and len(parsed) > 1:
            refuse(problems, path, words, self.expected)
            return None
        return parsed


@dataclass(frozen=True)
class Summary:
    """A summary mode, or a list of statistic names. `rules.py` checks where a list is allowed."""

    modes: tuple[str, ...]
    statistics: tuple[str, ...]

    @property
    def expected(self) -> str:
        return list_allowed(self.modes) + "; in MindSpore graph mode also a list of statistic names"

    def parse(self, value: object, path: str, problems: list[Problem]) -> object:
        if isinstance(value, list):
            return parse_words(self.statistics, value, path, problems)
        if isinstance(value, str) and value in self.modes:
            return value
        meant = ""
        if isinstance(value, str):
            meant = f"[{show(value)}]" if value in self.statistics else suggest(value, self.modes)
        refuse(problems, path, value, self.expected, meant)
        return None


@dataclass(frozen=True)
class Text:
    """Any text that is not blank."""

    what: str

    @property
    def expected(self) -> str:
        return f"allowed: {self.what} as text"

    def parse(self, value: object, path: str, problems: list[Problem]) -> object:
        valid = isinstance(value, str) and bool(value.strip()) and value.isprintable()
        return accept_if(valid, value, path, problems, self.expected)


_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\")


@dataclass(frozen=True)
class FilePath:
    """A path. A relative path starts at the working directory; `~` is the home directory."""

    expected = "allowed: a path as text"

    def parse(self, value: object, path: str, problems: list[Problem]) -> object:
        if not isinstance(value, str) or not value.strip():
            refuse(problems, path, value, self.expected)
        elif "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
            refuse(problems, path, value, "allowed: a path without NUL or broken characters")
        elif os.sep == "/" and _WINDOWS.match(value):
            refuse(problems, path, value, "this is a path of Windows; allowed: a path of this system, such as /home/me")
        else:
            try:
                return Path(value).expanduser().absolute()
            except RuntimeError:
                refuse(problems, path, value, "cannot expand ~: unknown user; use an absolute path")
            except OSError:
                refuse(problems, path, value, "the working directory no longer exists; use an absolute path")
        return None


@dataclass(frozen=True)
class FilePaths:
    """One path or a list of paths."""

    expected = "allowed: a path as text, or a list of paths"

    def parse(self, value: object, path: str, problems: list[Problem]) -> object:
        paths = [value] if isinstance(value, str) else value
        if not isinstance(paths, list):
            refuse(problems, path, paths, self.expected)
            return None
        parsed = [FilePath().parse(item, f"{path}[{index}]", problems) for index, item in enumerate(paths)]
        return None if None in parsed else tuple(parsed)


def parse_words(
    allowed: tuple[str, ...], words: Sequence[object], path: str, problems: list[Problem]
) -> tuple[object, ...] | None:
    """The words without repetitions. Reports each word that is not allowed."""
    before = len(problems)
    for index, word in enumerate(words):
        Choice(allowed).parse(word, f"{path}[{index}]", problems)
    return None if len(problems) > before else tuple(dict.fromkeys(words))


def name_pattern(entry: str) -> str | None:
    """The regular expression in an entry `name-regex(...)`; None for a plain name."""
    written = _NAME_REGEX.fullmatch(entry)
    return written[1] if written else None


def _regex_error(entry: str) -> str:
    pattern = name_pattern(entry)
    try:
        re.compile("" if pattern is None else pattern)
    except re.error as error:
        return str(error)
    return ""


def is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _span(item: object) -> tuple[int, int] | None:
    if is_integer(item):
        return (item, item) if 0 <= item <= LARGEST_NUMBER else None
    match = _RANGE.match(item) if isinstance(item, str) else None
    if match is None:
        return None
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    return (first, last) if first <= last <= LARGEST_NUMBER else None


def _swap_ends(item: object) -> str:
    """The range "3-7" where "7-3" was written."""
    match = _RANGE.match(item) if isinstance(item, str) else None
    swapped = f"{match[2]}-{match[1]}" if match and match[2] is not None else ""
    return show(swapped) if _span(swapped) else ""
