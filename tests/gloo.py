"""Runs of several ranks over gloo, which now and then aborts a rank while its process ends.

Seen in 1 of 36 runs without a debugger (torch 2.13, three at a time on two cores): the C++ runtime says that a thread
was left running. We have no such threads, so a run that ends with these words is repeated.
"""

from __future__ import annotations

import subprocess
from typing import Any, Callable

ABORTED = "terminate called without an active exception"


def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` with what it printed."""
    return repeated(lambda: subprocess.run(command, capture_output=True, text=True, **options))


def repeated(attempt: Callable[[], Any]) -> Any:
    """The first attempt that gloo let end, or the third; each has `returncode` and `stderr`."""
    for _ in range(3):
        done = attempt()
        if done.returncode == 0 or ABORTED not in done.stderr:
            break
    return done
