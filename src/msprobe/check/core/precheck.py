"""The offline check from end to end: reads a dump, writes two csv files per rank, and returns the summary."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Optional

from msprobe.check.core.judge import ERROR, PASS, SEVERITY, SKIP, WARNING, worst
from msprobe.check.core.plan import make_plan
from msprobe.check.core.pool import Pool, WorkerSettings
from msprobe.check.core.results import ResultFiles
from msprobe.dump.errors import DumpError
from msprobe.dump.items import items
from msprobe.dump.names import FORWARD
from msprobe.dump.reader import Dump, RankDump
from msprobe.dump.stack_frames import source_line
from msprobe.messages import Message

_NUMBERS = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")
Progress = Callable[[Iterable[Any], int, str], Iterator[Any]]
_LEVELS = ("L1", "mix")


@dataclass(frozen=True)
class Checked:
    """The result of one call, as in the results file. `message` is a `Message`, and text if the file had it."""

    unit: str
    call: str
    forward: str
    backward: str
    message: str
    where: str = ""
    """For a finding: its module, the shape of its first tensor and the line of the script, if the dump has them."""

    @property
    def status(self) -> str:
        return worst([self.forward, self.backward])


@dataclass
class Report:
    """The result of a check. `notes` are sentences for the user; `files` are the written files."""

    checked: list[Checked] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)

    def count(self, status: str) -> int:
        """Counts of calls. A call counts as judged if one of its directions was."""
        return sum(1 for one in self.checked if overall(one) == status)

    @property
    def worst_first(self) -> list[Checked]:
        found = [one for one in self.checked if overall(one) in (ERROR, WARNING)]
        return sorted(found, key=lambda one: -SEVERITY[overall(one)])

    @property
    def groups(self) -> list[list[Checked]]:
        """The findings, worst first. Findings of one API that differ only in numbers are one group."""
        groups: dict[tuple[str, ...], list[Checked]] = {}
        for one in self.worst_first:
            title = one.call.rpartition(".")[0]
            message = _NUMBERS.sub("0", one.message)
            groups.setdefault((one.unit, title, one.forward, one.backward, message, one.where), []).append(one)
        return list(groups.values())

    @property
    def exit_code(self) -> int:
        """2 if nothing could be judged: this is not a pass."""
        if self.count(ERROR) or self.count(WARNING):
            return 1
        return 0 if self.count(PASS) else 2


def overall(one: Checked) -> str:
    """A call passes if its forward passes and the dump has no backward."""
    judged = [status for status in (one.forward, one.backward) if status != SKIP]
    return worst(judged) if judged else SKIP


@dataclass(frozen=True)
class Request:
    """What to check and how. `once` runs identical calls once; `limit` is the number of seconds for one call."""

    dump: Dump
    output: Path
    white_list: Sequence[str] = ()
    black_list: Sequence[str] = ()
    once: bool = False
    resumed: Optional[Path] = None
    jobs: int = 1
    limit: float = 120.0
    workers: WorkerSettings = field(default_factory=WorkerSettings)


class _Unit:
    """One rank directory with its plan and its files."""

    def __init__(self, rank: RankDump, request: Request, directory: Path, stamp: str) -> None:
        level = rank.head.get("level")
        if level not in _LEVELS:
            raise DumpError(f"{rank.path} is a dump of level {level}; the check needs APIs: level L1 or mix.")
        self.rank = rank
        self.plan = make_plan(rank.records, request.white_list, request.black_list, request.once)
        self.files = ResultFiles(directory, request.resumed, stamp)
        self.tasks = [task for task in self.plan.tasks if task.call not in self.files.done]


def check(request: Request, progress: Progress) -> Report:
    ranks = request.dump.ranks
    if request.resumed is not None and len(ranks) > 1:
        raise DumpError("-csv_path resumes one rank: give the dump.json of that rank with -api_info.")
    stamp = time.strftime("%Y%m%d%H%M%S")
    units: list[_Unit] = []
    unread: list[DumpError] = []
    try:
        for rank in ranks:
            directory = request.output / rank.label if len(ranks) > 1 else request.output
            try:
                units.append(_Unit(rank, request, directory, stamp))
            except DumpError as error:
                unread.append(error)
        if not units:
            raise unread[0]
        report = _check(units, request, progress)
        report.notes += [Message("check.unread", error=str(error).rstrip(".")) for error in unread]
        return report
    finally:
        for unit in units:
            unit.files.close()


def _check(units: list[_Unit], request: Request, progress: Progress) -> Report:
    report = Report()
    report.notes += request.dump.notes
    for unit in units:
        label = unit.rank.label
        report.files += [unit.files.result, unit.files.details]
        report.notes += [*unit.plan.notes, *(Message("note.at", place=label, text=one) for one in unit.rank.troubles)]
        report.checked += [Checked(label, *row) for row in unit.files.done.values()]
        for call, reason in unit.plan.skipped.items():
            if call not in unit.files.done:
                unit.files.add(call, SKIP, SKIP, reason, [])
                report.checked.append(Checked(label, call, SKIP, SKIP, reason))
    total = sum(len(unit.tasks) for unit in units)
    if not total:
        return report
    with Pool(min(request.jobs, total), request.workers, request.limit) as pool:
        for task, answer in progress(pool.run(_tasks(units)), total, "checking"):
            unit = units[task["unit"]]
            outcome = (task["call"], answer["forward"], answer["backward"], answer["message"])
            unit.files.add(*outcome, answer["rows"])
            found = Checked(unit.rank.label, *outcome)
            if overall(found) in (ERROR, WARNING):
                found = replace(found, where=_locate(unit.rank, found.call))
            report.checked.append(found)
    return report


def _locate(rank: RankDump, call: str) -> str:
    name = f"{call}.{FORWARD}"
    record = rank.records.get(name, {})
    shapes = (item.get("shape") for _, item in items(record) if isinstance(item, dict) and item.get("shape"))
    shape = next(shapes, None)
    module = rank.construct.get(name)
    parts = (module, f"shape {shape}" if shape else None, source_line(rank.stacks.get(name, [])))
    return ", ".join(part for part in parts if part)


def _tasks(units: list[_Unit]) -> Iterator[dict[str, Any]]:
    for number, unit in enumerate(units):
        for task in unit.tasks:
            yield {
                "unit": number,
                "framework": unit.rank.head.get("framework"),
                "rank": str(unit.rank.path),
                "call": task.call,
                "title": task.title,
                "forward": task.forward,
                "backward": task.backward,
            }
