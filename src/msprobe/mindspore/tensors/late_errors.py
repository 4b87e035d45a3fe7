"""Errors of operators that MindSpore reports late, and only to the first code that waits for a result.

MindSpore launches operators and returns at once. If msprobe is the first to wait, an error of the script comes to
msprobe, and MindSpore does not raise it again. Such an error is kept here and raised in the script as soon as the
record is complete: at the end of the call, and at stop() or step() at the latest.
"""

from __future__ import annotations

from typing import Callable

from msprobe.collect.guard import hand_over

KEPT: list[Exception] = []


def keep_if_last(error: Exception, read: Callable[[], object]) -> None:
    """Keeps the error of an operator if reading the tensor again raises nothing: the script would not get it."""
    try:
        read()
    except Exception:
        return
    if not KEPT:
        KEPT.append(error.with_traceback(None))  # its frames would keep tensors alive


def raise_kept() -> None:
    """Raises the error that belongs to the script, if there is one."""
    try:
        error = KEPT.pop()
    except IndexError:  # another thread has raised it
        return
    raise hand_over(error)
