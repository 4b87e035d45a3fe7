"""A worker: a process of its own that runs calls, because a call may crash, hang or eat the memory.

It speaks JSON over a pair of sockets that it inherits: tasks come in lists, each answer goes out as soon as it is
there, so that whoever listens knows which call a dead worker was at.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import resource
import sys
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def main(handle: int) -> None:
    """Runs until the other end is closed. The first message holds the settings."""
    pipe: Any = Connection(handle)
    settings = json.loads(pipe.recv_bytes())
    warnings.simplefilter("ignore")
    sys.path[:0] = settings["paths"]
    import torch

    torch.set_num_threads(1)
    for module in settings["imports"]:
        importlib.import_module(module)
    from msprobe.check.examine import Examiner

    keep = settings["error_data"]
    examiner = Examiner(settings["device"], keep is not None)
    if settings["device"] == "cpu" and settings["memory"]:
        _limit_memory(settings["memory"])
    pipe.send_bytes(b'{"ready": true}')
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            for task in json.loads(pipe.recv_bytes()):
                pipe.send_bytes(json.dumps(_answer(examiner, task, keep)).encode())


def _answer(examiner: Any, task: dict[str, Any], keep: Any) -> dict[str, Any]:
    from msprobe.check.examine import save
    from msprobe.check.results import detail_cells
    from msprobe.dump import layout
    from msprobe.dump.reader import RankDump

    try:
        rank = RankDump(Path(task["rank"]))
        outcome = examiner.examine(task["call"], task["title"], task["forward"], task["backward"], rank)
    except MemoryError:
        return {"forward": "SKIP", "backward": "SKIP", "message": "not enough memory for it here", "rows": []}
    except Exception as error:
        text = f"it could not be examined: {type(error).__name__}: {error}"[:300]
        return {"forward": "SKIP", "backward": "SKIP", "message": text, "rows": []}
    message = outcome.message
    if outcome.kept and keep is not None:
        try:
            save(outcome.kept, Path(keep) / layout.tensor_file_name(task["call"], ""))
        except (OSError, KeyError) as error:
            message += f"; its data could not be kept: {error}"
    rows = [detail_cells(row) for row in outcome.rows]
    return {"forward": outcome.forward, "backward": outcome.backward, "message": message, "rows": rows}


def _limit_memory(share: int) -> None:
    """An allocation beyond what the machine has fails here, instead of ending a process that the system picks."""
    with contextlib.suppress(OSError, ValueError):
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + share, resource.getrlimit(resource.RLIMIT_AS)[1]))
