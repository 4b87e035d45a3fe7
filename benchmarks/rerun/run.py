"""What `msprobe again` and `msprobe prove` cost, as a ratio of CPU times: theirs against one bare run of the script.

python -m benchmarks.rerun.run [ROUNDS]        ROUNDS, each with all three in turn; default 3

Python may keep compiled modules, as in any installation: else each process would compile msprobe again.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
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
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    bare: list[float] = []
    again: list[float] = []
    prove: list[float] = []
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        os.environ["PYTHONPYCACHEPREFIX"] = str(directory / "compiled")
        collect_golden(directory)  # also compiles all modules
        dumps = ["--golden", str(directory / "golden"), "--tensors", str(directory / "tensors")]
        cpu_seconds(["-c", "import msprobe.rerun.prove, msprobe.rerun.again, msprobe.report.terminal"])
        for _ in range(rounds):
            bare.append(cpu_seconds(["-m", SCRIPT]))
            prove.append(cpu_seconds(["-m", "msprobe", "prove", *dumps, "-m", SCRIPT, FAULT]))
            bare.append(cpu_seconds(["-m", SCRIPT]))
            again.append(cpu_seconds(["-m", "msprobe", "again", "-m", SCRIPT]))
    one = statistics.median(bare)
    print(f"{STEPS} steps, {rounds} rounds, load {os.getloadavg()[1]:.1f}, s of CPU time; bare: {_list(bare)}")
    for name, times in (("again, two runs", again), ("prove, one cause", prove)):
        print(f"msprobe {name}: {_list(times)}: {statistics.median(times) / one:.2f} bare runs")


def _list(times: Sequence[float]) -> str:
    return ", ".join(f"{one:.2f}" for one in times)


if __name__ == "__main__":
    main()
