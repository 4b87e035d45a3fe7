"""Runs the cases of one model in this process: each golden run once, each target, `msprobe compare`, the judgement."""

from __future__ import annotations

import contextlib
import io
import json
import math
import shutil
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import torch
from cases import Case, Side
from judge import BROKEN, Judgement, judge
from training import run

from msprobe.cli import main as msprobe

torch.set_num_threads(1)
Golden = tuple[Path, dict[str, float]]


def run_cases(cases: list[Case], keep: Optional[Path] = None) -> Iterator[tuple[Judgement, float]]:
    """Yields a judgement and its seconds for each case. All cases are of one model. `keep` is where dumps remain."""
    folder = keep or Path(tempfile.mkdtemp(prefix="quality-"))
    goldens: dict[str, Golden] = {}
    try:
        for number, case in enumerate(cases):
            started = time.perf_counter()
            target = folder / (case.id.replace("/", "-") if keep else f"target{number}")
            try:
                with open_log(folder):
                    found = _run(case, target, folder, goldens)
            except Exception as error:
                traceback.print_exc()
                found = Judgement(case.id, case.model, case.kind, BROKEN, f"{type(error).__name__}: {error}")
            yield found, time.perf_counter() - started
            if keep is None:
                shutil.rmtree(target, ignore_errors=True)
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def open_log(folder: Path) -> Iterator[None]:
    """What msprobe and the models print goes to a file in the folder."""
    with (folder / "log.txt").open("a") as log, contextlib.redirect_stderr(log), contextlib.redirect_stdout(log):
        yield


def _run(case: Case, target: Path, folder: Path, goldens: dict[str, Golden]) -> Judgement:
    if case.golden.key not in goldens:
        dump = folder / f"golden{len(goldens)}"
        goldens[case.golden.key] = dump, train(case.model, case.golden, dump)
    golden, usual = goldens[case.golden.key]
    came_to = train(case.model, case.target, target)
    return judge(case, *answer(target, golden), effect(came_to, usual))


def train(model: str, side: Side, dump: Path) -> dict[str, float]:
    shutil.rmtree(dump, ignore_errors=True)
    return run(model, json.loads(side.config), side.recipe, side.plant, dump)


def effect(target: dict[str, float], golden: dict[str, float]) -> float:
    """The largest relative difference in what two runs came to; infinite where the parameters have other names."""
    if target.keys() != golden.keys():
        return math.inf
    return max(abs(value - golden[name]) / max(abs(golden[name]), 1e-12) for name, value in target.items())


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
