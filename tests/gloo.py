"""Runs of several ranks over gloo, which now and then aborts a rank while its process ends.

Seen in 1 of 36 runs without a debugger (torch 2.13, three at a time on two cores): the C++ runtime says that a thread
was left running. We have no such threads, so a run that ends with these words is repeated.
"""

from __future__ import annotations

import os
import signal
import subprocess
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


def repeated(attempt: Callable[[], Any]) -> Any:
    """The first attempt that gloo let end, or the third; each has `returncode` and `stderr`."""
    for _ in range(3):
        done = attempt()
        if done.returncode == 0 or ABORTED not in done.stderr:
            break
    return done
