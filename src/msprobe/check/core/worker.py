"""A worker process: it runs calls, because a call may crash, hang or use up the memory.

It exchanges JSON over a pair of sockets that it inherits. Tasks come in lists. It sends each answer at once, so the
pool knows which call a dead worker was running.
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

from msprobe.messages import Message


def main(handle: int) -> None:
    """Runs until the pool closes the connection. The first message has the settings."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends Ctrl-C to us too; the pool closes the connection
    pipe: Any = Connection(handle)
    settings = json.loads(pipe.recv_bytes())
    warnings.simplefilter("ignore")
    sys.path += settings["paths"]  # last: a file there must not replace a module of Python or of a framework
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
    """The error as one line: MindSpore's messages also have a C++ stack. For an error in an imported module, also the
    source line."""
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
        """Imports the framework when it is first needed: a machine may have only one of them."""
        found = self._examiners.get(framework)
        if found is None:
            from msprobe.check.core.examine import Examiner

            found = Examiner(self._settings["device"], self._keep is not None, framework)
            found.framework.prepare_process(self._settings["device"])
            for module in self._settings["imports"]:
                importlib.import_module(module)
            if self._settings["device"] == "cpu" and self._settings["memory"]:
                _limit_memory(self._settings["memory"])
            self._examiners[framework] = found  # last: if a module is missing, every task reports it
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
            return _answer("SKIP", "SKIP", Message("check.memory"), [])
        except Exception as error:
            return _answer(
                "SKIP", "SKIP", Message("check.not_examined", error=f"{type(error).__name__}: {error}"[:275]), []
            )
        message = outcome.message
        if outcome.kept and self._keep is not None:
            try:
                save(outcome.kept, Path(self._keep) / layout.tensor_file_name(task["call"], ""), examiner.framework)
            except (OSError, KeyError) as error:
                parts = [*([message] if message else []), Message("check.not_saved", error=str(error))]
                message = Message("also", parts=parts)
        rows = [detail_cells(row) for row in outcome.rows]
        return _answer(outcome.forward, outcome.backward, message, rows)


def _answer(forward: str, backward: str, message: str, rows: list[Any]) -> dict[str, Any]:
    said = message.as_json() if isinstance(message, Message) else None
    return {"forward": forward, "backward": backward, "message": message, "said": said, "rows": rows}


def _limit_memory(share: int) -> None:
    """Limits the memory of this process: a too large allocation then fails here, and the system kills no process."""
    with contextlib.suppress(OSError, ValueError):
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + share, resource.getrlimit(resource.RLIMIT_AS)[1]))
