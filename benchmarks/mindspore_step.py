"""One MindSpore trainee, with the same commands as step.py.

Kernel launches are blocking: otherwise the threads of the runtime spin, and the CPU time of the bare step varies by a
factor of seven.
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

import mindspore as ms
import mindspore_models

QUIET = 0.0005  # a process that uses less CPU time in a poll interval is idle
POLL = 0.005
PATIENCE = 1000


class Trainee:
    """The model, the tool, if any, and the cost of each step."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.out: Path = args.out
        self.debugger: Any = None
        self.tool: Optional[str] = None
        self.emptied: set[Path] = set()
        if args.variant == "ours":
            section = {"summary_mode": args.summary_mode} if args.section is None else json.loads(args.section)
            config = {"task": args.task, "dump_path": str(self.out), "level": args.level, args.task: section}
            if args.idle:
                config["step"] = [0]
            path = self.out.with_name(self.out.name + ".json")
            path.write_text(json.dumps(config))
            import msprobe
            from msprobe.mindspore import PrecisionDebugger

            self.tool = str(Path(msprobe.__file__).parent)
            self.debugger = PrecisionDebugger(config_path=str(path))
        self.model, self.train = mindspore_models.transformer(args.layers)

    def step(self) -> dict[str, Any]:
        """Trains one step. Work of a writer thread after step() counts too."""
        wall, cpu = time.perf_counter(), time.process_time()
        if self.debugger is None:
            loss = self.train()
        else:
            self.debugger.start(self.model)
            loss = self.train()
            self.debugger.stop()
            self.debugger.step()
        wall = time.perf_counter() - wall
        cpu = rest() - cpu
        self.prune()
        return {"cpu": cpu, "wall": wall, "loss": float(loss.asnumpy()).hex()}

    def report(self) -> dict[str, Any]:
        steps = self.steps()
        dumps = list(steps[-1].glob("*/dump.json")) if steps else []
        text = dumps[0].read_text() if dumps else '{"data": {}}'
        files = [path for path in steps[-1].rglob("*") if path.is_file()] if steps else []
        inodes = {path.stat().st_ino: path.stat() for path in files}
        return {
            "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "names": list(json.loads(text)["data"]),
            "tensors": text.count('"mindspore.Tensor"'),
            "bytes": sum(status.st_size for status in inodes.values()),
            "allocated": sum(status.st_blocks for status in inodes.values()) * 512,
            "files": len(inodes),
        }

    def prune(self) -> None:
        """Keeps the content of two steps, and the files of all steps; see step.py."""
        for old in self.steps()[:-2]:
            if old not in self.emptied:
                self.emptied.add(old)
                for path in old.rglob("*"):
                    if path.is_file():
                        os.truncate(path, 0)

    def steps(self) -> list[Path]:
        found = [p for p in self.out.glob("step*") if re.fullmatch(r"step\d+", p.name)]
        return sorted(found, key=lambda p: int(p.name[4:]))


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", choices=("bare", "ours"), required=True)
    parser.add_argument("--task", default="statistics")
    parser.add_argument("--level", default="L1")
    parser.add_argument("--summary-mode", default="statistics")
    parser.add_argument("--section", help="the section of the task, as JSON")
    parser.add_argument("--idle", action="store_true", help="dump only step 0; later steps are idle")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    # MindSpore and tools print to stdout; the answers use another descriptor.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.runtime.launch_blocking()
    trainee = Trainee(args)
    print(json.dumps({"python": platform.python_version(), "tool": trainee.tool}), file=answers)
    commands = {"step": trainee.step, "report": trainee.report}
    for line in sys.stdin:
        print(json.dumps(commands[line.strip()]()), file=answers)


if __name__ == "__main__":
    main()
