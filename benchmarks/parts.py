"""Where the time of a record goes at L1: µs of CPU time per record and the share of each part.

    python benchmarks/parts.py [--steps 40] [--level L1]

Trains the GPT of run.py, alternately without and with collecting, in one process with one OpenMP thread. Once with
tensors so small that reading them takes no time: what is left is the cost of recording. The rest at the usual size is
reading the data. Timers around the parts add about 1 µs per record; the first line is measured without them. Every
figure is the minimum over the steps.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

import tables

NARROW = {"WIDTH": 16, "VOCABULARY": 32, "SEQUENCE": 8, "BATCH": 2}
PARTS = {
    "arguments and results to text": "text",
    "gradients: walk, hooks, text": "gradients",
    "names, stacks, phases, handler": "calls",
    "start(), stop(), step()": "edges",
    "writer thread: journal and json files": "writer",
}


class Timers:
    """CPU time of this thread inside some functions; only the outermost counts."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._depth = 0

    def timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if self._depth:
                return function(*args, **kwargs)
            self._depth += 1
            start = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.spent[part] = self.spent.get(part, 0.0) + time.thread_time() - start
                self._depth -= 1

        return run


def measure(level: str, steps: int, narrow: bool, timed: bool) -> dict[str, float]:
    """Seconds per step of each part: minima over the steps."""
    import models
    import torch

    torch.set_num_threads(1)
    if narrow:
        for name, value in NARROW.items():
            setattr(models, name, value)
    from msprobe.collect.records import values
    from msprobe.pytorch import PrecisionDebugger
    from msprobe.pytorch.gradients.call_gradients import Gradients

    timers = Timers()
    if timed:
        for method in ("watch", "_fire"):
            setattr(Gradients, method, timers.timed(getattr(Gradients, method), "gradients"))
        Gradients.inputs = staticmethod(timers.timed(Gradients.inputs, "gradients"))  # type: ignore[assignment]
        make = values.Values.__init__

        def made(self: Any, adapter: Any) -> None:
            make(self, adapter)
            for method in ("sequence", "mapping", "result", "value"):
                setattr(self, method, timers.timed(getattr(self, method), "text"))

        values.Values.__init__ = made  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory(prefix="msprobe-bench-") as work:
        path = Path(work, "config.json")
        settings = {"task": "statistics", "dump_path": f"{work}/dump", "rank": [], "step": [], "level": level}
        path.write_text(json.dumps({**settings, "statistics": {"summary_mode": "statistics"}}))
        debugger = PrecisionDebugger(config_path=str(path))
        model, train = models.gpt(4)
        best: dict[str, float] = {}
        for step in range(steps + 3):
            found = _one_step(debugger, model, train, timers)
            if step >= 3:
                best = {part: min(cost, best.get(part, cost)) for part, cost in found.items()}
        directory = next(Path(work, "dump", "step0").iterdir())
        best["records"] = len(json.loads((directory / "dump.json").read_text())["data"])
    return best


def _one_step(debugger: Any, model: Any, train: Callable[[], Any], timers: Timers) -> dict[str, float]:
    start = time.process_time()
    train()
    bare = time.process_time() - start
    timers.spent.clear()
    start, begin = time.process_time(), time.thread_time()
    debugger.start(model=model)
    begun = time.thread_time()
    train()
    trained = time.thread_time()
    debugger.stop()
    debugger.step()
    ended = time.thread_time()
    complete = time.process_time() - start
    training = trained - begun - bare
    inside = timers.spent.get("text", 0.0) + timers.spent.get("gradients", 0.0)
    return {
        "total": complete - bare,
        "bare": bare,
        **timers.spent,
        "calls": training - inside,
        "edges": begun - begin + ended - trained,
        "writer": complete - (ended - begin),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Where the time of a record goes.")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--level", default="L1")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        sizes, timed = args.child
        print(json.dumps(measure(args.level, args.steps, sizes == "narrow", timed == "timed")))
        return
    print(f"{tables.machine()}\n")
    found = {}
    for sizes, timed in (("narrow", "plain"), ("narrow", "timed"), ("wide", "plain")):
        command = [sys.executable, __file__, "--level", args.level, "--steps", str(args.steps), "--child", sizes, timed]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[sizes, timed] = json.loads(done.stdout.splitlines()[-1])
    narrow, parts, wide = found["narrow", "plain"], found["narrow", "timed"], found["wide", "plain"]
    per = 1e6 / narrow["records"]
    total, whole = narrow["total"] * per, wide["total"] * per
    rows = [["all, beyond reading the data", f"{total:.1f}", ""]]
    spent = sum(parts.get(part, 0.0) for part in PARTS.values())
    for name, part in PARTS.items():
        share = parts.get(part, 0.0) / spent
        rows.append([name, f"{share * total:.1f}", f"{share:.0%}"])
    rows.append(["reading the data, at the usual size", f"{whole - total:.1f}", ""])
    print(f"{args.level}/statistics, {narrow['records']:.0f} records a step\n")
    print(tables.table(["part", "µs per record", "share"], rows))


if __name__ == "__main__":
    main()
