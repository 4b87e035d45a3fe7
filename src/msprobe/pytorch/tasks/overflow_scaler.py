"""What torch.amp.GradScaler does while overflow_check looks on: inf gradients under it are skipped steps."""

from __future__ import annotations

from typing import Any, Optional

import torch

from msprobe.tasks.overflow_check.recorder import OverflowRecorder
from msprobe.tasks.overflow_check.run import OverflowRun


class ScalerWatch:
    """Knows while a step is open whether its loss was scaled, and which optimizer steps a GradScaler skipped."""

    def __init__(self, recorder: OverflowRecorder, run: OverflowRun) -> None:
        self._recorder = recorder
        self._run = run
        self._originals: Optional[tuple[Any, Any]] = None

    def install(self) -> None:
        if self._originals is not None:
            return
        kind = torch.amp.GradScaler
        scale, update = self._originals = (kind.scale, kind.update)
        recorder, run = self._recorder, self._run

        def watched_scale(scaler: Any, outputs: Any) -> Any:
            if not scaler.is_enabled():
                return scale(scaler, outputs)
            recorder.under_scaler = recorder.scaling = True
            try:
                return scale(scaler, outputs)
            finally:
                recorder.scaling = False

        def watched_update(scaler: Any, new_scale: Any = None) -> Any:
            run.skipped_steps += _skipped(scaler)
            return update(scaler, new_scale)

        kind.scale, kind.update = watched_scale, watched_update

    def remove(self) -> None:
        if self._originals is not None:
            torch.amp.GradScaler.scale, torch.amp.GradScaler.update = self._originals
            self._originals = None


def _skipped(scaler: Any) -> int:
    with torch._C.DisableTorchFunction():
        states = getattr(scaler, "_per_optimizer_states", {}).values()
        return sum(any(float(one) for one in state["found_inf_per_device"].values()) for state in states)
