"""Runs the cases of one model in this process: each golden run once, each target, `msprobe compare`, the judgement."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Optional

import torch
from cases import Case, Side
from judge import BROKEN, Effect, Judgement, judge
from training import Outcome, run

from msprobe.cli import main as msprobe

torch.set_num_threads(1)
UNKNOWN = Effect(math.nan, None)
ABORTED = "terminate called without an active exception"
"""What gloo says when it aborts a process that has done its work."""


def run_cases(cases: list[Case], keep: Optional[Path] = None) -> Iterator[tuple[Judgement, float]]:
    """Yields a judgement and its seconds for each case. All cases are of one model.

    `keep` is where dumps remain; a dump that is already there is not made again.
    """
    folder = keep or Path(tempfile.mkdtemp(prefix="quality-"))
    try:
        if cases[0].processes > 1:
            yield from _run_together(cases, folder)
            return
        for case in cases:
            started = time.perf_counter()
            target = folder / _file_name(case.name)
            try:
                with open_log(folder):
                    found = _run(case, target, folder)
            except Exception as error:
                found = _broken(case, error)
            yield found, time.perf_counter() - started
            if keep is None:
                shutil.rmtree(target, ignore_errors=True)
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)


def _broken(case: Case, error: Exception) -> Judgement:
    traceback.print_exc()
    return Judgement(case.id, case.model, case.kind, BROKEN, f"{type(error).__name__}: {error}")


def _run_together(cases: list[Case], folder: Path) -> Iterator[tuple[Judgement, float]]:
    """Cases of several processes: one launch trains them all, one after the other."""
    started = time.perf_counter()
    goldens: dict[str, Path] = {}
    jobs: list[tuple[str, str, str]] = []
    for case in cases:
        if case.golden.key not in goldens:
            goldens[case.golden.key] = folder / _golden_name(case)
            jobs.append((case.id, "golden", str(goldens[case.golden.key])))
        jobs.append((case.id, "target", str(folder / _file_name(case.name))))
    try:
        jobs = [job for job in jobs if not _outcome_file(Path(job[2])).exists()]
        if jobs:
            launch(jobs, cases[0].processes, folder)
        for _, _, dump in jobs:
            _outcome_file(Path(dump)).write_text("{}")
    except RuntimeError as error:
        yield from ((_broken(case, error), 0.0) for case in cases)
        return
    for case in cases:
        try:
            with open_log(folder):
                found = judge(case, *answer(folder / _file_name(case.name), goldens[case.golden.key]), UNKNOWN)
        except Exception as error:
            found = _broken(case, error)
        yield found, time.perf_counter() - started
        started = time.perf_counter()


def launch(jobs: list[tuple[str, str, str]], processes: int, folder: Path) -> None:
    """Trains in several processes over gloo, which now and then aborts a process that ends: then once more."""
    plan = folder / "jobs.json"
    plan.write_text(json.dumps(jobs))
    command = [sys.executable, str(Path(__file__).with_name("ranks.py")), str(plan)]
    for _ in range(3):
        for _, _, dump in jobs:
            shutil.rmtree(dump, ignore_errors=True)
        (folder / "store").unlink(missing_ok=True)
        environment = {**os.environ, "WORLD_SIZE": str(processes)}
        ranks = [
            subprocess.Popen(
                command, env={**environment, "RANK": str(rank)}, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
            )
            for rank in range(processes)
        ]
        errors = [process.communicate()[1].decode() for process in ranks]
        if not any(process.returncode for process in ranks):
            return
        if not any(ABORTED in error for error in errors):
            break
    raise RuntimeError("the processes failed: " + " ".join(errors)[-1000:])


@contextlib.contextmanager
def open_log(folder: Path) -> Iterator[None]:
    """What msprobe and the models print goes to a file in the folder."""
    with (folder / "log.txt").open("a") as log, contextlib.redirect_stderr(log), contextlib.redirect_stdout(log):
        yield


def _run(case: Case, target: Path, folder: Path) -> Judgement:
    golden = folder / _golden_name(case)
    usual = train(case.model, case.golden, golden)
    came_to = train(case.model, case.target, target)
    return judge(case, *answer(target, golden), effect(came_to, usual))


def _golden_name(case: Case) -> str:
    return "golden-" + hashlib.sha256(case.golden.key.encode()).hexdigest()[:12]


def _file_name(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_=.-]+", "_", name)


def _outcome_file(dump: Path) -> Path:
    """What the run of a dump came to. It exists when the dump is complete."""
    return dump.with_name(dump.name + "-outcome.json")


def train(model: str, side: Side, dump: Path) -> Outcome:
    """Trains and records, unless that is done already. A dump that another process makes meanwhile is used as it is."""
    done = _outcome_file(dump)
    if not done.exists():
        making = dump.with_name(f"{dump.name}-{os.getpid()}")
        shutil.rmtree(making, ignore_errors=True)
        outcome = run(model, json.loads(side.config), side.recipe, side.plant, making)
        with contextlib.suppress(OSError):
            making.rename(dump)
        shutil.rmtree(making, ignore_errors=True)
        done.write_text(json.dumps(asdict(outcome)))
    return Outcome(**json.loads(done.read_text()))


def effect(target: Outcome, golden: Outcome) -> Effect:
    """Infinite where the parameters have other names."""
    if target.moved.keys() != golden.moved.keys() or target.start.keys() != golden.start.keys():
        return Effect(math.inf, None)
    usual = golden.moved
    size = max(abs(value - usual[name]) / max(abs(usual[name]), 1e-12) for name, value in target.moved.items())
    return Effect(size, {name for name, value in target.start.items() if value != golden.start[name]})


def answer(target: Path, golden: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The summary and the rows that `msprobe compare --json` writes; its exit code must fit its verdict."""
    written = target.with_name(target.name + "-rows.jsonl")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = msprobe(["compare", str(target), str(golden), "--json", str(written)])
    lines = written.read_text().splitlines()
    summary, *rows = (json.loads(line) for line in lines)
    written.unlink()
    expected = {"same": 0, "differs": 1}.get(summary["verdict"], 2)
    if code != expected:
        raise AssertionError(f"exit code {code} for the verdict {summary['verdict']}: {printed.getvalue()[-500:]}")
    target.with_name(target.name + ".txt").write_text(printed.getvalue())
    return summary, rows
