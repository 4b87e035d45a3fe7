"""The kinds of value a key can have: each reads one JSON value, or says what is wrong with it.

A kind appends to `problems` and returns None when the value cannot be used; it never raises. Adding a key
means choosing one of these in `schema.py`; adding a kind means adding a class here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msprobe.config.errors import Problem, found, nearest, one_of, show

if TYPE_CHECKING:
    from typing import TypeGuard

MOST_NUMBERS = 1_000_000
LARGEST_NUMBER = 2**31 - 1
_RANGE = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?\Z")
_ONE_NUMBER = f'allowed: a whole number from 0 to {LARGEST_NUMBER}, "n" or "a-b"'


class Kind(Protocol):
    """`expected` is the sentence that messages and the reference share."""

    @property
    def expected(self) -> str: ...

    def parse(self, value: object, path: str, problems: list[Problem]) -> object: ...


@dataclass(frozen=True)
class Choice:
    """One word out of a few."""

    words: tuple[str, ...]

    @property
    def expected(self) -> str:
        return one_of(self.words)

    def parse(self, value: object, path: str, problems: list[Problem]) -> object:
        if isinstance(value, str) and value in self.words:
            return value
        meant = nearest(value, self.words) if isinstance(value, str) else ""
        problems.append(Problem(path, found(value), self.expected, meant))
        return None


@dataclass(frozen=True)
class Flag:
    """true or false; the words "true" and "false" where the documents of the field write them so."""

    words_too: bool = False

    @property
    def expected(self) -> str:
        return "allowed: true, false"

    def parse(self, value: object, path: str, problems: list[Problem]) -> object:
        if isinstance(value, bool):
            return value
        word = value.lower() if isinstance(value, str) else ""
        if self.words_too and value in ("true", "false"):
            return value == "true"
        problems.append(Problem(path, found(value), self.expected, word if word in ("true", "false") else ""))
        return None


@dataclass(frozen=True)
class Whole:
    """A whole number; true is not 1 and 1.0 is not 1."""

    least: int
    most: int = LARGEST_NUMBER
    also: int | None = None

    @property
    def expected(self) -> str:
        also = "" if self.also is None else f"{self.also} or "
        return f"allowed: {also}a whole number from {self.least} to {self.most}"

    def parse(self, value: object, path: str, problems: list[Problem]) -> object:
        if is_whole(value) and (self.least <= value <= self.most or value == self.also):
            return value
        problems.append(Problem(path, found(value), self.expected))
        return None


@dataclass(frozen=True)
class Numbers:
    """Ranks or steps: whole numbers, "n" or "a-b", expanded into a set."""

    @property
    def expected(self) -> str:
        return 'allowed: a list of whole numbers, "n" or "a-b", such as [0, 2, "5-8"]'

    def parse(self, value: object, path: str, problems: list[Problem]) -> object:
        if not isinstance(value, list):
            one = is_whole(value) or (isinstance(value, str) and _span(value) is not None)
            problems.append(Problem(path, found(value), self.expected, f"[{show(value)}]" if one else ""))
            return None
        spans = []
        for index, item in enumerate(value):
            span = _span(item)
            if span is None:
                problems.append(Problem(f"{path}[{index}]", found(item), _ONE_NUMBER, _turned(item)))
            else:
                spans.append(span)
        total = sum(last - first + 1 for first, last in spans)
        if total > MOST_NUMBERS:
            most = f"allowed: at most {MOST_NUMBERS} in all; leave the key out for every one"
            problems.append(Problem(path, f"found {total} numbers", most))
            return None
        if len(spans) < len(value):
            return None
        return frozenset(number for first, last in spans for number in range(first, last + 1))


@dataclass(frozen=True)
class Names:
    """A list of names; what they select is the selection's matter."""

    @property
    def expected(self) -> str:
        return 'allowed: a list of names, such as ["relu"]'

    def parse(self, value: object, path: str, problems: list[Problem]) -> object:
        if not isinstance(value, list):
            meant = f"[{show(value)}]" if isinstance(value, str) and len(value) < 60 else ""
            problems.append(Problem(path, found(value), self.expected, meant))
            return None
        bad = [index for index, item in enumerate(value) if not (isinstance(item, str) and item.strip())]
        for index in bad:
            problems.append(Problem(f"{path}[{index}]", found(value[index]), "allowed: a name that is not empty"))
        return None if bad else tuple(dict.fromkeys(value))


@dataclass(frozen=True)
class Words:
    """Some words out of a few, as a list or, when it is one, alone; `alone` goes with no other."""

    words: tuple[str, ...]
    alone: str

    @property
    def expected(self) -> str:
        others = ", ".join(show(word) for word in self.words if word != self.alone)
        return f"allowed: {show([self.alone])}, or a list of some of {others}"

    def parse(self, value: object, path: str, problems: list[Problem]) -> object:
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, list):
            problems.append(Problem(path, found(value), self.expected))
            return None
        before = len(problems)
        for index, item in enumerate(value):
            Choice(self.words).parse(item, f"{path}[{index}]", problems)
        if len(problems) > before:
            return None
        if self.alone in value and len(set(value)) > 1:
            problems.append(Problem(path, found(value), self.expected))
            return None
        return tuple(dict.fromkeys(value))


@dataclass(frozen=True)
class Summary:
    """One summary mode, or a list of statistic names (where the list may stand is a matter of `rules.py`)."""

    modes: tuple[str, ...]
    statistics: tuple[str, ...]

    @property
    def expected(self) -> str:
        return one_of(self.modes) + "; in MindSpore graph mode also a list of statistic names"

    def parse(self, value: object, path: str, problems: list[Problem]) -> object:
        if isinstance(value, list):
            before = len(problems)
            for index, item in enumerate(value):
                Choice(self.statistics).parse(item, f"{path}[{index}]", problems)
            return None if len(problems) > before else tuple(dict.fromkeys(value))
        if isinstance(value, str) and value in self.modes:
            return value
        meant = ""
        if isinstance(value, str):
            meant = f"[{show(value)}]" if value in self.statistics else nearest(value, self.modes)
        problems.append(Problem(path, found(value), self.expected, meant))
        return None


@dataclass(frozen=True)
class Text:
    """Any text that is not blank."""

    what: str

    @property
    def expected(self) -> str:
        return f"allowed: {self.what} as text"

    def parse(self, value: object, path: str, problems: list[Problem]) -> object:
        if isinstance(value, str) and value.strip() and value.isprintable():
            return value
        problems.append(Problem(path, found(value), self.expected))
        return None


@dataclass(frozen=True)
class Place:
    """A path, made absolute from the working directory; `~` is the home. Blanks and any language are welcome."""

    @property
    def expected(self) -> str:
        return "allowed: a path as text"

    def parse(self, value: object, path: str, problems: list[Problem]) -> object:
        if isinstance(value, str) and value.strip():
            if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
                problems.append(Problem(path, found(value), "allowed: a path without NUL and broken characters"))
                return None
            try:
                return Path(value).expanduser().absolute()
            except RuntimeError:
                problems.append(Problem(path, found(value), "whose home that is is not known: use an absolute path"))
                return None
            except OSError:
                problems.append(Problem(path, found(value), "the working directory is gone: use an absolute path"))
                return None
        problems.append(Problem(path, found(value), self.expected))
        return None


@dataclass(frozen=True)
class Places:
    """One path or several."""

    @property
    def expected(self) -> str:
        return "allowed: a path as text, or a list of paths"

    def parse(self, value: object, path: str, problems: list[Problem]) -> object:
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, list):
            problems.append(Problem(path, found(value), self.expected))
            return None
        several: Sequence[object] = value
        read = [Place().parse(item, f"{path}[{index}]", problems) for index, item in enumerate(several)]
        return None if None in read else tuple(read)


def is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _span(item: object) -> tuple[int, int] | None:
    if is_whole(item):
        return (item, item) if 0 <= item <= LARGEST_NUMBER else None
    match = _RANGE.match(item) if isinstance(item, str) else None
    if match is None:
        return None
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    return (first, last) if first <= last <= LARGEST_NUMBER else None


def _turned(item: object) -> str:
    match = _RANGE.match(item) if isinstance(item, str) else None
    turned = f"{match[2]}-{match[1]}" if match and match[2] is not None else ""
    return show(turned) if _span(turned) else ""
