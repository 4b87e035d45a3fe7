"""The readers of complete dumps of real runs: a training step with all its events, and compiled regions."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from fuzzing import Target

from msprobe.cli import _run

SCRIPT = Path(__file__).with_name("collect_runs.py")
CHANGED = ("dump.json", "training.json", "run.json", "stack.json", "source.json", "construct.json", "flow.json")

PROOF = {
    "schema": "msprobe/prove/1", "verdict": "not proved", "exact": False, "rest": "linear differs", "step": 1,
    "target": 1.5, "golden": 1.0, "after": [1.25], "differing": 9,
    "causes": [{"name": "Functional.linear.0.forward", "module": "Module.a.Linear.forward.0", "source": "train.py:7",
                "sentence": "differs", "ran": 2, "changed": 64, "share": 0.5, "calls": 1, "left": 4}],
}  # fmt: skip


def read_both(path: Path) -> None:
    """The damaged run as target and as golden, and alone."""
    _run("compare", [str(path / "changed"), str(path / "right"), "--json", str(path / "rows")], None)
    _run("compare", [str(path / "right"), str(path / "changed")], None)
    _run("overflow", [str(path / "changed")], None)


def view(path: Path) -> None:
    _run("view", [str(path / "changed"), str(path / "right"), "--export", str(path / "page.html")], None)


def view_proof(path: Path) -> None:
    _run("view", [str(path), "--export", str(path / "page.html")], None)


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
    proof = root / "proof"
    shutil.copytree(runs / "training", proof / "run1" / "dump", symlinks=True)
    (proof / "proof.json").write_text(json.dumps(PROOF))
    targets.append(Target("proof, view", view_proof, proof, proof / "proof.json", weight=12))
    shutil.rmtree(runs)
    return targets
