"""What the accuracy pre-check costs: ratios, on this machine.

    python benchmarks/check.py [CALLS]

1. CPU time of examining every call of GPT dumps (real data), over loading its tensors and calling the API once on both
   sides, forward and backward.
2. One worker over two, one thread each, start-up apart.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from models import BATCH, GPT, SEQUENCE, VOCABULARY

from msprobe.check.examine import Examiner, loader
from msprobe.check.plan import make_plan
from msprobe.check.pool import Pool, WorkerSettings
from msprobe.check.pytorch_call import TorchCall
from msprobe.check.pytorch_resolve import Callables
from msprobe.dump.reader import RankDump, open_dump
from msprobe.pytorch import PrecisionDebugger

LIMIT = 3.0
SPEED_UP = 1.6


def dump_gpt(path: Path, layers: int = 4) -> RankDump:
    config = path / "config.json"
    config.write_text(json.dumps({"task": "tensor", "level": "L1", "dump_path": str(path / "dump"), "step": [0]}))
    torch.manual_seed(0)
    model = GPT(layers)
    debugger = PrecisionDebugger(str(config))
    debugger.start(model)
    tokens = torch.randint(VOCABULARY, (BATCH, SEQUENCE))
    torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    debugger.stop()
    debugger.step()
    return open_dump(path / "dump").ranks[0]


def cpu(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> int:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as scratch:
        rank = dump_gpt(Path(scratch))
        tasks = make_plan(rank.records).tasks
        rounds = max(1, round(wanted / len(tasks)))
        callables, examiner = Callables(), Examiner()

        def once() -> None:
            for task in tasks:
                call = TorchCall(callables.find(task.title), task.call, task.forward, task.backward, loader(rank))
                call.run("cpu")
                call.golden()

        def examined() -> None:
            for task in tasks:
                examiner.examine(task.call, task.title, task.forward, task.backward, rank)

        once(), examined()
        bare = checked = 0.0
        for _ in range(rounds):
            bare += cpu(once)
            checked += cpu(examined)
        ratio = checked / bare
        print(f"{rounds * len(tasks)} calls of a GPT, {torch.get_num_threads()} thread")
        print(f"examining / loading and calling on both sides: {ratio:.2f} (at most {LIMIT})")
        elapsed, speed_up = compare_jobs(rank, tasks, rounds)
        print(f"one worker / the busier of two, CPU time: {speed_up:.2f} (at least {SPEED_UP}); elapsed: {elapsed:.2f}")
        return 0 if ratio <= LIMIT and speed_up >= SPEED_UP else 1


def worker_seconds(pool: Pool) -> list[float]:
    """User and system time of each worker so far."""
    tick = os.sysconf("SC_CLK_TCK")
    fields = [Path(f"/proc/{one.process.pid}/stat").read_text().rpartition(")")[2].split() for one in pool._workers]
    return [(int(one[11]) + int(one[12])) / tick for one in fields]


def compare_jobs(rank: RankDump, tasks: list[Any], rounds: int) -> tuple[float, float]:
    """Elapsed time needs a machine of one's own; the CPU time of the busier worker is what it would be there."""
    times, busiest = {}, {}
    for jobs in (1, 2):
        queue = [{"framework": "pytorch", "rank": str(rank.path), **vars(t)} for _ in range(rounds) for t in tasks]
        with Pool(jobs, WorkerSettings(), 600.0) as pool:
            pool.wait_until_ready()
            started, before = time.perf_counter(), worker_seconds(pool)
            assert sum(1 for _ in pool.run(queue)) == len(queue)
            times[jobs] = time.perf_counter() - started
            busiest[jobs] = max(now - then for now, then in zip(worker_seconds(pool), before))
    return times[1] / times[2], busiest[1] / busiest[2]


if __name__ == "__main__":
    raise SystemExit(main())
