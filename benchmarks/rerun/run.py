"""What `msprobe again` and `msprobe prove` cost, as a ratio of CPU times: theirs against one bare run of the script.

python -m benchmarks.rerun.run
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.rerun.train import STEPS

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "benchmarks.rerun.train"
FAULT = "0.01"
CALL = "Functional.layer_norm.4.forward"
"""The LayerNorm of the fault: the third block, with two in each block before it."""


def cpu_seconds(words: Sequence[str], expected: int = 0) -> float:
    """The CPU time of a command and of all processes that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *words], cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode != expected:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def collect_golden(directory: Path) -> None:
    """Checksums of all calls, and the tensors of the call that will be blamed."""
    for name, task, section in (
        ("golden", "statistics", {"summary_mode": "md5"}),
        ("tensors", "tensor", {"list": [CALL, CALL.replace("forward", "backward")]}),
    ):
        settings = {"task": task, "level": "mix", "dump_path": str(directory / name), "step": [f"0-{STEPS - 1}"]}
        config = directory / f"{name}.json"
        config.write_text(json.dumps({**settings, task: section}), encoding="utf-8")
        cpu_seconds(["-m", "msprobe", "run", "--config", str(config), "-m", SCRIPT])


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        bare = [cpu_seconds(["-m", SCRIPT]), cpu_seconds(["-m", SCRIPT])]
        again = cpu_seconds(["-m", "msprobe", "again", "-m", SCRIPT])
        collect_golden(directory)
        dumps = ["--golden", str(directory / "golden"), "--tensors", str(directory / "tensors")]
        prove = cpu_seconds(["-m", "msprobe", "prove", *dumps, "-m", SCRIPT, FAULT])
    one = min(bare)
    print(f"bare script, {STEPS} steps: {bare[0]:.1f} and {bare[1]:.1f} s of CPU time")
    print(f"msprobe again, two runs: {again:.1f} s, {again / one:.2f} bare runs")
    print(f"msprobe prove, one cause: {prove:.1f} s, {prove / one:.2f} bare runs")


if __name__ == "__main__":
    main()
