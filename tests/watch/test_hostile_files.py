"""A watched run from a stranger: its SQLite files are programs, and SQLite opens the files next to them by itself."""

from __future__ import annotations

import os
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from msprobe.watch.alarms.alarm import Alarm
from msprobe.watch.reading import database
from msprobe.watch.reading.run import DumpError, Run
from msprobe.watch.store import Store
from msprobe.watch.targets import Target

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT"
VIEWS = {
    "meta": f"{ENDLESS} 'format' AS key, '1' AS value FROM n",
    "steps": f"{ENDLESS} x AS step, 0.5 AS time, x'00' AS numbers FROM n",
    "alarms": f"{ENDLESS} x AS id, x AS step, '' AS rule, '' AS kind, '' AS name, 0 AS position, '' AS sentence, "
    "0.5 AS value, 0.5 AS usual, '[]' AS around, 0 AS rank FROM n",
}
READ = "import sys; from msprobe.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    store = Store(tmp_path / "run" / "watch.sqlite", {"framework": "pytorch"}, 1 << 30, None)
    store.add([(Target("grad", "layer", 0), ("norm",))])
    for step in range(3):
        store.write(step, np.full(1, float(step)), [Alarm(step, "nan", "grad", "layer", "…")] if step == 2 else [])
    store.close()
    return tmp_path / "run"


def change(run: Path, script: str) -> None:
    with sqlite3.connect(run / "watch.sqlite") as connection:
        connection.executescript(script)
    connection.close()


def read_all(run: Path) -> list[str]:
    """The one sentence of each verb. A verb that waits or hangs is ended."""
    said = []
    page = str(run.parent / "page.html")
    for words in (["watch", str(run)], ["view", str(run), "--export", page], ["watch", "compare", str(run), str(run)]):
        done = subprocess.run(
            [sys.executable, "-c", READ, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        assert (done.returncode, len(done.stdout.splitlines())) == (2, 1), done.stdout
        said.append(done.stdout)
    return said


@pytest.mark.parametrize("table", VIEWS)
def test_an_endless_view_is_refused(run: Path, table: str) -> None:
    change(run, f"DROP TABLE {table}; CREATE VIEW {table} AS {VIEWS[table]};")
    assert all(f"is not the database of a watched run: the view '{table}' is not one" in said for said in read_all(run))


@pytest.mark.parametrize(
    "script",
    [
        "DROP TABLE steps; CREATE TABLE steps (step INTEGER PRIMARY KEY, time REAL, "
        "numbers BLOB AS (zeroblob(900000000)));",
        "CREATE TRIGGER t AFTER DELETE ON steps BEGIN DELETE FROM alarms; END;",
        "CREATE INDEX i ON steps (time);",
        "CREATE TABLE more (x);",
        "DROP TABLE alarms;",
        "ALTER TABLE meta ADD COLUMN x;",
    ],
)
def test_other_tables_are_refused(run: Path, script: str) -> None:
    change(run, script)
    with pytest.raises(DumpError, match=r"watch\.sqlite is not the database of a watched run: "):
        Run(run)
    with pytest.raises(sqlite3.DatabaseError, match="is not the database of a watched run"):
        Store(run / "watch.sqlite", {}, 1 << 30, keep_before=2)


def test_branches_that_lead_to_the_same_page_end(run: Path) -> None:
    """Four pages with 192 million rows: the 401 branches of a page all lead to the next one."""
    file = run / "watch.sqlite"
    with sqlite3.connect(file) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'steps'").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    data = bytearray(file.read_bytes())
    more = len(data) // size + 1
    pages = [root, more, more + 1, more + 2]
    data += bytes(3 * size)
    data[(pages[3] - 1) * size : pages[3] * size] = data[(root - 1) * size : root * size]
    for page, below in zip(pages, pages[1:]):
        start = size - 400 * 5
        head = struct.pack(">BHHHBI", 5, 0, 400, start, 0, below) + struct.pack(">400H", *range(start, size, 5))
        cells = struct.pack(">IB", below, 2) * 400
        data[(page - 1) * size : page * size] = head.ljust(start, b"\0") + cells
    data[28:32] = struct.pack(">I", len(data) // size)
    file.write_bytes(data)
    opened = Run(run).ranks[0]
    for read in (opened.steps, opened.table, lambda: opened.curve("grad", "layer", "norm")):
        with pytest.raises(DumpError, match="a query returns more than the file can hold"):
            read()


def test_a_query_that_takes_too_long_ends(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = database.Database(run / "watch.sqlite")
    monkeypatch.setattr(database, "_SECONDS", -1e3)
    with pytest.raises(DumpError, match="a query takes too long"):
        opened.rows(f"{ENDLESS} x FROM n WHERE x < 0", (), (int,))


@pytest.mark.parametrize("suffix", ["-journal", "-wal", "-shm"])
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_the_files_beside_it_are_regular_files(run: Path, suffix: str, kind: str) -> None:
    beside = run / f"watch.sqlite{suffix}"
    beside.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(beside)
    else:
        beside.symlink_to("/dev/zero")
    assert all(f"{beside.name} is not a regular file." in said for said in read_all(run))


def test_a_sparse_database_is_one_sentence(run: Path) -> None:
    os.truncate(run / "watch.sqlite", 64 << 30)
    assert all("has 64.0 GiB, and msprobe reads up to" in said for said in read_all(run))


@pytest.mark.parametrize("suffix", ["", "-journal", "-wal", "-shm"])
@pytest.mark.parametrize("kind", ["dangling", "link", "pipe"])
def test_a_new_run_writes_beside_nobody(tmp_path: Path, suffix: str, kind: str) -> None:
    private = tmp_path / "private"
    path = tmp_path / "run" / "watch.sqlite"
    path.parent.mkdir()
    planted = path.with_name(path.name + suffix)
    if kind == "pipe":
        os.mkfifo(planted)
    else:
        planted.symlink_to(private)
    if kind == "link":
        private.write_bytes(b"")
    store = Store(path, {}, 1 << 30, None)
    store.add([(Target("grad", "layer", 0), ("norm",))])
    store.write(0, np.ones(1))
    store.close()
    assert private.exists() == (kind == "link")
    assert not private.exists() or private.read_bytes() == b""
    assert Run(path.parent).ranks[0].steps() == [0]


@pytest.mark.parametrize("suffix", ["", "-journal", "-wal", "-shm"])
def test_a_run_that_goes_on_does_not_follow_links(run: Path, tmp_path: Path, suffix: str) -> None:
    path, private = run / "watch.sqlite", tmp_path / "private"
    if not suffix:
        path.rename(private)
    before = private.read_bytes() if private.exists() else b""
    (run / f"watch.sqlite{suffix}").symlink_to(private)
    with pytest.raises(OSError, match="not a regular file; move it away"):
        Store(path, {}, 1 << 30, keep_before=2)
    assert (private.read_bytes() if private.exists() else b"") == before
