"""The worker process: it makes the dump from MindSpore's tensor files while the training runs.

It is a separate process for two reasons. It does not take time from the training's interpreter. And if the training
is killed, the worker still processes the last files: the run ends when the pipe on stdin closes, for whatever
reason. MindSpore sets a file to mode 0400 when it is finished; the worker reads only such files.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Optional

from msprobe.graphdump.dumping.dump_settings import DumpSettings
from msprobe.graphdump.dumping.messages import Messages
from msprobe.graphdump.dumping.policies import choose_policy
from msprobe.graphdump.dumping.saving import make_directory
from msprobe.graphdump.dumping.staging import StagedFile, StagingDirectory
from msprobe.graphdump.dumping.summary import DumpSummary
from msprobe.graphdump.files.directory import GRAPHS, METADATA, ORDERS

_PAUSE = 0.003
_AT_LEAST_EVERY = 0.005
_PRUNE_EVERY = 5.0


@dataclass(frozen=True)
class Job:
    """The worker's first line of input. `by_steps`: keep only files written between the messages that begin and end
    a step, and use the step in place of MindSpore's iteration."""

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


class Worker:
    def __init__(self, job: Job) -> None:
        self._job = job
        self.summary = DumpSummary()
        self._staging = StagingDirectory(Path(job.staging))
        self._policy = choose_policy(job.settings, self._staging, self.summary)
        self._paused = False
        self._scanned = 0.0
        self._cost = 0.0
        self._pruned = time.time()

    def run(self, messages: Messages) -> None:
        """Works until the run has ended and no file is left."""
        while True:
            last = messages.ended
            found = self._find_files()
            messages.read()
            for one in found:
                self._take(one, messages)
                if time.monotonic() - self._scanned > _AT_LEAST_EVERY:
                    self._staging.rescan()
                    self._check_budget()
            self._policy.settle(last)
            self._check_budget()
            if last and not found:
                break
            if time.time() - self._pruned > _PRUNE_EVERY:
                self._pruned = time.time()
                self._staging.prune(self._pruned)
            if not found:
                self._resume()
                messages.read(max(_PAUSE, 2 * self._cost))
        self._resume()

    def _take(self, one: StagedFile, messages: Messages) -> None:
        placed = messages.steps.place(one) if self._job.by_steps else one
        if placed is None:
            self._staging.discard(one)
        else:
            self._policy.take(placed)

    def _find_files(self) -> list[StagedFile]:
        before = time.monotonic()
        found = self._staging.new_files()
        self._cost = time.monotonic() - before
        self._check_budget()
        return found

    def _check_budget(self) -> None:
        """Pauses the training when the files take a quarter of the budget, and resumes it at an eighth.

        The rest is for files that MindSpore writes between two checks."""
        self._scanned = time.monotonic()
        used = self._staging.bytes_used()
        self.summary.peak = max(self.summary.peak, used)
        if used > self._job.budget // 4 and not self._paused and self._policy.frees_disk:
            if self._job.may_pause and self._signal(signal.SIGSTOP):
                self._paused = True
                self.summary.paused += 1
        elif self._paused and used <= self._job.budget // 8:
            self._resume()

    def _resume(self) -> None:
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
        """Moves MindSpore's other files (graphs, orders, metadata) into the dump and removes the staging directory."""
        self._policy.finish(failure)
        self._staging.rescan()
        for path in self._staging.list_unfinished():
            self.summary.note(f"{Path(path).name} is left out: MindSpore did not finish it")
        for rank, top in self._staging.ranks():
            target = Path(self._job.settings.path, f"rank_{rank}")
            make_directory(target)
            for folder in (GRAPHS, ORDERS, METADATA):
                if (top / folder).is_dir() and not (target / folder).exists():
                    (top / folder).rename(target / folder)
            if self._job.by_steps:
                _write_step_history(target / ORDERS, target / self._job.settings.net_name)
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


def _write_step_history(orders: Path, net: Path) -> None:
    """Rewrites the history of each graph: the steps of its files in place of iterations."""
    for path in sorted(orders.glob("ms_global_execution_order_graph_*.csv")):
        graph = net / path.stem.rpartition("_")[2]
        steps = sorted(int(one.name) for one in graph.iterdir() if one.name.isdecimal()) if graph.is_dir() else []
        path.unlink()
        if steps:
            path.write_text("".join(f"{step}\n" for step in steps), encoding="utf-8")
            path.chmod(0o400)


def main() -> int:
    """Reads the job and the messages from stdin, writes one line of JSON (the summary) to stdout."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the terminal sends them to all; we end when the pipe closes
    messages = Messages(sys.stdin.fileno())
    worker = Worker(Job.from_json(messages.first()))
    worker.run(messages)
    worker.finish(messages.failure)
    print(json.dumps(asdict(worker.summary)), flush=True)
    return 0
