"""The SQLite file of one rank, opened for reading. The file is not trusted: every value is checked."""

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
    """Raises DumpError if a query fails on a damaged or hostile file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file() or not is_inside(path, path.parent):
            raise DumpError(f"{path} is not a regular file in this directory.")
        try:
            self._connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
        except sqlite3.Error as error:
            raise self._unreadable(error) from None

    def rows(self, query: str, arguments: tuple[Any, ...], kinds: Sequence[Kind]) -> list[tuple[Any, ...]]:
        """The rows of a query. The columns must have these types."""
        try:
            found = self._connection.execute(query, arguments).fetchall()
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            raise self._unreadable(error) from None
        for row in found:
            if not all(isinstance(value, kind) for value, kind in zip(row, kinds)):
                raise self.damaged("a value has the wrong type")
        return found

    def hold(self, still: bool) -> None:
        """Begins or ends a read transaction: every query in it sees the file as the first one saw it."""
        try:
            self._connection.execute("BEGIN" if still else "COMMIT")
        except sqlite3.Error as error:
            raise self._unreadable(error) from None

    def parse(self, text: str, kind: Kind) -> Any:
        """The value of a column that holds JSON."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            raise self.damaged("a value is not JSON") from None
        if not isinstance(value, kind):
            raise self.damaged("a JSON value has the wrong type")
        return value

    def damaged(self, why: str) -> DumpError:
        return DumpError(f"{self.path} is damaged: {why}.")

    def close(self) -> None:
        self._connection.close()

    def _unreadable(self, error: Exception) -> DumpError:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        return DumpError(f"{self.path} cannot be read as the database of a watched run: {text}.")
