"""What msprobe keeps and says when a training run is killed, has no disk, or is very large: `make torture`.

python benchmarks/torture.py [KILLS] [SEED] [WORD…]

KILLS: kill -9 at this many random points (30). WORD: only the situations whose names have one of these words.

Runs torture_train.py in each situation, once bare and once with the debugger, and prints a table in Markdown. It
exits with 1 if training was not bit-identical somewhere, or if a record was lost that docs/reliability.md promises.
"""

from __future__ import annotations

import os
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Optional

from torture_odd import NAMES, compile_clock
from torture_train import CALL, STEPS

from msprobe.dump.errors import DumpError
from msprobe.dump.reader import open_dump
from msprobe.dump.recovery import recover

SCRIPT = Path(__file__).with_name("torture_train.py")
LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
HALF_SECOND = 0.5
AT_ONCE = 3


class Ended(NamedTuple):
    """One run: its exit code, what msprobe logged, and the lines of weights."""

    code: int
    said: list[str]
    weights: list[str]


class Row(NamedTuple):
    situation: str
    kept: str
    said: str
    identical: str
    held: bool


def start(kind: str, out: Path, dump: str, before: tuple[str, ...] = (), **environment: str) -> subprocess.Popen[str]:
    command = [*before, sys.executable, environment.pop("script", str(SCRIPT)), kind, str(out), dump]
    given = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="surrogateescape", env=given
    )


def finish(process: subprocess.Popen[str], out: Path) -> Ended:
    _, text = process.communicate()
    said = [line for line in text.splitlines() if line.startswith("[msprobe]") and " INFO: " not in line]
    return Ended(process.returncode, said, out.read_text().splitlines() if out.exists() else [])


def records_of(dump: Path) -> dict[str, int]:
    """Records of each rank directory; one that a crash left is recovered first."""
    found = {}
    for rank in open_dump(dump).ranks:
        if rank.unfinished:
            recover(rank.path)
        found[rank.label] = len(rank.records)
    return found


class Torture:
    """The situations, one method each."""

    def __init__(self, place: Path, kills: int, seed: int) -> None:
        self.place, self.kills, self.dice = place, kills, random.Random(seed)
        bare = self.run("steady", "-")
        self.bare = bare.weights
        self.complete = sum(records_of(self._dump(self.run("steady"))).values())

    def run(self, kind: str, dump: Optional[str] = None, before: tuple[str, ...] = (), **environment: str) -> Ended:
        self.last = self.place / f"{kind.replace(' ', '_')}_{time.monotonic_ns()}"
        self.last.mkdir()
        target = str(self.last / "dump") if dump is None else dump
        return finish(start(kind, self.last / "weights", target, before, **environment), self.last / "weights")

    def _dump(self, _: Ended) -> Path:
        return self.last / "dump"

    def _row(self, situation: str, ended: Ended, kept: str, held: bool, bare: Optional[list[str]] = None) -> Row:
        expected = self.bare if bare is None else bare
        same = ended.weights == expected[: len(ended.weights)]
        steps = f"yes, {len(ended.weights)} of {len(ended.weights)} steps" if same else "NO"
        return Row(situation, kept, spoken(ended.said, self.last), steps, same and held)

    def killed(self) -> Row:
        moments = [self.dice.uniform(0.05, 4.0) for _ in range(self.kills)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = list(pool.map(self._kill, range(self.kills), moments))
        reference = self._busy_reference(max(len(weights) for *_, weights in found))
        calls, older, newer = (sum(one[n] for one in found) for n in range(3))
        same = all(weights == reference[: len(weights)] for *_, weights in found)
        kept = (
            f"of {calls:,} calls that had returned, {older} older than half a second and {newer} younger ones are lost"
        )
        steps = f"yes, {sum(len(weights) for *_, weights in found):,} steps" if same else "NO"
        said = "nothing (the process is dead); `recover` finishes the step"
        return Row(f"kill -9 at {self.kills} random points", kept, said, steps, same and not older)

    def _kill(self, number: int, moment: float) -> tuple[int, int, int, list[str]]:
        place = self.place / f"killed{number}"
        place.mkdir()
        process = start("busy", place / "weights", str(place / "dump"))
        log = place / "weights.calls"
        while not log.exists() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(moment)
        at = time.monotonic()
        process.send_signal(signal.SIGKILL)
        ended = finish(process, place / "weights")
        data = log.read_bytes()
        names: dict[int, set[str]] = {}
        if (place / "dump").exists():
            for rank in open_dump(place / "dump").ranks:
                if rank.unfinished:
                    recover(rank.path)
                names[rank.step or 0] = set(rank.records)
        older = newer = total = 0
        for when, step, call in CALL.iter_unpack(data[: len(data) // CALL.size * CALL.size]):
            total += 1
            if f"Torch.sin.{call}.forward" not in names.get(step, ()):
                older, newer = older + (when < at - HALF_SECOND), newer + (when >= at - HALF_SECOND)
        shutil.rmtree(place / "dump", ignore_errors=True)
        return total, older, newer, ended.weights

    def _busy_reference(self, steps: int) -> list[str]:
        out = self.place / "busy_bare"
        process = start("busy", out, "-")
        while process.poll() is None and (not out.exists() or len(out.read_text().splitlines()) <= steps):
            time.sleep(0.05)
        process.kill()
        return finish(process, out).weights

    def signalled(self, name: str) -> Row:
        ended = self.run(name)
        found = records_of(self.last / "dump")
        open_step = found.get("step2/rank", 0)
        kept = f"{len(found)} steps; of the open step {open_step} records, all that had returned"
        return self._row(
            f"{name} in the middle of step 2", ended, kept, open_step >= self.complete // STEPS // 2 and len(found) == 3
        )

    def partial(self, kind: str, situation: str, before: tuple[str, ...] = (), dump: str = "dump") -> Row:
        ended = self.run(kind, before=before)
        try:
            found = sum(records_of(self.last / dump).values())
        except DumpError:
            found = 0
        return self._row(situation, ended, f"{found} of {self.complete} records", len(ended.weights) == STEPS)

    def mounted(self, kind: str, situation: str, size: str) -> Row:
        """A tmpfs of this size in a mount namespace of its own, which needs root."""
        place = self.place / f"mounted_{kind.replace(' ', '_')}"
        place.mkdir()
        before = ("unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size={size} tmpfs {place} && exec "$@"', "sh")
        if subprocess.run([*before, "true"], capture_output=True).returncode:
            return Row(situation, "not run: mounting a tmpfs needs root", "", "", True)
        out = self.place / f"{place.name}.weights"
        self.last = place
        ended = finish(start(kind, out, str(place / "dump"), before), out)
        found = sum(records_of(Path(f"{out}.dump")).values())
        kept = f"{found} of {self.complete} records"
        return self._row(situation, ended, kept, len(ended.weights) == STEPS)

    def strange(self, situation: str, kind: str = "steady", **how: str) -> Row:
        """The usual run in strange surroundings: every record is there."""
        ended = self.run(kind, **how)
        found = sum(records_of(self.last / "dump").values())
        held = len(ended.weights) == STEPS and found == self.complete
        return self._row(situation, ended, f"{found} of {self.complete} records", held)

    def ascii_only(self) -> Row:
        """The scripts are in a directory whose name is not UTF-8, and have lines that are not ASCII. (A dump_path that
        is not text is refused with one sentence.)"""
        place = self.place / "not\udcff\udcfe text\n"
        place.mkdir()
        for script in SCRIPT.parent.glob("torture_*.py"):
            shutil.copy(script, place)
        situation = "locale C, scripts in a directory that is not UTF-8"
        return self.strange(situation, script=str(place / SCRIPT.name), **LOCALE)

    def odd(self, kind: str, situation: str) -> Row:
        """Every task and level. Each dump is read again."""
        bare = self.run(kind, "-").weights
        ended = self.run(kind)
        dumps = sorted((self.last / "dump").iterdir())
        counts = [sum(records_of(dump).values()) for dump in dumps if any(dump.rglob("dump.json"))]
        faults = len(list((self.last / "dump").rglob("dump_error_info.log")))
        kept = f"{sum(counts):,} records in {len(counts)} dumps, {faults} of them with errors of msprobe"
        held = len(ended.weights) == len(bare) > 0 and not faults and ended.code == 0
        return self._row(situation, ended, kept, held, bare)

    def many_calls(self) -> Row:
        bare = self.run("many calls", "-").weights
        ended = self.run("many calls")
        found = sum(records_of(self.last / "dump").values())
        return self._row("200,000 calls in a step", ended, f"{found:,} records", found == 200_000, bare)

    def large_tensor(self) -> Row:
        bare = self.run("large tensor", "-").weights
        ended = self.run("large tensor")
        (rank,) = open_dump(self.last / "dump").ranks
        saved = rank.tensor(rank.records["Torch.sum.0.forward"]["input_args"][0]["data_name"])
        right = saved.shape == (1 << 29,) and all(int(saved[n]) == n for n in range(0, 1 << 29, 9_999_991))
        kept = f"a file of {saved.nbytes / 2**30:.0f} GiB; the elements read back are {'right' if right else 'WRONG'}"
        shutil.rmtree(self.last)
        return self._row("a tensor of 2 GiB", ended, kept, right, bare)

    def many_steps(self) -> Row:
        bare = self.run("many steps", "-").weights
        usual = self._slope()
        ended = self.run("many steps")
        slope = self._slope()
        found = records_of(self.last / "dump")
        memory = f"memory grows by {slope:.1f} kB a step, bare by {usual:.1f}"
        kept = f"{len(found):,} steps, {sum(found.values()):,} records; {memory}"
        shutil.rmtree(self.last)
        return self._row("10,000 steps", ended, kept, len(found) == 10_000 and slope < usual + 4, bare)

    def _slope(self) -> float:
        """Of the memory in use, in kB a step, after the first 200 steps."""
        points = [line.split() for line in (self.last / "weights.memory").read_text().splitlines()]
        (first, low), (last, high) = ((int(a), int(b)) for a, b in (points[1], points[-1]))
        return (high - low) / (last - first) / 1024

    def together(self, kind: str, situation: str) -> Row:
        bare = self.run(kind, "-").weights
        ended = self.run(kind)
        found = records_of(self.last / "dump")
        kept = f"{sum(found.values()):,} records of {len(found)} steps"
        held = len(found) == STEPS and len(set(found.values())) == 1
        return self._row(situation, ended, kept, held, bare)

    def ranks(self) -> Row:
        bare = self._both_ranks("-", self.place / "ranks_bare")
        self.last = self.place / "ranks"
        ended = self._both_ranks(str(self.last / "dump"), self.last)
        found = records_of(self.last / "dump")
        kept = ", ".join(f"{label} {count}" for label, count in sorted(found.items()) if label.startswith("step2"))
        same = all(one.weights == other.weights[: len(one.weights)] for one, other in zip(ended, bare))
        said = spoken([line for one in ended for line in one.said], self.last)
        steps = f"yes, {sum(len(one.weights) for one in ended)} steps until the death" if same else "NO"
        held = len(found) == 6 and min(found.values()) > 0
        return Row("rank 1 of 2 is killed in step 2", f"records of the open step: {kept}", said, steps, same and held)

    def _both_ranks(self, dump: str, place: Path) -> list[Ended]:
        place.mkdir()
        outs = [place / "weights", place / "weights1"]
        (place / "weights1.store").symlink_to("weights.store")
        started = [start("ranks", out, dump, RANK=str(n), WORLD_SIZE="2") for n, out in enumerate(outs)]
        return [finish(process, out) for process, out in zip(started, outs)]


def spoken(said: list[str], place: Path) -> str:
    if not said:
        return "nothing"
    texts = [re.sub(r"^\[msprobe\] [A-Z]+: ", "", line).replace(str(place), "…") for line in said]
    first = texts[0] if len(texts[0]) <= 300 else texts[0][:297] + "…"
    return first.replace("|", "/") + (f" (and {len(texts) - 1} more)" if len(texts) > 1 else "")


def main() -> int:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    words = sys.argv[3:]
    with tempfile.TemporaryDirectory(prefix="torture") as directory:
        torture = Torture(Path(directory), kills, seed)
        clock = {"LD_PRELOAD": str(compile_clock(Path(directory)))}
        situations = (
            ("kill", torture.killed),
            ("SIGTERM", lambda: torture.signalled("SIGTERM")),
            ("SIGINT", lambda: torture.signalled("SIGINT")),
            ("full-disk", lambda: torture.mounted("full disk", "full disk (tmpfs of 256 kB)", "256k")),
            ("read-only", lambda: torture.mounted("read-only", "the file system is read-only from step 2 on", "64m")),
            ("file-size", lambda: torture.partial("file size", "file-size limit (RLIMIT_FSIZE, 64 kB)")),
            ("descriptors", lambda: torture.partial("descriptors", "no file descriptor is left in steps 1 to 3")),
            ("removed", lambda: torture.partial("removed", "the dump directory is removed in step 2")),
            ("calls", torture.many_calls),
            ("large", torture.large_tensor),
            ("steps", torture.many_steps),
            ("threads", lambda: torture.together("threads", "four threads, each with its own model")),
            ("workers", lambda: torture.together("processes", "forked DataLoader workers and spawned processes")),
            ("fork", lambda: torture.strange("os.fork() in steps 1 and 2; the child computes", "fork")),
            ("clock", lambda: torture.strange("a clock that goes backwards, an hour each time it is read", **clock)),
            ("locale", torture.ascii_only),
            ("names", lambda: torture.odd("odd names", f"modules with {len(NAMES)} odd names, every task and level")),
            ("tensors", lambda: torture.odd("odd tensors", "odd tensors, every task and level")),
            ("ranks", torture.ranks),
        )
        chosen = [act for word, act in situations if not words or word in words]
        print("| situation | kept | logged | training identical |\n|---|---|---|---|", flush=True)
        held = True
        for situation in chosen:
            row = situation()
            held = held and row.held
            mark = "" if row.held else " **not as promised**"
            print(f"| {row.situation} | {row.kept}{mark} | {row.said} | {row.identical} |", flush=True)
    import torch

    print(f"\nPyTorch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, seed {seed}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
