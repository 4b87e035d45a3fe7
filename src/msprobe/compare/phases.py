"""The phases of a step: forward, backward, and what comes after the backward (clipping, scaler, optimizer, averages).

A forward call after the last backward of the step belongs to the third phase; so does one that was made inside the
optimizer, gradient clipping or the loss scaler, wherever it stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Union

from msprobe.compare.calls import BACKWARD, FORWARD, GRADS, Match

Stacks = tuple[Mapping[str, list[str]], Mapping[str, list[str]]]
Matches = Sequence[tuple[Match, object]]

_UPDATING = ("/torch/optim/", "/clip_grad.py", "/amp/grad_scaler.py", "/mindspore/nn/optim/", "/mint/optim/")


class Phase(IntEnum):
    FORWARD = 0
    BACKWARD = 1
    AFTER = 2

    @property
    def text(self) -> str:
        return ("forward", "backward", "after the backward")[self]


def phases_of(groups: Matches) -> list[Phase]:
    """The phase of each group by its place."""
    last = max((place for place, (match, _) in enumerate(groups) if match.call.direction == BACKWARD), default=-1)
    found = []
    for place, (match, _) in enumerate(groups):
        direction = match.call.direction
        if direction in (BACKWARD, GRADS):
            found.append(Phase.BACKWARD)
        elif direction == FORWARD and last >= 0 and place > last and not match.call.recompute:
            found.append(Phase.AFTER)
        else:
            found.append(Phase.FORWARD)
    return found


def updates_weights(match: Match, stacks: Stacks) -> bool:
    """True for a call that was made inside an optimizer, gradient clipping or the loss scaler."""
    for call, known in zip((match.target, match.golden), stacks):
        frames: Union[list[str], None] = known.get(call.name) if call is not None else None
        if frames:
            return any(part in frame for frame in frames for part in _UPDATING if isinstance(frame, str))
    return False
