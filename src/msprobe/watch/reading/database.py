"""The SQLite file of one rank, opened for reading. The file is not trusted: every value is checked.

SQLite runs what a file says: a view can be an endless query, a generated column makes a gigabyte from one byte, and a
page that points at itself makes endless rows. So the tables must be exactly those of the store, a query returns at most
what the file can hold, and it ends after a limited time. SQLite also opens the files next to it by itself: a pipe there
would make it wait forever.
"""

from __future__ import annotations

import json
import sqlite3
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Union

from msprobe.dump.errors import DumpError
from msprobe.dump.untrusted.regular_files import is_inside
from msprobe.system.memory import largest_text, size_text
from msprobe.watch.store import ALARMS_WITHOUT_MESSAGES, BESIDE, strange_table

Kind = Union[type, tuple[type, ...]]
NUMBER = (int, float)
NUMBER_OR_NULL = (int, float, type(None))
_SMALLEST_ROW = 4
"""Bytes that a row takes in the file, at least."""
_MORE = 1 << 20
"""A monitor may write so many bytes between two looks at the size of the file."""
_SECONDS, _BYTES_PER_SECOND = 10.0, 10e6
"""CPU time that a query may take: a healthy one reads a hundred times more per second."""
_INSTRUCTIONS = 1000
"""Instructions of SQLite between two looks at the clock."""


class Database:
    """Raises DumpError if a query fails on a damaged or hostile file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ends = 0.0
        if not path.is_file() or not is_inside(path, path.parent):
            raise DumpError(f"{path} is not a regular file in this directory.")
        self._most_bytes()
        try:
            self._connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
        except sqlite3.Error as error:
            raise self._unreadable(error) from None
        try:
            self._connection.set_progress_handler(self._is_late, _INSTRUCTIONS)
            self._check_tables()
        except BaseException:
            self.close()
            raise

    def _check_tables(self) -> None:
        for statement in ("PRAGMA trusted_schema = OFF", "PRAGMA cell_size_check = ON", "PRAGMA query_only = ON"):
            self.rows(statement, (), ())
        rows = self.rows("SELECT type, name, sql FROM sqlite_master", (), (str, str, (str, type(None))))
        strange = strange_table(rows)
        if strange:
            raise DumpError(f"{self.path} is not the database of a watched run: {strange}.")
        self.has_messages = any(
            name == "alarms" and " ".join(str(text).split()) != ALARMS_WITHOUT_MESSAGES for _, name, text in rows
        )

    def rows(self, query: str, arguments: tuple[Any, ...], kinds: Sequence[Kind]) -> list[tuple[Any, ...]]:
        """The rows of a query. The columns must have these types."""
        found = []
        try:
            for row in self._run(query, arguments):
                if not all(isinstance(value, kind) for value, kind in zip(row, kinds)):
                    raise self.damaged("a value has the wrong type")
                found.append(row)
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            if self._is_late():
                raise self.damaged("a query takes too long") from None
            raise self._unreadable(error) from None
        return found

    def _run(self, query: str, arguments: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        """The rows, as long as the file can hold them."""
        most = self._most_bytes()
        self._ends = time.thread_time() + _SECONDS + most / _BYTES_PER_SECOND
        if hasattr(self._connection, "setlimit"):  # since Python 3.11
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(most, 1 << 30))
        size = 0
        for row in self._connection.execute(query, arguments):
            size += _SMALLEST_ROW + sum(len(value) for value in row if isinstance(value, (str, bytes)))
            if size > most:
                raise self.damaged("a query returns more than the file can hold")
            yield row

    def _most_bytes(self) -> int:
        """The size of the file with those beside it, which must be regular files too."""
        size = _MORE
        for suffix in ("", *BESIDE):
            part = self.path.with_name(self.path.name + suffix)
            try:
                found = part.lstat() if suffix else part.stat()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise self._unreadable(error) from None
            if not stat.S_ISREG(found.st_mode):
                raise DumpError(f"{part} is not a regular file.")
            size += found.st_size
        if size > largest_text():
            raise DumpError(
                f"{self.path} has {size_text(size)}, and msprobe reads up to {size_text(largest_text())} on this "
                "machine; use one with more memory."
            )
        return size

    def _is_late(self) -> bool:
        return time.thread_time() > self._ends

    def hold(self, still: bool) -> None:
        """Begins or ends a read transaction: every query in it sees the file as the first one saw it."""
        self.rows("BEGIN" if still else "COMMIT", (), ())

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
