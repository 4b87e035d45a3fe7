"""A worker: a process of its own that runs calls, because a call may crash, hang or eat the memory.

It speaks JSON over a pair of sockets that it inherits: tasks come in lists, each answer goes out as soon as it is
there, so that whoever listens knows which call a dead worker was at.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import resource
import signal
import sys
import traceback
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def main(handle: int) -> None:
    """Runs until the other end is closed. The first message holds the settings."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to us too; who started us closes the pipe
    pipe: Any = Connection(handle)
    settings = json.loads(pipe.recv_bytes())
    warnings.simplefilter("ignore")
    sys.path += settings["paths"]  # last: a file there must not stand in for a module of Python or of a framework
    worker = _Worker(settings)
    first: dict[str, str] = {}
    if settings["framework"] is not None:
        try:
            worker.examiner(settings["framework"])
        except Exception as error:
            first = {"cannot": _reason(error)}
    with contextlib.suppress(EOFError, BrokenPipeError):
        pipe.send_bytes(json.dumps(first).encode())
        if first:
            return
        while True:
            for task in json.loads(pipe.recv_bytes()):
                pipe.send_bytes(json.dumps(worker.answer(task)).encode())


def _reason(error: Exception) -> str:
    """One line; MindSpore's messages go on with a C++ stack. What an imported module raised has its line there."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = next(filter(None, map(str.strip, str(error).splitlines())), "")
    where = "" if frame.filename.startswith("<") else f" ({frame.filename}:{frame.lineno})"
    return f"{type(error).__name__}: {text.rstrip('.')}{where}"


class _Worker:
    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._keep = settings["error_data"]
        self._examiners: dict[str, Any] = {}

    def examiner(self, framework: str) -> Any:
        """The framework is imported when it is first needed: a machine may have but one of them."""
        found = self._examiners.get(framework)
        if found is None:
            from msprobe.check.core.examine import Examiner

            found = Examiner(self._settings["device"], self._keep is not None, framework)
            found.framework.own_process(self._settings["device"])
            for module in self._settings["imports"]:
                importlib.import_module(module)
            if self._settings["device"] == "cpu" and self._settings["memory"]:
                _limit_memory(self._settings["memory"])
            self._examiners[framework] = found  # last: what is missing is missed at every task
        return found

    def answer(self, task: dict[str, Any]) -> dict[str, Any]:
        from msprobe.check.core.error_data import save
        from msprobe.check.core.results import detail_cells
        from msprobe.dump import layout
        from msprobe.dump.reader import RankDump

        try:
            examiner = self.examiner(task["framework"])
            rank = RankDump(Path(task["rank"]))
            outcome = examiner.examine(task["call"], task["title"], task["forward"], task["backward"], rank)
        except MemoryError:
            return {"forward": "SKIP", "backward": "SKIP", "message": "not enough memory for it here", "rows": []}
        except Exception as error:
            text = f"it could not be examined: {type(error).__name__}: {error}"[:300]
            return {"forward": "SKIP", "backward": "SKIP", "message": text, "rows": []}
        message = outcome.message
        if outcome.kept and self._keep is not None:
            try:
                save(outcome.kept, Path(self._keep) / layout.tensor_file_name(task["call"], ""), examiner.framework)
            except (OSError, KeyError) as error:
                message += f"; its data could not be saved: {error}"
        rows = [detail_cells(row) for row in outcome.rows]
        return {"forward": outcome.forward, "backward": outcome.backward, "message": message, "rows": rows}


def _limit_memory(share: int) -> None:
    """An allocation beyond what the machine has fails here, instead of ending a process that the system picks."""
    with contextlib.suppress(OSError, ValueError):
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + share, resource.getrlimit(resource.RLIMIT_AS)[1]))
