"""What loss scalers do while overflow_check looks on: inf gradients under one are skipped steps, not failures.

A loss is scaled by a LossScaler of mindspore.amp or by nn.TrainOneStepWithLossScaleCell. The step is skipped when
`all_finite` says no, when the scaler is told so (`adjust`), or when the Cell finds an overflow itself: once a step,
however many of them say it.
"""

from __future__ import annotations

from typing import Any, Callable

from mindspore import amp, nn

from msprobe.tasks.overflow_check.recorder import OverflowRecorder
from msprobe.tasks.overflow_check.run import OverflowRun

_SCALERS = (amp.DynamicLossScaler, amp.StaticLossScaler)
_CELL = nn.TrainOneStepWithLossScaleCell


class ScalerWatch:
    """Of one step."""

    def __init__(self, recorder: OverflowRecorder, run: OverflowRun) -> None:
        self._recorder = recorder
        self._run = run
        self._skipped = False
        self._originals: list[tuple[Any, str, Any]] = []

    def install(self) -> None:
        if self._originals:
            return
        for kind in _SCALERS:
            self._replace(kind, "scale", self._scaling)
            self._replace(kind, "adjust", lambda original: self._told(original, lambda finite: not finite))
        self._replace(amp, "_all_finite", self._asked)
        self._replace(_CELL, "start_overflow_check", self._scales)
        self._replace(_CELL, "process_loss_scale", lambda original: self._told(original, bool))

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
            recorder = self._recorder
            recorder.under_scaler = recorder.scaling = True
            try:
                return original(*args, **kwargs)
            finally:
                recorder.scaling = False

        return scale

    def _scales(self, original: Any) -> Any:
        def start(*args: Any, **kwargs: Any) -> Any:
            self._recorder.under_scaler = True
            return original(*args, **kwargs)

        return start

    def _told(self, original: Any, says_no: Callable[[Any], bool]) -> Any:
        def told(holder: Any, *args: Any, **kwargs: Any) -> Any:
            self._count(says_no, *args, *kwargs.values())
            return original(holder, *args, **kwargs)

        return told

    def _asked(self, original: Any) -> Any:
        def asked(*args: Any, **kwargs: Any) -> Any:
            answer = original(*args, **kwargs)
            if self._recorder.under_scaler:
                self._count(lambda finite: not finite, answer)
            return answer

        return asked

    def _count(self, says_no: Callable[[Any], bool], *verdict: Any) -> None:
        try:
            if not self._skipped and says_no(*verdict):
                self._skipped = True
                self._run.skipped_steps += 1
        except Exception:  # it has no value yet: a graph is being compiled; or the call is a wrong one
            return
