"""One of several processes that train the cases of a plan: RANK and WORLD_SIZE say which."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import clean  # noqa: F401
import faults  # noqa: F401
import third.cases  # noqa: F401
import torch.distributed as dist
import unseen.cases  # noqa: F401
from cases import CLEAN, FAULTS, IN_TWO_PROCESSES
from training import run


def main(plan: Path) -> None:
    known = {case.id: case for case in [*FAULTS, *CLEAN]}
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{plan.with_name('store')}", rank=rank, world_size=size)
    for name, side, dump in json.loads(plan.read_text()):
        one = getattr(known[name], side)
        run(IN_TWO_PROCESSES[known[name].model], json.loads(one.config), one.recipe, one.plant, Path(dump))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
