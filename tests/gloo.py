"""Runs of several ranks over gloo, which now and then aborts a rank while its process ends.

Seen in 1 of 36 runs without a debugger (torch 2.13, three at a time on two cores): the C++ runtime says that a thread
was left running. We have no such threads, so a run that ends with these words is repeated.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Callable, Optional

ABORTED = "terminate called without an active exception"


def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` with what it printed. After the timeout its ranks end too: they wait for each other in a loop,
    and would outlive the test."""
    return repeated(lambda: _run_group(command, **options))


def _run_group(command: list[str], timeout: Optional[float] = None, **options: Any) -> subprocess.CompletedProcess[str]:
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True, **options) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def ranks(script: Path, *arguments: object, count: int = 2, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs a script as `torchrun --nproc_per_node COUNT` does, with `more` in its environment and one thread a rank."""
    return repeated(lambda: _run_ranks(str(script), [str(word) for word in arguments], count, more))


def _run_ranks(script: str, arguments: list[str], count: int, more: dict[str, str]) -> subprocess.CompletedProcess[str]:
    server = _server()
    with tempfile.TemporaryDirectory() as place:
        printed = Path(place, "output"), Path(place, "errors")
        request = {
            "script": script, "arguments": arguments, "count": count, "environment": {**os.environ, **_THREADS, **more},
            "output": str(printed[0]), "errors": str(printed[1]),
        }  # fmt: skip
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        process = int(server.stdout.readline())
        limit = threading.Timer(300, os.killpg, (process, signal.SIGKILL))
        limit.start()
        code = int(server.stdout.readline())
        limit.cancel()
        return subprocess.CompletedProcess([script, *arguments], code, *(path.read_text() for path in printed))


_THREADS = {"OMP_NUM_THREADS": "1"}


@functools.cache
def _server() -> Any:
    """The process that starts ranks. It ends with this one, whose end closes its stdin."""
    command = [sys.executable, str(Path(__file__).with_name("forked_ranks.py"))]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **_THREADS})


def repeated(attempt: Callable[[], Any]) -> Any:
    """The first attempt that gloo let end, or the third; each has `returncode` and `stderr`."""
    for _ in range(3):
        done = attempt()
        if done.returncode == 0 or ABORTED not in done.stderr:
            break
    return done
