"""Whether gradients are set to zero between two steps of the optimizer.

One small parameter is enough, and costs one hook. The hook runs before the backward pass adds to the gradient. On a
device the script would have to wait for the answer, so msprobe does not look there.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

from msprobe.pytorch.watch.parameters import Parameter, Parameters
from msprobe.pytorch.watch.tensors import Gauge
from msprobe.watch.step_figures import StepFigures
from msprobe.watch.targets import NORM


class StaleGradient:
    """Looks at the gradient of one parameter before each backward pass, until one of them finds it empty."""

    def __init__(self, parameters: Parameters, measure: Gauge, guarded: Callable[[Any], Any]) -> None:
        fitting = [one for one in parameters.all if one.tensor.is_leaf and one.tensor.is_cpu and not one.shard]
        trained = [one for one in fitting if one.tensor.requires_grad]
        self._one: Optional[Parameter] = min(trained, key=lambda one: one.tensor.numel(), default=None)
        self._gauge = measure
        self._reached = guarded(self._reach)
        self._handle: Any = None
        self._was_empty = True  # since the optimizer last used it
        self._passes = 0
        self.name = ""
        """The parameter, if the optimizer used a gradient in this step that was not empty before; otherwise ""."""

    def install(self, found: StepFigures) -> None:
        self.name = ""
        if self._handle is None and self._one is not None and self._one.tensor.requires_grad:
            self._handle = self._one.tensor.register_hook(self._reached)

    def remove(self) -> None:
        self._was_empty = True  # nobody looks in the next step, so a later one cannot know
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def used(self, by: list[Parameter]) -> None:
        """An optimizer uses the gradients of these parameters now."""
        if self._one is None or not any(one is self._one for one in by):
            return
        if self._passes and not self._was_empty:
            self.name = self._one.name
        self._was_empty, self._passes = False, 0

    def _reach(self, gradient: Any) -> None:
        self._passes += 1
        if self._was_empty or self._one is None:
            return
        found = StepFigures(1)
        if self._one.tensor.grad is not None:
            self._gauge.read(self._one.tensor.grad, found, 0)
        figures = found.get(0)
        self._was_empty = figures is None or not figures[NORM]
