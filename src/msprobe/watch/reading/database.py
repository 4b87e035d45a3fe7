"""The SQLite file of one rank, opened for reading. It may come from a stranger: every value is checked."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Union

from msprobe.dump.errors import DumpError
from msprobe.dump.untrusted.regular_files import is_inside

Kind = Union[type, tuple[type, ...]]
NUMBER = (int, float)
NUMBER_OR_NULL = (int, float, type(None))


class Database:
    """Raises DumpError for whatever a damaged or hostile file does to a query."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file() or not is_inside(path, path.parent):
            raise DumpError(f"{path} is not a regular file of this directory.")
        try:
            self._connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
        except sqlite3.Error as error:
            raise self._unreadable(error) from None

    def rows(self, query: str, arguments: tuple[Any, ...], kinds: Sequence[Kind]) -> list[tuple[Any, ...]]:
        """The rows of a query, whose columns are of these kinds."""
        try:
            found = self._connection.execute(query, arguments).fetchall()
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            raise self._unreadable(error) from None
        for row in found:
            if not all(isinstance(value, kind) for value, kind in zip(row, kinds)):
                raise self.damaged("a value is of another kind than it should be")
        return found

    def hold(self, still: bool) -> None:
        """While it is held, every query sees the file as it was at the first one."""
        try:
            self._connection.execute("BEGIN" if still else "COMMIT")
        except sqlite3.Error as error:
            raise self._unreadable(error) from None

    def parse(self, text: str, kind: Kind) -> Any:
        """A JSON text in a column."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            raise self.damaged("a text is not JSON") from None
        if not isinstance(value, kind):
            raise self.damaged("a JSON text has another kind than it should have")
        return value

    def damaged(self, why: str) -> DumpError:
        return DumpError(f"{self.path} is damaged: {why}.")

    def close(self) -> None:
        self._connection.close()

    def _unreadable(self, error: Exception) -> DumpError:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        return DumpError(f"{self.path} cannot be read as the database of a watched run: {text}.")
