"""Drives several trainees in lockstep and computes ratios from their answers.

Two CPU times that are measured minutes apart say more about the machine than about the tool: on a shared virtual
machine the same bare step varies by half. So all variants are alive at once, exactly one runs at a time, and each runs
one step per round. Ratios are computed inside a round; the result is the median over the rounds.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

STEP = Path(__file__).with_name("step.py")
ROOT = STEP.parent.parent


@dataclass(frozen=True)
class Case:
    """What to measure. `idle` dumps only step 0 and measures the later steps."""

    level: str = "L1"
    mode: str = "statistics"  # statistics, md5 or tensor: a task, or a summary mode of the task statistics
    layers: int = 4
    idle: bool = False

    @property
    def name(self) -> str:
        return "idle" if self.idle else f"{self.level}/{self.mode}"

    def arguments(self) -> list[str]:
        task = "tensor" if self.mode == "tensor" else "statistics"
        summary = "md5" if self.mode == "md5" else "statistics"
        options = ["--task", task, "--level", self.level, "--summary-mode", summary]
        return [*options, "--layers", str(self.layers), *(["--idle"] if self.idle else [])]


@dataclass(frozen=True)
class Variant:
    """One variant: its name, the tool that step.py uses, and the interpreter that has it."""

    name: str
    role: str
    python: str


@dataclass
class Measurement:
    """The cost of one variant in one case."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    hello: dict[str, Any] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    error: Optional[str] = None

    def ratio(self, bare: Measurement, what: str = "cpu") -> Optional[float]:
        """Median over the rounds of (this variant's step / the bare step of the same round)."""
        ratios = self.ratios(bare, what)
        return statistics.median(ratios) if ratios else None

    def ratios(self, bare: Measurement, what: str = "cpu") -> list[float]:
        if self.error or bare.error:
            return []
        return [a / b for a, b in zip(getattr(self, what), getattr(bare, what))]

    def median_cpu(self) -> Optional[float]:
        return statistics.median(self.cpu) if self.cpu and not self.error else None


class TraineeError(RuntimeError):
    """A trainee ended. The message has the end of its output."""


class Trainee:
    """The parent side of one step.py process."""

    def __init__(self, variant: Variant, case: Case, work: Path, threads: int, spin: bool) -> None:
        home = variant.name.replace(" ", "-")  # the peer refuses a path with a blank
        self.log = work / f"{home}.log"
        command = [variant.python, str(STEP), "--variant", variant.role, "--out", str(work / home)]
        self.process = subprocess.Popen(
            [*command, "--threads", str(threads), *case.arguments()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            text=True,
            cwd=work,
            env=environment(threads, spin),
        )
        self.hello = self.read()

    def ask(self, command: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise TraineeError(self.last_words()) from None
        return self.read()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise TraineeError(self.last_words())
        return dict(json.loads(line))

    def last_words(self) -> str:
        code = self.process.wait()
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return f"exit code {code}: " + (lines[-1] if lines else "nothing was printed")

    def close(self) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def environment(threads: int, spin: bool) -> dict[str, str]:
    """The environment, the same for all. OpenMP threads sleep by default: spinning would count as CPU time."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "OMP_WAIT_POLICY")}
    kept["OMP_NUM_THREADS"] = str(threads)
    if not spin:
        kept["OMP_WAIT_POLICY"] = "PASSIVE"
    return kept


def measure(
    case: Case, variants: list[Variant], rounds: int, threads: int, spin: bool = False, warmup: int = 2
) -> dict[str, Measurement]:
    """Runs `rounds` counted rounds of every variant. A variant that fails gets an `error`; the others continue."""
    measurements = {v.name: Measurement() for v in variants}
    trainees: dict[str, Trainee] = {}
    work = Path(tempfile.mkdtemp(prefix="msprobe-bench-"))
    try:
        for variant in variants:
            try:
                trainees[variant.name] = Trainee(variant, case, work, threads, spin)
                measurements[variant.name].hello = trainees[variant.name].hello
            except TraineeError as error:
                measurements[variant.name].error = str(error)
        for number in range(warmup + rounds):
            for name in rotated([v.name for v in variants], number):
                turn(trainees, measurements[name], name, counted=number >= warmup)
        for name, trainee in trainees.items():
            if measurements[name].error is None:
                measurements[name].report = trainee.ask("report")
    finally:
        for trainee in trainees.values():
            trainee.close()
        shutil.rmtree(work, ignore_errors=True)
    return measurements


def turn(trainees: dict[str, Trainee], measurement: Measurement, name: str, counted: bool) -> None:
    if measurement.error is not None:
        return
    try:
        answer = trainees[name].ask("step")
    except TraineeError as error:
        measurement.error = str(error)
        return
    measurement.losses.append(answer["loss"])
    if counted:
        measurement.cpu.append(answer["cpu"])
        measurement.wall.append(answer["wall"])


def rotated(names: list[str], number: int) -> list[str]:
    """Each round starts with another variant, so that none always follows the slowest."""
    start = number % len(names)
    return names[start:] + names[:start]


def peer_python() -> Optional[str]:
    """The interpreter with mindstudio-probe: MSPROBE_PEER_PYTHON, or the venv of the Makefile."""
    named = os.environ.get("MSPROBE_PEER_PYTHON")
    path = Path(named) if named else ROOT / ".venv-peer" / "bin" / "python"
    return str(path) if path.exists() else None
