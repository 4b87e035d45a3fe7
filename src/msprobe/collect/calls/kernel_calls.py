"""Kernels (level L2): the beginning of an operator's record."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any, Optional

from msprobe.collect.records.recorder import Recorder
from msprobe.dump.names import FORWARD


def enter_kernel(
    recorder: Recorder, name: str, direction: str, parents: Sequence[str], args: Any, kwargs: Any, frames: int
) -> Optional[int]:
    """The number of the call for `Recorder.leave`, or None where it is not wanted.

    `frames` is how many frames of ours are on the stack, this one included. The calls around it have no records of
    their own at this level: they are noted as places.
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
