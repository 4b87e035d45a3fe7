"""free_benchmark: a call runs a second time on changed input, and the two results are compared; no golden run.

The framework changes the input and runs the call. What a difference means, the limits and how preheating
moves them, the csv and the summary are here.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from msprobe.collect import notices
from msprobe.config.settings import FreeBenchmarkSettings
from msprobe.dump import layout
from msprobe.dump.plural import count, were
from msprobe.tasks.free_benchmark.limits import limit_of
from msprobe.tasks.free_benchmark.perturbation import ADD_NOISE, IMPROVE, NOISE

CSV = "free_benchmark.csv"
COLUMNS = ("rank", "pert_mode", "stage", "step", "api_name", "max_rel", "dtype", "shape", "output_index")
_SHOWN = 10


@dataclass(frozen=True)
class Difference:
    """The comparison of one output."""

    index: Optional[int]  # None where the call has one output
    dtype: str  # its limit is used
    ratio: float
    unequal: int

    def exceeds(self, limit: float) -> bool:
        return self.unequal > 0 if limit == 1.0 else self.ratio > limit


@dataclass
class _ApiResult:
    """One API over the run."""

    checked: int = 0
    failed: int = 0
    worst: float = 0.0
    where: str = ""


@dataclass
class _Preheat:
    """The limit of one API and dtype, and how often it was sampled in this step."""

    limit: float
    samples: Counter[int] = field(default_factory=Counter)


class FreeBenchmarkRun:
    """The results over the steps of a run."""

    def __init__(self, section: FreeBenchmarkSettings, dump_path: Path) -> None:
        self.section = section
        self._csv = Results(dump_path / CSV)
        self._results: dict[str, _ApiResult] = {}
        self._preheated: dict[tuple[str, str], _Preheat] = {}
        self._skipped: dict[str, str] = {}
        self._first_step: Optional[int] = None
        self.unchanged = 0  # calls in which the mode has nothing to change

    def limit(self, title: str, dtype: str, stage: str) -> float:
        known = self._preheated.get((title, dtype))
        return known.limit if known is not None else limit_of(dtype, self.section.pert_mode, stage)

    def wants_sample(self, title: str, dtype: str, step: int) -> bool:
        """Whether this call is also compared with the CPU."""
        if not self.section.if_preheat:
            return False
        self._first_step = step if self._first_step is None else self._first_step
        if step - self._first_step >= self.section.preheat_step:
            return False
        entry = self._preheated.setdefault((title, dtype), _Preheat(limit_of(dtype, self.section.pert_mode, "forward")))
        entry.samples[step] += 1
        return entry.samples[step] <= self.section.max_sample

    def preheat(self, title: str, dtype: str, changed: float, against_cpu: float) -> None:
        """Takes one sample: a false alarm raises the limit of this API, a fault that would be missed lowers it."""
        entry = self._preheated[title, dtype]
        base = limit_of(dtype, self.section.pert_mode, "forward")
        if against_cpu <= base < math.inf and changed > entry.limit and math.isfinite(changed):
            entry.limit = changed
        elif against_cpu > base and 1.0 < changed <= entry.limit:
            entry.limit = 1.0 + (changed - 1.0) / 2

    def judge(
        self, name: str, stage: str, step: int, rank: int, dtype: str, shape: tuple[int, ...],
        differences: list[Difference], where: str,
    ) -> None:  # fmt: skip
        """Counts a call, and writes a row for each output that differs too much."""
        title = ".".join(name.split(".")[:-1])
        result = self._results.setdefault(title, _ApiResult())
        result.checked += 1
        failed = [one for one in differences if one.exceeds(self.limit(title, one.dtype, stage))]
        if not failed:
            return
        result.failed += 1
        worst = max(one.ratio for one in failed)
        if worst >= result.worst:
            result.worst, result.where = worst, where
        for one in failed:
            index = "" if one.index is None else one.index
            row = (rank, self.section.pert_mode, stage, step, name, one.ratio - 1.0, dtype, shape, index)
            self._csv.add(row)

    def skip(self, title: str, reason: str) -> None:
        """Logs once that an API cannot be checked."""
        if title not in self._skipped:
            self._skipped[title] = reason
            notices.warn(f"free_benchmark: {title} is not checked: {reason}.")

    def _why_unchanged(self) -> str:
        calls = count(self.unchanged, "call")
        if self.section.pert_mode == IMPROVE:
            return (
                f"{calls} had no float16 or bfloat16 input, and only those can be raised. "
                "Use another pert_mode, such as bit_noise or to_cpu"
            )
        if self.section.pert_mode == ADD_NOISE:
            return (
                f"{calls} had no value that the noise changes: {NOISE['float32']:g} in float32 is less than half the "
                "spacing of values from 0.25 on, and values up to its square root are left alone. Use bit_noise"
            )
        return f"{calls} had no input that this mode changes"

    def summary(self) -> list[str]:
        """The message at the end of the run: the APIs, the most unstable first."""
        mode = self.section.pert_mode
        checked = sum(one.checked for one in self._results.values())
        if not checked:
            why = f": {self._why_unchanged()}" if self.unchanged else ""
            return [f"free_benchmark ({mode}): no call was checked{why}."]
        unchanged = []
        if self.unchanged and mode == ADD_NOISE:
            unchanged.append(f"free_benchmark ({mode}): not checked: {self._why_unchanged()}.")
        failing = sorted(
            ((title, one) for title, one in self._results.items() if one.failed),
            key=lambda item: (-item[1].worst, -item[1].failed, item[0]),
        )
        head = f"free_benchmark ({mode}): {count(checked, 'call')} {were(checked)} checked"
        if not failing:
            return [f"{head}, and none differs too much.", *unchanged]
        lines = [
            f"{title}: {one.failed} of {one.checked} calls, max_rel {one.worst - 1.0:.3g}, {one.where}"
            for title, one in failing[:_SHOWN]
        ]
        more = [f"and {len(failing) - _SHOWN} more"] if len(failing) > _SHOWN else []
        return ["\n  ".join([f"{head}; the most unstable first ({self._csv.path}):", *lines, *more]), *unchanged]


class Results:
    """free_benchmark.csv: a line is in the file when `add` returns; several ranks may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ready = False

    def add(self, row: tuple[object, ...]) -> None:
        if not self._ready:
            self._open()
            self._ready = True
        self._append(",".join(_cell(value) for value in row) + "\n")

    def _open(self) -> None:
        layout.make_directory(self.path.parent)
        shared = "WORLD_SIZE" in os.environ or "MS_WORKER_NUM" in os.environ
        if self.path.exists() and not shared:
            older = self.path.with_name(f"{CSV}.old-{time.strftime('%Y%m%d%H%M%S')}")
            self.path.rename(older)
            notices.inform(f"an earlier {CSV} was in {self.path.parent}; it is now {older.name}.")
        try:
            fd = layout.open_file(str(self.path), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return
        try:
            layout.write_all(fd, (",".join(COLUMNS) + "\n").encode())
        finally:
            os.close(fd)

    def _append(self, line: str) -> None:
        fd = layout.open_file(str(self.path), os.O_WRONLY | os.O_APPEND)
        try:
            layout.write_all(fd, line.encode("utf-8", "backslashreplace"))
        finally:
            os.close(fd)


def _cell(value: object) -> str:
    text = f"{value:.9g}" if isinstance(value, float) else str(value)
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\n') else text
