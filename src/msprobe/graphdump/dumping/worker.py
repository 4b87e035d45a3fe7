"""The process beside the training that makes the dump from the framework's tensor files, as they appear.

It is a process of its own so that the training keeps its interpreter to itself, and so that a training that is
killed still has its last files turned into rows: the end of the pipe on stdin is the end of the run, however
it came. Files become 0400 when the framework has finished them; only such are read.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Optional

from msprobe.graphdump.dumping.dump_settings import DumpSettings
from msprobe.graphdump.dumping.messages import Messages
from msprobe.graphdump.dumping.policies import policy_for
from msprobe.graphdump.dumping.saving import make_directory
from msprobe.graphdump.dumping.staged import Staged, Staging
from msprobe.graphdump.files.directory import GRAPHS, METADATA, ORDERS

_PAUSE = 0.003
_AT_LEAST_EVERY = 0.005
_PRUNE_EVERY = 5.0


@dataclass(frozen=True)
class Job:
    """What the worker is told on its first line of input. `by_steps`: only what is written between the messages
    that open and close a step is wanted, and the step takes the place of the framework's iteration."""

    settings: DumpSettings
    written: str
    staging: str
    budget: int
    pid: int
    may_pause: bool
    by_steps: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Job:
        values: dict[str, Any] = json.loads(text)
        settings = values.pop("settings")
        tuples: dict[str, Any] = {key: tuple(one) if isinstance(one, list) else one for key, one in settings.items()}
        return Job(DumpSettings(**tuples), **values)


@dataclass
class Told:
    """What is said at the end."""

    tensors: int = 0
    rows: int = 0
    kept: int = 0
    paused: int = 0
    peak: int = 0
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


class Worker:
    def __init__(self, job: Job) -> None:
        self._job = job
        self.told = Told()
        self._staging = Staging(Path(job.staging))
        self._policy = policy_for(job.settings, self._staging, self.told)
        self._paused = False
        self._looked = 0.0
        self._cost = 0.0
        self._pruned = time.time()

    def run(self, messages: Messages) -> None:
        """Until the run has ended and nothing is left to do."""
        while True:
            last = messages.ended
            found = self._look()
            messages.read()
            for one in found:
                self._take(one, messages)
                if time.monotonic() - self._looked > _AT_LEAST_EVERY:
                    self._staging.look()
                    self._weigh()
            self._policy.settle(last)
            self._weigh()
            if last and not found:
                break
            if time.time() - self._pruned > _PRUNE_EVERY:
                self._pruned = time.time()
                self._staging.prune(self._pruned)
            if not found:
                self._let_run()
                messages.read(max(_PAUSE, 2 * self._cost))
        self._let_run()

    def _take(self, one: Staged, messages: Messages) -> None:
        placed = messages.steps.place(one) if self._job.by_steps else one
        if placed is None:
            self._staging.discard(one)
        else:
            self._policy.take(placed)

    def _look(self) -> list[Staged]:
        before = time.monotonic()
        found = self._staging.new_files()
        self._cost = time.monotonic() - before
        self._weigh()
        return found

    def _weigh(self) -> None:
        """Hold the training when a quarter of the budget lies on the disk, let it go on when an eighth does: what is
        written while we do not look has the rest."""
        self._looked = time.monotonic()
        used = self._staging.bytes_used()
        self.told.peak = max(self.told.peak, used)
        if used > self._job.budget // 4 and not self._paused and self._policy.frees_disk:
            if self._job.may_pause and self._signal(signal.SIGSTOP):
                self._paused = True
                self.told.paused += 1
        elif self._paused and used <= self._job.budget // 8:
            self._let_run()

    def _let_run(self) -> None:
        if self._paused:
            self._paused = False
            self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> bool:
        try:
            os.kill(self._job.pid, number)
        except OSError:
            return False
        return True

    def finish(self, failure: Optional[str]) -> None:
        """What the framework wrote beside tensors goes to the dump; what is left of the staging directory goes."""
        self._policy.finish(failure)
        self._staging.look()
        for path in self._staging.unfinished():
            self.told.note(f"{Path(path).name} was not finished by the framework and is left out")
        for rank, top in self._staging.ranks():
            target = Path(self._job.settings.path, f"rank_{rank}")
            make_directory(target)
            for folder in (GRAPHS, ORDERS, METADATA):
                if (top / folder).is_dir() and not (target / folder).exists():
                    (top / folder).rename(target / folder)
            if self._job.by_steps:
                _count_in_steps(target / ORDERS, target / self._job.settings.net_name)
            noted = target / METADATA / "data_dump.json"
            if noted.is_file():
                noted.unlink()
                noted.write_text(self._job.written, encoding="utf-8")
                noted.chmod(0o400)
        shutil.rmtree(self._job.staging, ignore_errors=True)
        try:
            Path(self._job.staging).parent.rmdir()
        except OSError:
            pass  # another rank's files are still there


def _count_in_steps(orders: Path, net: Path) -> None:
    """The history of each graph, as the steps that its files are of."""
    for path in sorted(orders.glob("ms_global_execution_order_graph_*.csv")):
        graph = net / path.stem.rpartition("_")[2]
        steps = sorted(int(one.name) for one in graph.iterdir() if one.name.isdecimal()) if graph.is_dir() else []
        path.unlink()
        if steps:
            path.write_text("".join(f"{step}\n" for step in steps), encoding="utf-8")
            path.chmod(0o400)


def main() -> int:
    """Reads the job and the end from stdin, writes one line of JSON (Told) to stdout."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the terminal sends them to everyone; our end is the pipe's
    messages = Messages(sys.stdin.fileno())
    worker = Worker(Job.from_json(messages.first()))
    worker.run(messages)
    worker.finish(messages.failure)
    print(json.dumps(asdict(worker.told)), flush=True)
    return 0
