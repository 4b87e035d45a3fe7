"""The database of one rank: SQLite with a write-ahead log, one transaction per step.

The numbers of a step are one row: a block of float64, 8 bytes per number. New columns are added at the end only. So
writing a step is one INSERT, however many targets there are. A process that is killed loses no step whose `write` has
returned. `ABSENT` marks a target without numbers in a step: a NaN with bits that no computation produces.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np

from msprobe.messages import Message
from msprobe.watch.alarms.alarm import Alarm
from msprobe.watch.targets import Target

FORMAT = 1
ENDED = "ended"
"""The key of the time at which the run ended, in the table meta."""
ABSENT_BITS = 0x7FF8_0000_0000_A85E
ABSENT = np.array([ABSENT_BITS], np.uint64).view(np.float64)
_STATEMENTS = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID",
    "CREATE TABLE targets (id INTEGER PRIMARY KEY, kind TEXT, name TEXT, position INTEGER, shape TEXT, dtype TEXT, "
    "shard TEXT, first INTEGER, statistics TEXT)",
    "CREATE TABLE steps (step INTEGER PRIMARY KEY, time REAL, numbers BLOB)",
    "CREATE TABLE alarms (id INTEGER PRIMARY KEY, step INTEGER, rule TEXT, kind TEXT, name TEXT, position INTEGER, "
    "sentence TEXT, value REAL, usual REAL, around TEXT, rank INTEGER, message TEXT)",
)
TABLES = {statement.split()[2]: statement for statement in _STATEMENTS}
"""The statement that makes each table. Readers refuse a file with others."""
ALARMS_WITHOUT_MESSAGES = TABLES["alarms"].replace(", message TEXT)", ")")
"""The table of an older msprobe, which stored the English text only."""
BESIDE = ("-journal", "-wal", "-shm")
"""The files that SQLite opens next to a database."""
_CHECK_SIZE_EVERY = 64
_NEAR = 16
"""Steps before and after an alarm that thinning keeps."""
_KEPT_ALARMS = 256


def file_name(rank: Optional[int]) -> str:
    return "watch.sqlite" if rank is None else f"watch_rank{rank}.sqlite"


def strange_table(rows: Iterable[tuple[Any, ...]]) -> str:
    """What a file has that a store does not make, or lacks; empty if there is nothing. `rows` are the type, the name
    and the statement of each table, view, index and trigger. Views, triggers and generated columns are programs."""
    found = set()
    for kind, name, text in rows:
        written = " ".join(str(text).split())
        older = name == "alarms" and written == ALARMS_WITHOUT_MESSAGES
        if kind != "table" or name not in TABLES or (written != TABLES[name] and not older):
            return f"the {str(kind)[:20]} {str(name)[:60]!r} is not one of its tables"
        found.add(name)
    return next((f"it has no table {name!r}" for name in TABLES if name not in found), "")


def is_absent(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    absent: np.ndarray[Any, Any] = numbers.view(np.uint64) == ABSENT_BITS
    return absent


class Store:
    """Writes the database of one rank."""

    def __init__(self, path: Path, meta: Mapping[str, Any], largest_bytes: int, keep_before: Optional[int]) -> None:
        """`keep_before`: a run that resumes at this step keeps the earlier steps of the file; None: a new file."""
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        if keep_before is None or not os.path.lexists(path):
            _set_aside(path)
        is_new = not os.path.lexists(path)
        if is_new:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640))
        _check_files(path)
        self.path = path
        self._largest = largest_bytes
        self._written = 0
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        # One cursor for all: a connection remembers each cursor it made, up to 200, and execute() makes one each time.
        self._database = self._connection.cursor()
        self._database.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA cache_size=-2000;")
        self._columns = 0
        self._first: dict[tuple[str, str], int] = {}
        if is_new:
            self._database.executescript(";".join(TABLES.values()))
        else:
            self._resume(keep_before or 0)
        self._database.execute("DELETE FROM meta WHERE key = ?", (ENDED,))
        rows = [(key, json.dumps(value)) for key, value in {"format": FORMAT, **meta}.items()]
        self._database.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)

    def _resume(self, step: int) -> None:
        run = self._database.execute
        strange = strange_table(run("SELECT type, name, sql FROM sqlite_master"))
        if strange:
            raise sqlite3.DatabaseError(f"{self.path} is not the database of a watched run: {strange}")
        if "message" not in [row[1] for row in run("PRAGMA table_info(alarms)")]:
            run("ALTER TABLE alarms ADD COLUMN message TEXT")
        run("DELETE FROM steps WHERE step >= ?", (step,))
        run("DELETE FROM alarms WHERE step >= ?", (step,))
        for kind, name, first, statistics in run("SELECT kind, name, first, statistics FROM targets").fetchall():
            self._first[kind, name] = first
            self._columns = max(self._columns, first + len(statistics.split(",")))

    @property
    def columns(self) -> int:
        return self._columns

    def add(self, targets: Iterable[tuple[Target, Sequence[str]]]) -> list[int]:
        """The first column of each target; new ones get columns at the end."""
        added = []
        found = []
        for target, statistics in targets:
            key = (target.kind, target.name)
            if key not in self._first:
                self._first[key] = self._columns
                shape = json.dumps(list(target.shape))
                described = (target.kind, target.name, target.position, shape, target.dtype, target.shard)
                added.append((*described, self._columns, ",".join(statistics)))
                self._columns += len(statistics)
            found.append(self._first[key])
        if added:
            self._database.execute("BEGIN")
            self._database.executemany("INSERT INTO targets VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)", added)
            self._database.execute("COMMIT")
        return found

    def write(self, step: int, numbers: np.ndarray[Any, Any], alarms: Sequence[Alarm] = ()) -> None:
        """Writes one step with its alarms in one transaction."""
        run = self._database.execute
        run("BEGIN")
        run("INSERT OR REPLACE INTO steps VALUES (?, ?, ?)", (step, time.time(), numbers.tobytes()))
        if alarms:
            self._insert(alarms)
        run("COMMIT")
        self._written += 1
        if self._written % _CHECK_SIZE_EVERY == 0:
            self._thin()

    def add_alarms(self, alarms: Sequence[Alarm]) -> None:
        """Writes alarms that were found after their step was written."""
        self._database.execute("BEGIN")
        self._insert(alarms)
        self._database.execute("COMMIT")

    def _insert(self, alarms: Sequence[Alarm]) -> None:
        rows = []
        for alarm in alarms:
            where = (alarm.step, alarm.rule, alarm.kind, alarm.name, alarm.position, alarm.sentence)
            numbers = (_finite(alarm.value), _finite(alarm.usual), json.dumps(alarm.around))
            message = json.dumps(alarm.sentence.as_json()) if isinstance(alarm.sentence, Message) else None
            rows.append((*where, *numbers, alarm.rank, message))
        self._database.executemany("INSERT INTO alarms VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def _thin(self) -> None:
        """If the file is too large, deletes every second step of the older half, except steps near an alarm."""
        run = self._database.execute
        while self._used_bytes() > self._largest:
            (count,) = run("SELECT count(*) FROM steps").fetchone()
            (middle,) = run("SELECT step FROM steps ORDER BY step LIMIT 1 OFFSET ?", (count // 2,)).fetchone()
            alarmed = run("SELECT DISTINCT step FROM alarms ORDER BY step LIMIT ?", (_KEPT_ALARMS,)).fetchall()
            kept = {near for (step,) in alarmed for near in range(step - _NEAR, step + _NEAR + 1)}
            rows = run("SELECT step FROM steps WHERE step < ? ORDER BY step", (middle,)).fetchall()
            old = [step for (step,) in rows]
            gone = [(step,) for step in old[1::2] if step not in kept]
            if not gone:  # only steps near alarms are left in the older half
                gone = [(step,) for step in old[1::2]]
            if not gone:
                return
            run("BEGIN")
            self._database.executemany("DELETE FROM steps WHERE step = ?", gone)
            run("COMMIT")

    def _used_bytes(self) -> int:
        size, pages, free = (
            self._database.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_size", "page_count", "freelist_count")
        )
        return int(size * (pages - free))

    def close(self) -> None:
        """Writes that the run has ended. A run that is killed does not: its last step tells how old it is."""
        try:
            self._database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (ENDED, json.dumps(time.time())))
        finally:
            self._connection.close()


def _finite(value: float) -> Optional[float]:
    """SQLite has no NaN: it stores NULL."""
    return None if value != value else value


def _files(path: Path) -> list[Path]:
    """The database and the files beside it that exist, also links that lead nowhere."""
    parts = [path.with_name(path.name + suffix) for suffix in ("", *BESIDE)]
    return [part for part in parts if os.path.lexists(part)]


def _set_aside(path: Path) -> None:
    """Moves what is in the place of the database to a directory `old-…`: an earlier run, or what somebody put there."""
    parts = _files(path)
    if not parts:
        return
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(parts[0].lstat().st_mtime))
    folder = path.parent / f"old-{stamp}"
    folder.mkdir(mode=0o750, exist_ok=True)
    for part in parts:
        part.rename(folder / part.name)


def _check_files(path: Path) -> None:
    """SQLite would follow a link to a file of somebody else, and wait at a pipe."""
    for part in _files(path):
        if not stat.S_ISREG(part.lstat().st_mode):
            raise OSError(
                errno.EINVAL, "it is not a regular file; move it away, or choose another dump_path", str(part)
            )
