"""`msprobe again`: runs a script twice and says whether it repeats itself, and if not, where and why.

The first two runs record checksums. If a call returns different bytes for equal inputs, a third run goes as far as
that call and repeats it alone. With `fix`, two more runs try the remedy.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from msprobe.config.directions import REFUSED, Directions, Remedies, Repeat
from msprobe.dump.errors import DumpError
from msprobe.dump.plural import count
from msprobe.dump.reader import Dump, open_dump
from msprobe.messages import beside
from msprobe.rerun.causes import Cause, Evidence, explain, wants_repetition
from msprobe.rerun.first_difference import (
    INPUT,
    Comparison,
    Difference,
    compare_runs,
    first_batches,
    refuse_without_checksums,
)
from msprobe.rerun.launch import Script, run_script

REPETITIONS = 16
STEPS = 10
_NAMES = ("first", "second", "third", "fourth", "fifth")


class ScriptFailed(DumpError):
    """The script ended with an error, or recorded nothing."""


@dataclass(frozen=True)
class Request:
    """What to run. `directory` gets the dumps. Without `steps`, the first ten are compared.
    `against` is an earlier dump that takes the place of the first run."""

    script: Script
    directory: Path
    steps: str = ""
    level: str = "mix"
    against: Optional[Path] = None
    fix: bool = False


@dataclass(frozen=True)
class Answer:
    """`difference` and `cause` are None if the run repeats itself. `helped` is the answer of `--fix`: whether the runs
    with the remedy are equal; None if it was not tried."""

    comparison: Comparison
    difference: Optional[Difference] = None
    cause: Optional[Cause] = None
    helped: Optional[bool] = None

    @property
    def repeats(self) -> bool:
        return self.difference is None

    def lines(self) -> list[str]:
        """The answer for people."""
        found = self.comparison
        ranks = f" on {found.ranks} ranks" if found.ranks > 1 else ""
        extent = f"{count(found.records, 'record')} in {count(len(found.steps), 'step')}{ranks}"
        one, why = self.difference, self.cause
        if one is None or why is None:
            return [f"The run repeats itself: {extent} are equal, bit for bit."]
        module = f" in {one.module}" if one.module else ""
        step = "" if one.step is None else f"step {one.step}"
        rank = "" if one.rank is None else f", rank {one.rank}"
        lines = [
            f"The run does not repeat itself. First difference: {one.name}{module}",
            f"  where   {step}{rank}, {one.slot or 'the call itself'}; {one.before} records before it are equal",
        ]
        if one.source:
            lines.append(f"  source  {one.source}")
        lines += [f"  cause   {why.word}: {why.sentence}", f"  remedy  {why.remedy}"]
        if self.helped is not None:
            told = "two runs with it are equal, bit for bit" if self.helped else "two runs with it still differ"
            lines.append(f"  tried   {_tried(why)}: {told}")
        return lines

    def summary(self) -> dict[str, Any]:
        """The answer for programs."""
        one, why = self.difference, self.cause
        found: dict[str, Any] = {"repeats": self.repeats, "records": self.comparison.records}
        if one is not None and why is not None:
            found.update(
                name=one.name, module=one.module, step=one.step, rank=one.rank, slot=one.slot, source=one.source,
                cause=why.word, sentence=why.sentence, remedy=why.remedy, helped=self.helped,
            )  # fmt: skip
            found.update(beside(found, "sentence", "remedy"))
        return found


def again(request: Request, say: Callable[[str], None]) -> Answer:
    """Runs the script and compares. Raises DumpError if there is nothing to compare, ScriptFailed if a run fails."""
    runs = _Runs(request, say)
    if request.against is not None:
        first = open_dump(request.against)
        for rank in first.ranks[:1]:  # before the script runs for nothing
            refuse_without_checksums(rank)
    else:
        first = runs.record()
    second = runs.record()
    compared = compare_runs(first, second)
    difference = compared.first
    if difference is None:
        return Answer(compared)
    evidence = Evidence(difference, None, _find_elsewhere(difference, second))
    if wants_repetition(evidence):
        evidence = replace(evidence, repeated=runs.repeat(difference))
    cause = explain(evidence)
    helped = None
    if request.fix and _can_try(cause):
        remedy = [runs.record(cause.remedies, cause.environment) for _ in range(2)]
        helped = not compare_runs(*remedy).differences
    return Answer(compared, difference, cause, helped)


class _Runs:
    """The runs of one request, each with a dump of its own."""

    def __init__(self, request: Request, say: Callable[[str], None]) -> None:
        self._request = request
        self._say = say
        self._count = 0

    def record(self, remedies: Optional[Remedies] = None, environment: Optional[Mapping[str, str]] = None) -> Dump:
        directory = self._begin(" with the remedy" if remedies is not None else "")
        self._run(directory, None, remedies or Remedies(), environment or {})
        dump = directory / "dump"
        if not dump.is_dir():
            early = f"it ended before step {self._request.steps}, or " if self._request.steps else "it "
            raise ScriptFailed(
                f"the {_NAMES[self._count - 1]} run of {self._request.script} recorded nothing: {early}called no "
                "torch.nn.Module or mindspore.nn.Cell with parameters. If it only calls functions of torch, use "
                "--level L1"
            )
        return open_dump(dump)

    def repeat(self, difference: Difference) -> Optional[dict[str, Any]]:
        """Runs the script as far as the call, and repeats the call alone."""
        directory = self._begin(f", to repeat {difference.name} alone")
        report = directory / "report.json"
        step = difference.step or 0
        order = Repeat(difference.name, step, difference.rank, REPETITIONS, str(report))
        self._run(directory, order, Remedies(), {}, str(step))
        found = json.loads(report.read_text(encoding="utf-8")) if report.is_file() else None
        return found if isinstance(found, dict) else None

    def _begin(self, what: str) -> Path:
        directory = self._request.directory / f"run{self._count + 1}"
        directory.mkdir(mode=0o750)
        self._say(f"{_NAMES[self._count]} run of {self._request.script}{what}")
        self._count += 1
        return directory

    def _run(
        self,
        directory: Path,
        repeat: Optional[Repeat],
        remedies: Remedies,
        environment: Mapping[str, str],
        steps: str = "",
    ) -> None:
        config = directory / "config.json"
        wanted = steps or self._request.steps
        last = max(map(int, re.findall(r"\d{1,9}", wanted)), default=STEPS - 1)
        settings = {
            "task": "statistics",
            "dump_path": str(directory / "dump"),
            "step": wanted.split(",") if wanted else [],
            "level": self._request.level,
            "statistics": {"summary_mode": "md5"},
        }
        config.write_text(json.dumps(settings), encoding="utf-8")
        config.chmod(0o640)
        directions = Directions(str(config), last, repeat, remedies)
        code = run_script(self._request.script, directions, directory, {**os.environ, **environment})
        refusal = directory / REFUSED
        if refusal.is_file():
            raise ScriptFailed(refusal.read_text(encoding="utf-8"))
        if code:
            raise ScriptFailed(
                f"the {_NAMES[self._count - 1]} run of {self._request.script} failed with exit code {code}: there is "
                "nothing to compare"
            )


def _find_elsewhere(difference: Difference, second: Dump) -> Optional[int]:
    """The step at which the second run was given what the first run was given at the difference."""
    if difference.kind != INPUT:
        return None
    wanted = difference.items[0].get("md5")
    return next(
        (step for step, checksum in first_batches(second) if checksum == wanted and step != difference.step), None
    )


def _can_try(cause: Cause) -> bool:
    return cause.remedies != Remedies() or bool(cause.environment)


def _tried(cause: Cause) -> str:
    remedies = cause.remedies
    words = [
        f"seed {remedies.seed}" if remedies.seed is not None else "",
        "deterministic algorithms" if remedies.deterministic else "",
        f"{remedies.threads} thread" if remedies.threads is not None else "",
        *(f"{name}={value}" for name, value in cause.environment.items()),
    ]
    return ", ".join(filter(None, words))
