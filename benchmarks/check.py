"""The cost of `msprobe run_ut`, as ratios on this machine.

    python benchmarks/check.py [CALLS]

1. CPU time of checking every call of GPT dumps (real data), divided by the time of loading its tensors and calling the
   API once on both sides, forward and backward. The two alternate, dump by dump.
2. Elapsed time with one worker, divided by that with two, one thread each, without start-up. It needs an idle machine;
   the next line estimates it from the CPU time of the busier worker.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from models import GPT, VOCABULARY

from msprobe.check.core.examine import Examiner, loader
from msprobe.check.core.plan import Task, make_plan
from msprobe.check.core.pool import Pool, WorkerSettings
from msprobe.check.pytorch.call import TorchCall
from msprobe.check.pytorch.resolve import Callables
from msprobe.dump.reader import RankDump, open_dump
from msprobe.pytorch import PrecisionDebugger

LIMIT = 3.0
SPEED_UP = 1.6
CALLS = 10_000
DUMPS = ((2, 1, 64), (4, 2, 64), (2, 2, 128))  # layers, batch, sequence


class Work(NamedTuple):
    rank: RankDump
    tasks: list[Task]


def dump_gpt(path: Path, layers: int, batch: int, sequence: int) -> Work:
    """One step of training, collected."""
    config = path / "config.json"
    dump = path / f"dump_{layers}_{batch}_{sequence}"
    config.write_text(json.dumps({"task": "tensor", "level": "L1", "dump_path": str(dump), "step": [0]}))
    torch.manual_seed(0)
    model = GPT(layers)
    debugger = PrecisionDebugger(str(config))
    debugger.start(model)
    tokens = torch.randint(VOCABULARY, (batch, sequence))
    torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    debugger.stop()
    debugger.step()
    rank = open_dump(dump).ranks[0]
    return Work(rank, make_plan(rank.records).tasks)


def cpu(work: Callable[[Work], None], on: Work) -> float:
    started = time.process_time()
    work(on)
    return time.process_time() - started


def compare_examining(works: list[Work], rounds: int) -> tuple[float, float]:
    """CPU seconds of loading and calling on both sides, and of checking."""
    callables, examiner = Callables(), Examiner()

    def once(work: Work) -> None:
        for task in work.tasks:
            found = callables.find(task.title)
            call = TorchCall(found, task.call, task.forward, task.backward, loader(work.rank))
            call.run("cpu")
            call.golden()

    def examined(work: Work) -> None:
        for task in work.tasks:
            examiner.examine(task.call, task.title, task.forward, task.backward, work.rank)

    bare = checked = 0.0
    for work in works:
        once(work), examined(work)
    for _ in range(rounds):
        for work in works:
            bare += cpu(once, work)
            checked += cpu(examined, work)
    return bare, checked


def worker_seconds(pool: Pool) -> list[float]:
    """User and system time of each worker so far."""
    tick = os.sysconf("SC_CLK_TCK")
    fields = [Path(f"/proc/{one.process.pid}/stat").read_text().rpartition(")")[2].split() for one in pool._workers]
    return [(int(one[11]) + int(one[12])) / tick for one in fields]


def compare_jobs(works: list[Work], rounds: int) -> tuple[float, float]:
    """One worker divided by two: elapsed time, and the CPU time of the busier worker."""
    elapsed, busiest = {}, {}
    for jobs in (1, 2):
        queue: list[dict[str, Any]] = [
            {"framework": "pytorch", "rank": str(work.rank.path), **vars(task)}
            for _ in range(rounds)
            for work in works
            for task in work.tasks
        ]
        with Pool(jobs, WorkerSettings(), 600.0) as pool:
            pool.wait_until_ready()
            started, before = time.perf_counter(), worker_seconds(pool)
            assert sum(1 for _ in pool.run(queue)) == len(queue)
            elapsed[jobs] = time.perf_counter() - started
            busiest[jobs] = max(now - then for now, then in zip(worker_seconds(pool), before))
    return elapsed[1] / elapsed[2], busiest[1] / busiest[2]


def main() -> int:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else CALLS
    with tempfile.TemporaryDirectory() as scratch:
        works = [dump_gpt(Path(scratch), *sizes) for sizes in DUMPS]
        calls = sum(len(work.tasks) for work in works)
        rounds = max(1, -(-wanted // calls))
        bare, checked = compare_examining(works, rounds)
        elapsed, by_cpu = compare_jobs(works, rounds)
    ratio = checked / bare
    print(f"{rounds * calls:,} calls of {len(works)} GPT dumps, {torch.get_num_threads()} thread per process")
    print("| | measured | goal |")
    print("|---|---|---|")
    print(f"| checking / loading and calling once on both sides, CPU time | {ratio:.2f} | at most {LIMIT} |")
    print(f"| the same per call | {checked / rounds / calls * 1e3:.2f} / {bare / rounds / calls * 1e3:.2f} ms | |")
    print(f"| one worker / two, elapsed | {elapsed:.2f} | at least {SPEED_UP} |")
    print(f"| one worker / the busier of two, CPU time | {by_cpu:.2f} | |")
    return 0 if ratio <= LIMIT and elapsed >= SPEED_UP else 1


if __name__ == "__main__":
    raise SystemExit(main())
