"""Kernels (level L2): the beginning and the end of an operator's record, and of the calls around operators.

Nothing here raises an error of msprobe: what fails is reported with `Recorder.fault`, and the operator runs.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any, Optional

from msprobe.collect.records.recorder import Recorder
from msprobe.dump.names import FORWARD


def enter_kernel(
    recorder: Recorder, name: str, direction: str, parents: Sequence[str], args: Any, kwargs: Any, frames: int
) -> Optional[int]:
    """The number of the call for `Recorder.leave`, or None if it is not wanted.

    `frames` is the number of frames of msprobe on the stack, including this one. The calls around a kernel have no
    records at this level: they are noted as places.
    """
    selection = recorder.selection
    try:
        wanted = selection.everything or selection.enter(name, parents)
        if wanted and (selection.forward if direction == FORWARD else selection.backward):
            recorder.place(parents)
            return recorder.enter(name, parents[-1] if parents else None, args, kwargs, frames)
    except Exception:
        recorder.fault(name, traceback.format_exc())
    return None


def leave_kernel(recorder: Recorder, name: str, call: Optional[int], output: Any) -> None:
    """The operator has returned. `call` is None if it is not wanted; it may still be the last one of a scope."""
    try:
        if call is not None:
            recorder.leave(call, name, output)
        if not recorder.selection.everything:
            recorder.selection.leave(name)
    except Exception:
        recorder.fault(name, traceback.format_exc())


def fail_kernel(recorder: Recorder, name: str, call: Optional[int], error: BaseException) -> None:
    """The operator has raised an exception, which the script gets even if it cannot be recorded."""
    try:
        recorder.fail(call, error)
        if not recorder.selection.everything:
            recorder.selection.leave(name)
    except Exception:
        recorder.fault(name, traceback.format_exc())


def enter_place(recorder: Recorder, title: str) -> str:
    """A call without a record at this level begins: it becomes a parent of the operators in it. Returns its name."""
    name = title
    try:
        name = f"{title}.{recorder.numbers.take(title)}.{FORWARD}"
        recorder.push(name)
    except Exception:
        recorder.fault(name, traceback.format_exc())
    return name


def leave_place(recorder: Recorder, name: str) -> None:
    """The call has returned or raised."""
    try:
        recorder.pop(name)
    except Exception:
        recorder.fault(name, traceback.format_exc())
