"""overflow_check: what counts as an overflow, and which call is to blame.

A call overflows if an output has NaN or infinity. It is the **producer** if all its inputs were finite, and a
**propagator** otherwise. An infinity from the user (a mask of -inf, `masked_fill` with -inf) that a call only passes on
is not an overflow, until a call of this run has produced an infinity (own_infinities.py distinguishes the two). If such
an infinity leads to NaN (a softmax over a row of -inf), that call is the producer of the NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Optional

from msprobe.dump.names import forward_of
from msprobe.stats.finiteness import FINITE, INFINITE
from msprobe.tasks.overflow_check.run import OverflowRun

PRODUCER, PROPAGATOR = "producer", "propagator"


@dataclass(frozen=True)
class Finding:
    """One overflow. `stack` is the number of the stack of the call; `state` is the worst state of its results."""

    name: str
    parent: Optional[str]
    stack: Optional[int]
    state: int
    role: str
    backward: bool = False


class OverflowPolicy:
    """Judges the calls of one step, in the order in which they end."""

    def __init__(self, run: OverflowRun) -> None:
        self.run = run
        self.found: set[str] = set()  # names of the calls that overflowed
        self.under_scaler = False  # the loss of this step was scaled
        self.met_bad_gradient = False  # a finding without a record
        self._scaling = False  # the loss is being scaled right now
        self._scaled = False
        self._in_gradients = False
        self._around: set[str] = set()  # modules in which a call overflowed

    @contextmanager
    def scaling_loss(self) -> Iterator[None]:
        """Around the calls that a loss scaler makes to scale the loss."""
        self.under_scaler = self._scaling = True
        try:
            yield
        finally:
            self._scaling = False

    def role(self, state: int, given: int, contains_found: bool) -> Optional[str]:
        """The role of a call that returned `state` and received `given`; None if it did not overflow.

        `contains_found`: a call inside it has overflowed.
        """
        if state == FINITE:
            return None
        from_user = given == INFINITE and not self.run.made_infinity and not self._in_gradients
        if from_user and state == INFINITE:
            return None
        return PRODUCER if not contains_found and (given == FINITE or from_user) else PROPAGATOR

    def backward_role(self, name: str, state: int, given: int) -> Optional[str]:
        """The role of a backward. A NaN of the forward is not produced in the backward."""
        return self.role(state, given, name in self._around or forward_of(name) in self.found)

    def parameter_role(self) -> str:
        """The role of a parameter's gradient, which comes after the gradients that it was computed from."""
        return PROPAGATOR if self.found or self.met_bad_gradient else PRODUCER

    def add(self, finding: Finding) -> bool:
        """Counts a finding. Returns whether it counts towards overflow_nums."""
        run = self.run
        repeated = finding.name in self.found  # a further parameter of the same module
        self.found.add(finding.name)
        if finding.parent is not None:
            self._around.add(finding.parent)
        scaled = self._is_scaled(finding)
        if finding.state == INFINITE and not finding.backward and not scaled:
            run.made_infinity = True
        self._in_gradients = self._in_gradients or finding.backward
        if repeated:
            return False
        run.producers += finding.role == PRODUCER
        run.propagators += finding.role == PROPAGATOR
        run.scaled += scaled
        run.counted += not scaled
        return not scaled

    def _is_scaled(self, finding: Finding) -> bool:
        """Whether it belongs to a scaled loss: the loss, its gradients, and what passes these on (unscaling)."""
        passes_on = self._scaled and finding.role == PROPAGATOR
        scaled = self._scaling or (self.under_scaler and (finding.backward or passes_on))
        self._scaled = self._scaled or scaled
        return scaled
