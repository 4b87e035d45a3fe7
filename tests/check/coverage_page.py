"""docs/run_ut_apis.md: which APIs of the PyTorch support list are not checked from generated inputs, and why.

python tests/check/coverage_page.py      runs them all, and writes the page
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from torch_samples import NOT_CALLED

from msprobe.check.pytorch.resolve import Callables

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "run_ut_apis.md"
# How a message of the results file reads in the docs; the first that fits.
_IN_SHORT = {
    "random numbers": "it draws random numbers (for dropout, the share of zeros is judged)",
    "not unique": "its result is not unique: order or signs may differ",
    "positive-definite": "it needs a matrix with a property that Min and Max do not show: dump with task `tensor`",
    "golden side cannot run it": "torch has no kernel in higher precision for it, so there is no golden",
    "bit of its input": "its result depends on every bit of its input: a golden in higher precision differs",
}


class Verdict(NamedTuple):
    forward: str
    backward: str
    message: str


class Survey(NamedTuple):
    """`known` are all titles that resolve here, `verdicts` those of the ones that were called."""

    known: list[str]
    verdicts: dict[str, Verdict]


def survey(path: Path) -> Survey:
    """Calls everything under the debugger (statistics only), then checks the dump."""
    config = path / "config.json"
    config.write_text(json.dumps({"task": "statistics", "level": "L1", "dump_path": str(path / "dump"), "step": [0]}))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    script = [sys.executable, str(HERE / "torch_survey.py"), str(config)]
    done = subprocess.run(script, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    called = json.loads(done.stdout.splitlines()[-1])
    check = ["-m", "msprobe", "run_ut", "-api_info", str(path / "dump"), "-o", str(path / "out"), "--jobs", "2"]
    subprocess.run([sys.executable, *check], env=environment, capture_output=True, check=False)
    (file,) = (path / "out").glob("accuracy_checking_result_*.csv")
    found: dict[str, Verdict] = {}
    for name, *rest in sorted(list(csv.reader(file.open()))[1:]):  # rows come in the order in which two workers finish
        title, verdict = name.rpartition(".")[0], Verdict(*rest)
        if title not in found or _telling(verdict) >= _telling(found[title]):
            found[title] = verdict
    return Survey(list(Callables().known), {title: found[title] for title in called})


def _telling(verdict: Verdict) -> tuple[bool, int]:
    """Of several calls of one API, a wrong one counts, else the last of those judged most."""
    judged = (verdict.forward, verdict.backward)
    return bool({"error", "warning"} & set(judged)), judged.count("pass")


def reasons(done: Survey) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Titles by the reason: those that were not called, and those that were and not judged."""
    by_name = {name: reason for reason, names in NOT_CALLED.items() for name in names}
    called: dict[str, list[str]] = defaultdict(list)
    left_out: dict[str, list[str]] = defaultdict(list)
    for title in done.known:
        verdict = done.verdicts.get(title)
        if verdict is None:
            left_out[by_name.get(title.partition(".")[2], "no sample of its arguments is known")].append(title)
        elif verdict.forward != "pass":
            short = next((text for part, text in _IN_SHORT.items() if part in verdict.message), verdict.message)
            called[short].append(title)
    return left_out, called


def page(done: Survey) -> str:
    left_out, called = reasons(done)
    forward = sum(one.forward == "pass" for one in done.verdicts.values())
    both = sum(one.backward == "pass" for one in done.verdicts.values())
    lines = [
        "# Which APIs run_ut cannot check from statistics",
        "",
        f"Of the {len(done.known):,} callables of the packaged [support list](apis.md) under torch 2.13 on a CPU, "
        f"{len(done.verdicts):,} are called by a test with inputs made from Max and Min; {forward:,} of them are "
        f"judged and pass, {both:,} with their backward too (the others have none). The rest, by reason. "
        "Written by `python tests/check/coverage_page.py`; a test checks it.",
        "",
        "## Not called",
        *_table(left_out),
        "",
        "## Called, and not judged",
        *_table(called),
        "",
    ]
    return "\n".join(lines)


def _table(rows: dict[str, list[str]]) -> list[str]:
    text = ["| reason | APIs |", "|---|---|"]
    for reason, titles in sorted(rows.items()):
        text.append(f"| {reason} | {', '.join(f'`{title}`' for title in sorted(titles))} |")
    return text


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        PAGE.write_text(page(survey(Path(scratch))))
