"""What a fuzzer needs: changes of a file, a target that is attacked, and a turn for each until the time is over."""

from __future__ import annotations

import contextlib
import io
import json
import random
import signal
import sqlite3
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

from msprobe.config.errors import ConfigError
from msprobe.dump.errors import DumpError

Read = Callable[[Path], object]
ODD = (None, True, -1, 10**400, 1e308, float("nan"), "", "x" * 5000, "=1+1", "\ud800", [], {}, [[]], "../..", "٣")
CPU_SECONDS = 20.0
"""For one file: a reader that takes longer hangs."""


def change_bytes(data: bytes, dice: random.Random) -> bytes:
    result = bytearray(data)
    for _ in range(dice.randint(1, 6)):
        at = dice.randrange(len(result) + 1)
        piece = dice.choice((dice.randbytes(dice.randint(1, 6)), b"\xff" * 4, b"9" * 30, b'"', b"-", b"\n"))
        kind = dice.randrange(3)
        if kind == 0:
            result[at : at + len(piece)] = piece
        elif kind == 1:
            result[at:at] = piece
        else:
            del result[at : at + dice.randint(1, 40)]
    return bytes(result)


def change_json(data: bytes, dice: random.Random) -> bytes:
    """One value, or one key, of a JSON text becomes something odd."""
    value = json.loads(data)
    places: list[tuple[Any, Any]] = []

    def walk(one: Any) -> None:
        for key in one if isinstance(one, dict) else range(len(one)):
            places.append((one, key))
            if isinstance(one[key], (dict, list)):
                walk(one[key])

    walk(value)
    holder, key = dice.choice(places)
    if isinstance(holder, dict) and dice.random() < 0.2:
        holder[str(dice.choice(ODD))] = holder.pop(key)
    else:
        holder[key] = dice.choice(ODD)
    return json.dumps(value).encode("utf-8", "surrogatepass")


def change_database(path: Path, dice: random.Random) -> None:
    """What SQL can do to a file: other values, other tables, programs."""
    odd = (None, -1, 2**62, 1e308, float("inf"), "", "x" * 5000, "[[1, 2]]", b"", b"\xff" * 16, "\0", "٣", '"')
    table = dice.choice(("meta", "targets", "steps", "alarms"))
    programs = (
        f"DROP TABLE {table}",
        f"ALTER TABLE {table} RENAME TO other",
        f"CREATE VIEW v AS SELECT * FROM {table}",
        f"CREATE TRIGGER t AFTER DELETE ON {table} BEGIN DELETE FROM steps; END",
        f"INSERT INTO {table} SELECT * FROM {table} LIMIT 0",
        "PRAGMA user_version = 7",
        f"PRAGMA encoding = '{dice.choice(('UTF-8', 'UTF-16'))}'",
        "VACUUM",
    )
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path, isolation_level=None)) as opened:
        columns = [row[1] for row in opened.execute(f"PRAGMA table_info({table})")]
        for _ in range(dice.randint(1, 3)):
            if dice.random() < 0.2:
                opened.execute(dice.choice(programs))
            elif dice.random() < 0.3:
                opened.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})",
                               [dice.choice(odd) for _ in columns])  # fmt: skip
            else:
                opened.execute(f"UPDATE {table} SET {dice.choice(columns)} = ?", (dice.choice(odd),))


class Target:
    """One reader, a directory that it accepts, and the files in it that are changed.

    `restores`: the reader may write to the files, and all of them are written again after each attack. `refusals` are
    the exceptions that the caller of this reader turns into one sentence; a target with `weight` 5
    gets five times the time of others.
    """

    def __init__(
        self,
        name: str,
        read: Read,
        root: Path,
        *changed: Path,
        refusals: tuple[type[BaseException], ...] = (),
        weight: float = 1.0,
        restores: bool = False,
    ) -> None:
        self.name, self.read, self.root, self.weight = name, read, root, weight
        self._refusals = refusals
        self._restores = restores
        self.originals = {path: path.read_bytes() for path in changed}
        self.clean = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} if root.is_dir() else {}

    def accept(self) -> None:
        """Reads without output; an unsigned frame is refused even if it is unchanged."""
        quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
        with quiet[0], quiet[1], _limit(), contextlib.suppress(*self._refusals):
            self.read(self.root)

    def attack(self, seed: int) -> bool:
        """Whether the reader held: a result, or one sentence for the user."""
        dice = random.Random(f"{self.name} {seed}")
        path, data = dice.choice(sorted(self.originals.items()))
        knows_format = dice.random() < 0.7
        if path.suffix == ".sqlite" and knows_format:
            change_database(path, dice)
        else:
            is_json = path.suffix == ".json" and knows_format
            path.write_bytes(change_json(data, dice) if is_json else change_bytes(data, dice))
        try:
            self.accept()
        except DumpError as error:
            return "\n" not in str(error).strip() or self._finding(seed)
        except ConfigError:
            return True
        except Exception:
            return self._finding(seed)
        finally:
            path.write_bytes(data)
            self.tidy()
        return True

    def _finding(self, seed: int) -> bool:
        print(f"--- {self.name}, seed {seed}")
        traceback.print_exc(file=sys.stdout)
        return False

    def tidy(self) -> None:
        for path in self.root.rglob("*") if self.clean else ():
            if path.is_file() and path not in self.clean:
                path.unlink()
        for path, data in self.clean.items() if self._restores else ():
            path.write_bytes(data)


@contextlib.contextmanager
def _limit() -> Iterator[None]:
    def expire(*_: object) -> None:
        raise RuntimeError(f"more than {CPU_SECONDS:.0f} seconds of CPU time for one file")

    before = signal.signal(signal.SIGVTALRM, expire)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def fuzz(targets: list[Target], seconds: float, first: int, most_findings: int = 100) -> tuple[Counter[str], int]:
    """Attacks for this many seconds of CPU time, divided among the targets. Returns the number of files per target,
    and the findings."""
    ends, findings = time.process_time() + seconds, 0
    spent = dict.fromkeys(range(len(targets)), 0.0)
    tried: Counter[str] = Counter()
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends it early, with the counts so far
        while time.process_time() < ends and findings < most_findings:
            turn = min(spent, key=spent.__getitem__)
            target, start = targets[turn], time.process_time()
            findings += not target.attack(first + tried[target.name])
            tried[target.name] += 1
            spent[turn] += (time.process_time() - start + 1e-4) / target.weight
    return tried, findings
