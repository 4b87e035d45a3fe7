"""What a run collected, and the messages about it: where the data is, its size, what is missing."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from msprobe.collect import notices
from msprobe.collect.task import Task
from msprobe.config import Settings
from msprobe.dump import layout
from msprobe.dump.plural import count, were
from msprobe.dump.writing.writer import Finished

_MANY_STEPS = 100


class RunSummary:
    """`steps` are the collected steps. `missed_rank` is the rank of this process if it is not wanted."""

    def __init__(self, settings: Settings, task: Task) -> None:
        self.settings = settings
        self.started = False
        self.replaced = False
        self.starts_without_step = 0
        self.steps: list[int] = []
        self.missed_rank: Optional[int] = None
        self.lost: dict[int, int] = {}  # step -> number of records and files that could not be written
        self.unmade: list[int] = []  # steps with a complete journal and missing other files
        self._task = task
        self._records = 0

    def log_estimate(self, parameter_bytes: int) -> None:
        """Before the first tensors are written: logs their known size and the free space."""
        described = self._task.describe_files(parameter_bytes)
        if described is None:
            return
        tensors, known_bytes = described
        settings = self.settings
        wanted = len(settings.step or ())
        steps = f"each of the {wanted} wanted steps" if wanted > 1 else "the wanted step" if wanted else "every step"
        known = f" the parameters and their gradients alone are {_size(known_bytes)};" if known_bytes else ""
        notices.inform(
            f"{tensors} of {steps} go to {settings.dump_path}:{known} inputs and outputs of the calls are "
            f"added to that. Free space there: {_size(_free_bytes(settings.dump_path))}."
        )

    def close_step(self, step: int, finished: Finished, faults: int, directory: Path) -> None:
        self._records += finished.records
        if faults:
            log_faults(faults, f"of step {step}", directory)
        if finished.errors:
            self.lost[step] = finished.errors
        elif finished.unmade:
            self.unmade.append(step)
        if not self.steps and self._task.writes_records and not finished.unmade:
            self._log_first_step(step, finished, directory)
        self.steps.append(step)

    def add_records(self, records: int) -> None:
        """Records of the step in another directory."""
        self._records += records

    def _log_first_step(self, step: int, finished: Finished, directory: Path) -> None:
        tensors = (
            f", {count(finished.tensors, 'tensor file')} and {count(finished.links, 'link')} to them"
            if finished.tensors
            else ""
        )
        notices.inform(f"step {step}: {count(finished.records, 'record')}{tensors} in {directory}.")
        wanted = self.settings.step
        more = _MANY_STEPS if wanted is None else len(wanted) - 1
        free = _free_bytes(self.settings.dump_path)
        if finished.bytes * more > free:
            left = "no last step is set" if wanted is None else f"{more} more are wanted"
            notices.warn(
                f"one step took {_size(finished.bytes)} on disk and {left}; {_size(free)} are free. "
                'Set "step" in the configuration to collect fewer.'
            )

    def log_result(self, last_step: int, unmatched: Sequence[str]) -> None:
        """At the end of the run: logs everything that was wanted and is missing."""
        settings = self.settings
        if not self.started and self.replaced:
            return
        if self.starts_without_step > 1 and len(self.steps) == 1:
            notices.warn(
                f"start() was called {self.starts_without_step} times without step(): all records are in step "
                f"{last_step}. Call step() at the end of each iteration."
            )
        if not self.started:
            notices.warn("nothing was collected: start() was never called.")
        elif self.missed_rank is not None:
            notices.warn(
                f"nothing was collected: this process is rank {self.missed_rank}, and the configuration collects "
                f"rank {sorted(settings.rank or ())}."
            )
        elif settings.step is not None:
            missing = sorted(settings.step - set(self.steps))
            if missing:
                notices.warn(
                    f"{_steps(missing)} {'was' if len(missing) == 1 else 'were'} wanted and never ran: the run ended "
                    f"in step {last_step} (step() ends a step; steps count from 0)."
                )
        if not self.steps:
            return
        for message in unmatched:
            notices.warn(message)
        if self.lost:
            lost = count(sum(self.lost.values()), "record, file or directory", "records, files or directories")
            notices.warn(
                f"{lost} of {_steps(list(self.lost))} could not be written in {settings.dump_path}: "
                f"{'this step is' if len(self.lost) == 1 else 'these steps are'} incomplete."
            )
        if self.unmade:
            notices.warn(
                f"some files of {_steps(self.unmade)} could not be written in {settings.dump_path}. No record is lost: "
                f"run `msprobe recover {settings.dump_path}`, which makes dump.json from the journal."
            )
        if self.lost or self.unmade:
            return
        if not unmatched and not self._records and self._task.records_every_call:
            notices.warn(
                f"no record in {settings.dump_path}: no call that msprobe collects ran between start() and stop()."
            )


def log_faults(calls: int, where: str, directory: Path) -> None:
    """Logs that some calls were recorded incompletely because of an error of msprobe."""
    notices.warn_once(
        f"{count(calls, 'call')} {where} {were(calls)} recorded incompletely; training was not affected. "
        f"The reasons are in {directory / layout.ERRORS}."
    )


def _free_bytes(path: Path) -> int:
    """Free space at `path`, or at the nearest directory above it that exists."""
    for place in (path, *path.parents):
        try:
            return shutil.disk_usage(place).free
        except OSError:
            continue
    return 0


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


def _steps(numbers: Sequence[int]) -> str:
    return f"step{'s' if len(numbers) != 1 else ''} {_some(numbers)}"


def _some(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:5]))
    return f"{shown} and {len(numbers) - 5} more" if len(numbers) > 5 else shown
