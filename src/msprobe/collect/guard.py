"""The guard at every entry into msprobe that the script, its framework or Python calls: no error of ours leaves it.

Hooks of calls report an error with `Recorder.fault` and go on with the next call. Everything else (start, stop, step,
save, exit, the monitor) is guarded here: msprobe logs the error once, gives up, and the script continues.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Iterable
from typing import Any, Callable

from msprobe.collect import notices
from msprobe.system.interrupts import let_through


class MeantForTheScript(Exception):
    """The base of the exceptions that the script is meant to get: a wrong call, a stop that the user configured."""


def hand_over(error: Exception) -> Exception:
    """Marks an error of the script itself, which came to msprobe first: every guard lets it pass."""
    error.__dict__["is_of_the_script"] = True
    return error


def guarded(what: str, act: Callable[..., Any], give_up: Callable[[], None]) -> Callable[..., Any]:
    """`act`, after an error of which msprobe logs that `what` failed, and calls `give_up`. Exceptions that are meant
    for the script, and those of its signal handlers, pass."""

    @functools.wraps(act, assigned=("__doc__",))
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return act(*args, **kwargs)
        except MeantForTheScript:
            raise
        except Exception as error:
            if error.__dict__.get("is_of_the_script"):
                raise
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                raise  # wrong arguments: `act` has not begun
            let_through(error)
            notices.warn(f"{what} failed and is now off; the script continues:\n{traceback.format_exc()}")
            with contextlib.suppress(Exception):
                give_up()
            return None

    return run


def run_all(acts: Iterable[Callable[[], Any]], fault: Callable[[str, str], None]) -> None:
    """Runs each act, also if an earlier one has failed: what installs or removes hooks must not stop halfway.

    `fault` gets the name of an act that failed and the trace of its error.
    """
    for act in acts:
        try:
            act()
        except Exception:
            fault(getattr(act, "__name__", "hooks"), traceback.format_exc())
