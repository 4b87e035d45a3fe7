"""The checker of the online check: it receives calls, writes verdicts to disk, and then answers the sender.

The results files are its memory. After a restart it answers a call that has a result at once, without a second check.
The sender sends a call without a result again, because it got no answer.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Optional, Union

from msprobe.check.core.judge import SKIP
from msprobe.check.core.plan import make_plan
from msprobe.check.core.pool import Pool, WorkerSettings
from msprobe.check.core.precheck import Checked, Report
from msprobe.check.core.results import RESULT, ResultFiles
from msprobe.check.online.frames import Session
from msprobe.check.online.inbox import Arrival, Inbox
from msprobe.check.online.receiver import Listener
from msprobe.check.online.shared_directory import SharedDirectory
from msprobe.config.settings import RunUtSettings
from msprobe.dump import layout

STAMP = "online"
Key = tuple[str, int, int, str]


class Checker:
    def __init__(self, settings: RunUtSettings, output: Path, log: Callable[[str], None]) -> None:
        self._settings, self._output = settings, output
        self._spool = output / "spool"
        shutil.rmtree(self._spool, ignore_errors=True)  # left by a killed checker: the sender sends it again
        layout.make_directory(self._spool)
        self._inbox = Inbox(self._spool, log)
        self._log = log
        self._files: dict[tuple[str, int, int], ResultFiles] = {}
        self._done: dict[Key, Checked] = {}
        self._running: dict[Key, list[Arrival]] = {}
        self._known: set[Session] = set()
        self._ended: set[int] = set()
        self._ends: list[Arrival] = []

    def run(self, jobs: int, limit: float, workers: WorkerSettings) -> Report:
        """Runs until all wanted ranks have ended, or the user interrupts."""
        way: Union[Listener, SharedDirectory]
        with Pool(jobs, workers, limit) as pool:
            pool.wait_until_ready()
            if self._settings.nfs_path is not None:
                way = SharedDirectory(self._settings, self._inbox)
                self._log(f"Waiting for parcels in {self._settings.nfs_path}.")
            else:
                way = Listener(self._settings, self._inbox)
                self._log(f"Listening on {way.address[0]}:{way.address[1]}; {way.protection}.")
            try:
                for task, answer in pool.run(self._tasks()):
                    self._finish(task, answer)
            except KeyboardInterrupt:
                self._log("Interrupted. The next checker gets the calls that have no result yet.")
            finally:
                way.close()
        for files in self._files.values():
            files.close()
        shutil.rmtree(self._spool, ignore_errors=True)
        report = Report(list(self._done.values()))
        report.files = [path for files in self._files.values() for path in (files.result, files.details)]
        return report

    def _tasks(self) -> Iterator[Optional[dict[str, Any]]]:
        while True:
            arrival = self._inbox.take()
            if arrival is not None:
                self._load_earlier_results(arrival.session)
            if arrival is None:
                self._answer_ends()
                if self._ended >= self._settings.rank_list and not self._running:
                    return
                yield None
            elif arrival.task is None:
                self._ends.append(arrival)
            else:
                task = self._accept(arrival, arrival.task)
                if task is not None:
                    yield task

    def _load_earlier_results(self, session: Session) -> None:
        """Adds the results of an earlier checker for this session to the report."""
        if session in self._known:
            return
        self._known.add(session)
        for file in sorted((self._output / session.name).glob(f"step*/rank{session.rank}/{RESULT}{STAMP}.csv")):
            step = layout.parse_step(file.parent.parent.name)
            if step is not None:
                self._open((session.name, session.rank, step))

    def _answer_ends(self) -> None:
        """Answers the end of a session when every call before it has its result."""
        for arrival in [one for one in self._ends if not self._is_running(one.session)]:
            self._ends.remove(arrival)
            self._ended.add(arrival.session.rank)
            self._log(f"Rank {arrival.session.rank} has ended.")
            arrival.answer()

    def _is_running(self, session: Session) -> bool:
        return any(key[:2] == tuple(session) for key in self._running)

    def _accept(self, arrival: Arrival, task: dict[str, Any]) -> Optional[dict[str, Any]]:
        """The task to run. None if it has a result, is running, or is not wanted."""
        unit = (arrival.session.name, arrival.session.rank, task["step"])
        key = (*unit, task["call"])
        files = self._open(unit)
        if key in self._done:
            self._drop(task)
            arrival.answer()
            return None
        if key in self._running:
            self._running[key].append(arrival)
            self._drop(task)
            return None
        if not self._is_wanted(task["call"], task["forward"]):
            self._drop(task)
            arrival.answer()
            return None
        self._running[key] = [arrival]
        return {**task, "key": list(key), "unit": files.result.parent.name}

    def _is_wanted(self, call: str, record: dict[str, Any]) -> bool:
        plan = make_plan({f"{call}.forward": record}, self._settings.white_list, self._settings.black_list)
        return bool(plan.tasks)

    def _finish(self, task: dict[str, Any], answer: dict[str, Any]) -> None:
        session, rank, step, call = task["key"]
        outcome = (call, answer["forward"], answer["backward"], answer["message"])
        self._files[session, rank, step].add(*outcome, answer["rows"])
        key = (session, rank, step, call)
        self._done[key] = Checked(f"step{step}/rank{rank}", *outcome)
        self._drop(task)
        for arrival in self._running.pop(key):
            arrival.answer()
        if answer["forward"] not in ("pass", SKIP) or answer["backward"] not in ("pass", SKIP):
            self._log(f"step {step}, rank {rank}: {call}: {answer['message']}")

    def _open(self, unit: tuple[str, int, int]) -> ResultFiles:
        if unit not in self._files:
            session, rank, step = unit
            directory = self._output / session / f"step{step}" / f"rank{rank}"
            known = directory / f"{RESULT}{STAMP}.csv"
            files = ResultFiles(directory, known if known.exists() else None, STAMP)
            self._files[unit] = files
            for call, row in files.done.items():
                self._done[session, rank, step, call] = Checked(f"step{step}/rank{rank}", *row)
        return self._files[unit]

    def _drop(self, task: dict[str, Any]) -> None:
        shutil.rmtree(task["rank"], ignore_errors=True)
