"""The phase and the micro-batch of each record, from the events of the training loop.

`TrainingEvents` of a frontend reports when a backward pass, clipping, zero_grad and an optimizer step begin and end.
The recorder asks at each call. Only a change is written, as a line of the journal: most records have the phase of the
record before.

A micro-batch begins with the first forward call after a backward pass. Between the two there may be calls that only
log or check something: a call of a module is a forward, and so is an API whose result requires a gradient.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Callable, Optional, Protocol

from msprobe.dump.phases import BACKWARD, CLIPPING, EVALUATION, FORWARD, OPTIMIZER, OTHER, RECOMPUTATION

__all__ = ["CLIPPING", "OPTIMIZER", "OTHER", "Phases"]


class BackwardState(Protocol):
    """The part of `CallGradients` that tells where the training is."""

    @property
    def running_pass(self) -> Callable[[], int]: ...

    @property
    def differentiates(self) -> Callable[[], bool]: ...

    def recomputes(self) -> bool: ...


class Phases:
    """The phases of one step. `requires_grad` says whether a result requires a gradient."""

    def __init__(
        self, write: Callable[[str], None], backward: BackwardState, requires_grad: Callable[[Any], bool]
    ) -> None:
        self._write = write
        self._running_pass = backward.running_pass
        self._differentiates = backward.differentiates
        self._recomputes = backward.recomputes
        self._requires_grad = requires_grad
        self._models: Sequence[Any] = ()
        self.inside: list[str] = []  # clipping, optimizer steps and zero_grad that are running, outermost first
        self._closures = 0
        self._written_phase, self._written_microbatch = "", -1
        self._microbatch = 0
        self._backward_ended = False
        self.between = False
        """Whether a backward pass or an optimizer step has ended and no forward call has begun since."""

    # What the training loop does.

    def set_models(self, models: Sequence[Any]) -> None:
        """start() with these models, or stop() with none."""
        self._models = models

    def enter(self, phase: str) -> None:
        self.inside.append(phase)

    def leave(self, phase: str) -> None:
        """Ends the phase, and all inside it that an exception left open."""
        if phase in self.inside:
            while self.inside.pop() != phase:
                pass

    def enter_optimizer(self, has_closure: bool) -> None:
        """An optimizer step begins. What its closure computes is a forward and a backward."""
        self._closures += has_closure
        self.enter(OPTIMIZER)

    def leave_optimizer(self, had_closure: bool) -> None:
        self._closures = max(0, self._closures - had_closure)
        self.leave(OPTIMIZER)
        self.between = True

    def begin_backward(self) -> None:
        """A backward pass begins that is not inside another one."""
        if not self._closures:
            self.inside.clear()  # an exception may have left something open

    def end_backward(self) -> None:
        self.between = self._backward_ended = True

    # What is recorded.

    def begin_module(self) -> None:
        """A module is called."""
        self._close_left_open()
        if not self._is_elsewhere() and not self._is_evaluation():
            self._begin_forward()

    def begin_call(self) -> None:
        """A call begins that gets a record."""
        if self._running_pass() >= 0:
            phase = RECOMPUTATION if self._recomputes() else BACKWARD
        elif self.inside and not (self._closures and self._differentiates()):
            phase = self.inside[-1]
        elif self._is_evaluation():
            phase = EVALUATION
        else:
            phase = OTHER if self.between else FORWARD
        if self._written_phase != phase or self._written_microbatch != self._microbatch:
            self._note(phase)

    def end_call(self, call: int, output: Any) -> None:
        """A call between two forwards has returned: its result shows whether it is a forward."""
        if self._differentiates() and self._running_pass() < 0 and self._requires_grad(output):
            self._close_left_open()
            if not self._is_elsewhere():
                self._begin_forward()
                self._note(FORWARD, call)

    def begin_gradient(self) -> None:
        """A record of gradients is written."""
        if self._written_phase != BACKWARD or self._written_microbatch != self._microbatch:
            self._note(BACKWARD)

    def _close_left_open(self) -> None:
        """No forward runs inside clipping or zero_grad: an exception has left them open."""
        if self.inside and OPTIMIZER not in self.inside:
            self.inside.clear()

    def _is_elsewhere(self) -> bool:
        """Whether this is neither a forward nor an evaluation nor between them."""
        if self._running_pass() >= 0:
            return True
        return bool(self.inside) and not (self._closures and self._differentiates())

    def _is_evaluation(self) -> bool:
        return not self._differentiates() and bool(self._models) and not any(one.training for one in self._models)

    def _begin_forward(self) -> None:
        self._microbatch += self._backward_ended
        self.between = self._backward_ended = False

    def _note(self, phase: str, call: Optional[int] = None) -> None:
        self._written_phase, self._written_microbatch = phase, self._microbatch
        of_call = "" if call is None else f', "call": {call}'
        self._write(f'"phase": {json.dumps(phase)}, "microbatch": {self._microbatch}{of_call}')
