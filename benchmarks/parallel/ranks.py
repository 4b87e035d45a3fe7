"""Runs a layout: one process per rank, over gloo, forked from a process that has imported the frameworks already."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Callable

import torch
import torch.distributed as dist
from benchmarks.parallel import by_hand, experts, with_torch
from benchmarks.parallel.training import Place, Setup, train

LAYOUTS = {**by_hand.LAYOUTS, **with_torch.LAYOUTS, **experts.LAYOUTS}
SINGLE = {**by_hand.SINGLE, **with_torch.SINGLE, **experts.SINGLE}
TIME_LIMIT = 120
ATTEMPTS = 3


def record_single(model: str, dump: Path, task: str, steps: int) -> None:
    _record(SINGLE[model], 1, "", dump, task, steps)


def record_layout(layout: str, fault: str, dump: Path, task: str, steps: int) -> None:
    world, _, build = LAYOUTS[layout]
    _record(build, world, fault, dump, task, steps)


def _record(build: Callable[[Place], Setup], world: int, fault: str, dump: Path, task: str, steps: int) -> None:
    """Runs all ranks to their end. gloo aborts a process now and then while it ends: then once more."""
    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    for attempt in range(ATTEMPTS):
        shutil.rmtree(dump, ignore_errors=True)
        with tempfile.TemporaryDirectory() as store:
            ranks = [
                context.Process(target=_run_rank, args=(build, Place(rank, world, fault), store, dump, task, steps))
                for rank in range(world)
            ]
            for process in ranks:
                process.start()
            for process in ranks:
                process.join(TIME_LIMIT)
            late = [process for process in ranks if process.is_alive()]
            for process in late:
                process.kill()
                process.join()
        log = dump.with_name(dump.name + ".log")
        if not any(process.exitcode for process in ranks):
            return
        if late or attempt == ATTEMPTS - 1 or any(process.exitcode == 1 for process in ranks):
            raise RuntimeError(f"{dump.name}: a rank failed: {log.read_text()[-2000:]}")


def _run_rank(build: Callable[[Place], Setup], place: Place, store: str, dump: Path, task: str, steps: int) -> None:
    code = 0
    with dump.with_name(dump.name + ".log").open("a") as log:
        try:
            with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
                _train(build, place, store, dump, task, steps)
        except BaseException:
            traceback.print_exc(file=log)
            code = 1
    sys.stdout.flush()
    os._exit(code)  # threads of gloo must not keep the process


def _train(build: Callable[[Place], Setup], place: Place, store: str, dump: Path, task: str, steps: int) -> None:
    os.environ.update(RANK=str(place.rank), WORLD_SIZE=str(place.world), LOCAL_RANK=str(place.rank))
    torch.manual_seed(0)
    if place.world > 1:
        dist.init_process_group("gloo", f"file://{store}/store", rank=place.rank, world_size=place.world)
    else:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            del os.environ[name]
    train(build(place), dump, task, steps)
    if place.world > 1:
        dist.barrier()
        dist.destroy_process_group()
