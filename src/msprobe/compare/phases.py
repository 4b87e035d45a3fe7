"""The phases of a step: forward, backward, and what comes after the backward (clipping, scaler, optimizer, averages).

A forward call after the last backward of the step belongs to the third phase. So does a call inside the optimizer,
gradient clipping or the loss scaler, at any place. A call that the autograd engine makes (in the backward of a function
of the user) belongs to the backward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Union

from msprobe.compare.calls import BACKWARD, FORWARD, GRADS, Match

Stacks = tuple[Mapping[str, list[str]], Mapping[str, list[str]]]
Matches = Sequence[tuple[Match, object]]

_OPTIMIZERS = ("/torch/optim/", "/mindspore/nn/optim/", "/mint/optim/")
_UPDATING = (*_OPTIMIZERS, "/clip_grad.py", "/amp/grad_scaler.py")
_ENGINE = ("_engine_run_backward", "in _run_backward")


class Phase(IntEnum):
    FORWARD = 0
    BACKWARD = 1
    AFTER = 2

    @property
    def text(self) -> str:
        return ("forward", "backward", "after the backward")[self]


def phases_of(groups: Matches) -> list[Phase]:
    """The phase of each group by its place."""
    calls = [match.call for match, _ in groups]
    last = max((place for place, call in enumerate(calls) if call.direction == BACKWARD), default=-1)
    found = []
    for place, call in enumerate(calls):
        direction = call.direction
        if direction in (BACKWARD, GRADS):
            found.append(Phase.BACKWARD)
        elif place > last >= 0 and direction == FORWARD and not call.recompute:
            found.append(Phase.AFTER)
        else:
            found.append(Phase.FORWARD)
    return found


def updates_weights(match: Match, stacks: Stacks) -> bool:
    """True for a call that was made inside an optimizer, gradient clipping or the loss scaler. An optimizer with a
    closure (LBFGS, Lightning) runs the complete step: calls of the closure are not calls of the optimizer."""
    frame = _innermost(match, stacks, _UPDATING)
    return bool(frame) and "closure(" not in frame.rpartition("\n")[2]


def phase_by_stack(match: Match, stacks: Stacks) -> Phase:
    """The phase of a call among those of the forward."""
    if updates_weights(match, stacks):
        return Phase.AFTER
    return Phase.BACKWARD if is_made_by_engine(match, stacks) else Phase.FORWARD


def is_made_by_engine(match: Match, stacks: Stacks) -> bool:
    """True for a call in the backward of a function of the user. A recomputed call has a module around it."""
    call = match.call
    if call.direction != FORWARD or call.recompute or call.parent is not None:
        return False
    return bool(_innermost(match, stacks, _ENGINE))


def _innermost(match: Match, stacks: Stacks, parts: tuple[str, ...]) -> str:
    """The innermost frame with one of these texts, or an empty string."""
    for call, known in zip((match.target, match.golden), stacks):
        frames: Union[list[str], None] = known.get(call.name) if call is not None else None
        if frames:
            return next((f for f in frames if isinstance(f, str) and any(part in f for part in parts)), "")
    return ""
