"""overflow_check and loss scalers: infinite gradients of a scaled loss lead to a skipped step, not to an error.

A LossScaler of mindspore.amp or nn.TrainOneStepWithLossScaleCell scales a loss. The step is skipped if `all_finite`
returns False, if `adjust` of the scaler gets False, or if the Cell finds an overflow itself. A skipped step is counted
once, even if several of them report it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

from mindspore import amp, nn

from msprobe.collect.probe import Companion
from msprobe.tasks.overflow_check.recorder import OverflowRecorder
from msprobe.tasks.overflow_check.run import OverflowRun

_SCALERS = (amp.DynamicLossScaler, amp.StaticLossScaler)
_CELL = nn.TrainOneStepWithLossScaleCell


class ScalerWatch(Companion):
    """Notes whether the loss of a step was scaled, and counts the steps that were skipped for it."""

    def __init__(self, recorder: OverflowRecorder, run: OverflowRun) -> None:
        self._policy = recorder.policy
        self._run = run
        self._skipped = False
        self._originals: list[tuple[Any, str, Any]] = []

    def install(self, models: Sequence[Any]) -> None:
        self.resume()

    def suspend(self) -> None:
        self.remove()

    def resume(self) -> None:
        if self._originals:
            return
        for kind in _SCALERS:
            self._replace(kind, "scale", self._scaling)
            self._replace(kind, "adjust", lambda original: self._reporting(original, lambda finite: not finite))
        self._replace(amp, "_all_finite", self._checking)
        self._replace(_CELL, "start_overflow_check", self._scales)
        self._replace(_CELL, "process_loss_scale", lambda original: self._reporting(original, bool))

    def remove(self) -> None:
        for holder, name, original in self._originals:
            setattr(holder, name, original)
        self._originals.clear()

    def _replace(self, holder: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        original = vars(holder)[name]
        self._originals.append((holder, name, original))
        setattr(holder, name, wrap(original))

    def _scaling(self, original: Any) -> Any:
        def scale(*args: Any, **kwargs: Any) -> Any:
            with self._policy.scaling_loss():
                return original(*args, **kwargs)

        return scale

    def _scales(self, original: Any) -> Any:
        def start(*args: Any, **kwargs: Any) -> Any:
            self._policy.under_scaler = True
            return original(*args, **kwargs)

        return start

    def _reporting(self, original: Any, is_overflow: Callable[[Any], bool]) -> Any:
        def report(holder: Any, *args: Any, **kwargs: Any) -> Any:
            self._count(is_overflow, *args, *kwargs.values())
            return original(holder, *args, **kwargs)

        return report

    def _checking(self, original: Any) -> Any:
        def check(*args: Any, **kwargs: Any) -> Any:
            answer = original(*args, **kwargs)
            if self._policy.under_scaler:
                self._count(lambda finite: not finite, answer)
            return answer

        return check

    def _count(self, is_overflow: Callable[[Any], bool], *verdict: Any) -> None:
        try:
            if not self._skipped and is_overflow(*verdict):
                self._skipped = True
                self._run.skipped_steps += 1
        except Exception:  # it has no value while a graph is compiled, or if the call is wrong
            return
