"""One trainee: a process that trains a GPT and reports the cost of each step.

The parent (lockstep.py) keeps several of these processes alive, one per variant, and lets exactly one run at a time.
It writes one command per line to stdin ("step", "report") and reads one JSON object per line. Each variant has its own
process, because even an idle tool may have changed the process.

The variant `bare` never imports a tool. `ours` (msprobe) and `peer` (mindstudio-probe) are the same code in different
interpreters.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import sys
import time
from pathlib import Path
from typing import Any, Optional

import models
import torch

QUIET = 0.0005  # a process that uses less CPU time in a poll interval is idle
POLL = 0.005
PATIENCE = 1000  # polls; after that a process is measured even if it is not idle


def configuration(args: argparse.Namespace) -> dict[str, Any]:
    section = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": args.summary_mode}
    if args.section is not None:
        section = json.loads(args.section)
    config: dict[str, Any] = {
        "task": args.task,
        "dump_path": str(args.out),
        "rank": [],
        "step": [0] if args.idle else [],
        "level": args.level,
        args.task: section,
    }
    if args.precision:
        config["precision"] = {"formats": args.precision.split(",")}
    if args.variant == "peer":
        config["risk_level"] = "ALL"  # without it the peer skips APIs that msprobe collects
    return config


class Trainee:
    """The model, its tool, if any, and the cost of each step."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.out: Path = args.out
        self.debugger: Any = None
        self.tool: Optional[str] = None
        self.emptied: set[Path] = set()
        if args.variant != "bare":
            path = self.out.with_name(self.out.name + ".json")
            path.write_text(json.dumps(configuration(args)))
            import msprobe
            from msprobe.pytorch import PrecisionDebugger

            self.tool = str(Path(msprobe.__file__).parent)
            self.debugger = PrecisionDebugger(config_path=str(path))
        self.model, self.train = models.gpt(args.layers)
        if args.bf16:
            self.model.bfloat16()

    def step(self) -> dict[str, Any]:
        """Trains one step. Work of a writer thread after step() counts too."""
        wall, cpu = time.perf_counter(), time.process_time()
        if self.debugger is None:
            loss = self.train()
        else:
            self.debugger.start(model=self.model)
            loss = self.train()
            self.debugger.stop()
            self.debugger.step()
        wall = time.perf_counter() - wall
        cpu = rest() - cpu
        self.prune()
        return {"cpu": cpu, "wall": wall, "loss": loss.item().hex()}

    def report(self) -> dict[str, Any]:
        """The files of the last dumped step, and the peak memory so far."""
        steps = self.steps()
        names, tensors = contents(steps[-1]) if steps else ([], 0)
        size, allocated, files = volume(steps[-1]) if steps else (0, 0, 0)
        return {
            "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "names": names,
            "tensors": tensors,
            "bytes": size,
            "allocated": allocated,
            "files": files,
        }

    def steps(self) -> list[Path]:
        found = [p for p in self.out.glob("step*") if re.fullmatch(r"step\d+", p.name)]
        return sorted(found, key=lambda p: int(p.name[4:]))

    def prune(self) -> None:
        """Keeps the content of two steps: a tensor run would fill the disk.

        The files stay, empty, until the end: ext4 checks recently freed inodes again and again, and this would slow
        down every new file of the next step.
        """
        for old in self.steps()[:-2]:
            if old not in self.emptied:
                self.emptied.add(old)
                for path in old.rglob("*"):
                    if path.is_file():
                        os.truncate(path, 0)


def rest() -> float:
    """Waits until all threads of this process are idle; returns the CPU time used until then."""
    before = time.process_time()
    for _ in range(PATIENCE):
        time.sleep(POLL)
        now = time.process_time()
        if now - before < QUIET:
            break
        before = now
    return before


def contents(step: Path) -> tuple[list[str], int]:
    """The names of the records of a step, and the number of their tensors."""
    names: list[str] = []
    tensors = 0
    for path in sorted(step.glob("*/dump.json")):
        data = json.loads(path.read_text())["data"]
        names += [re.sub(r"parameters_grad\.\d+$", "parameters_grad", name) for name in data]
        tensors += sum(count_tensors(record) for record in data.values())
    return names, tensors


def count_tensors(value: Any) -> int:
    if isinstance(value, list):
        return sum(count_tensors(item) for item in value)
    if isinstance(value, dict):
        if value.get("type") == "torch.Tensor" and "shape" in value:
            return 1
        return sum(count_tensors(item) for item in value.values())
    return 0


def volume(step: Path) -> tuple[int, int, int]:
    """Apparent bytes, allocated bytes and number of files; a file with several names counts once."""
    seen = {}
    for path in step.rglob("*"):
        status = path.lstat()
        if path.is_file():
            seen[status.st_dev, status.st_ino] = status
    return sum(s.st_size for s in seen.values()), sum(s.st_blocks for s in seen.values()) * 512, len(seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", choices=("bare", "ours", "peer"), required=True)
    parser.add_argument("--task", default="statistics")
    parser.add_argument("--level", default="L1")
    parser.add_argument("--summary-mode", default="statistics")
    parser.add_argument("--precision", metavar="NAMES", help="low-precision formats to measure")
    parser.add_argument("--section", metavar="JSON", help="the task's section, instead of the one of collecting")
    parser.add_argument("--bf16", action="store_true", help="the model in bfloat16")
    parser.add_argument("--idle", action="store_true", help="dump step 0 only; later steps are idle")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    # Tools print to stdout; the answers use another descriptor.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    torch.set_num_threads(args.threads)
    trainee = Trainee(args)
    backend = getattr(sys.modules.get("msprobe.stats"), "BACKEND", None)
    hello = {"python": platform.python_version(), "torch": torch.__version__, "tool": trainee.tool, "backend": backend}
    print(json.dumps(hello), file=answers)
    commands = {"step": trainee.step, "report": trainee.report}
    for line in sys.stdin:
        print(json.dumps(commands[line.strip()]()), file=answers)


if __name__ == "__main__":
    main()
