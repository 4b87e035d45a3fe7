"""The readers of complete dumps of real runs: a training step with all its events, and compiled regions."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from fuzzing import Target

from msprobe.cli import _run

SCRIPT = Path(__file__).with_name("collect_runs.py")
CHANGED = ("dump.json", "training.json", "run.json", "stack.json", "source.json", "construct.json")


def read_both(path: Path) -> None:
    """The damaged run as target and as golden, and alone."""
    _run("compare", [str(path / "changed"), str(path / "right"), "--json", str(path / "rows")], None)
    _run("compare", [str(path / "right"), str(path / "changed")], None)
    _run("overflow", [str(path / "changed")], None)


def view(path: Path) -> None:
    _run("view", [str(path / "changed"), str(path / "right"), "--export", str(path / "page.html")], None)


def make_targets(root: Path) -> list[Target]:
    runs = root / "runs"
    runs.mkdir(parents=True)
    done = subprocess.run([sys.executable, str(SCRIPT), str(runs)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    pairs = (
        ("training directory", "training", "training_golden", read_both),
        ("training directory, view", "training", "training_golden", view),
        ("compiled directory, closed", "closed", "training", read_both),
        ("compiled directory, open", "open", "training", read_both),
    )
    targets = []
    for name, changed, right, read in pairs:
        place = root / name
        shutil.copytree(runs / changed, place / "changed", symlinks=True)
        shutil.copytree(runs / right, place / "right", symlinks=True)
        rank = place / "changed" / "step0" / "rank"
        files = [rank / one for one in CHANGED if (rank / one).exists()]
        targets.append(Target(name, read, place, *files, weight=12))
    shutil.rmtree(runs)
    return targets
