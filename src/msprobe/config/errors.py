"""One error for a bad configuration. It lists every problem, so that the user corrects the file in one go."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass

_SHOWN = 80
_LISTED = 100


@dataclass(frozen=True)
class Problem:
    """One problem: where it is, what was found, what is expected, and what the user probably meant."""

    path: str
    found: str
    expected: str
    nearest: str = ""

    def __str__(self) -> str:
        meant = f"; did you mean {self.nearest}?" if self.nearest else ""
        return f"{self.path}: {self.found}; {self.expected}{meant}"


class ConfigError(ValueError):
    """A configuration that cannot be used. `problems` has all problems; the message lists up to 100."""

    def __init__(self, source: str, problems: Iterable[Problem]) -> None:
        self.source = source
        self.problems: tuple[Problem, ...] = tuple(problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        lines = [f"  - {problem}" for problem in self.problems[:_LISTED]]
        if len(self.problems) > _LISTED:
            lines.append(f"  - and {len(self.problems) - _LISTED} more")
        super().__init__("\n".join([f"{source}: {count}", *lines]))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, tuple[Problem, ...]]]:
        return type(self), (self.source, self.problems)


def show(value: object) -> str:
    """The value as JSON text, cut to fit one line and safe to print."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return f"a value of type {type(value).__name__}"
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def show_found(value: object) -> str:
    return f"found {show(value)}"


def list_allowed(values: Iterable[str]) -> str:
    return "allowed: " + ", ".join(show(value) for value in values)


def suggest(word: str, known: Iterable[str]) -> str:
    """The known word that the user probably meant, quoted, or an empty string."""
    folded = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(word[:_SHOWN].casefold(), folded, n=1, cutoff=0.6)
    return show(folded[close[0]]) if close else ""
