"""overflow_check and torch.amp.GradScaler: infinite gradients of a scaled loss skip a step; this is not an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch

from msprobe.collect.probe import Companion
from msprobe.tasks.overflow_check.recorder import OverflowRecorder
from msprobe.tasks.overflow_check.run import OverflowRun


class ScalerWatch(Companion):
    """Notes whether the loss of a step was scaled, and counts the optimizer steps that a GradScaler skipped.

    It stays until the step ends: the scaler is updated after stop().
    """

    def __init__(self, recorder: OverflowRecorder, run: OverflowRun) -> None:
        self._policy = recorder.policy
        self._run = run
        self._originals: Optional[tuple[Any, Any]] = None

    def install(self, models: Sequence[Any]) -> None:
        if self._originals is not None:
            return
        kind = torch.amp.GradScaler
        scale, update = self._originals = (kind.scale, kind.update)
        policy, run = self._policy, self._run

        def watched_scale(scaler: Any, outputs: Any) -> Any:
            if not scaler.is_enabled():
                return scale(scaler, outputs)
            with policy.scaling_loss():
                return scale(scaler, outputs)

        def watched_update(scaler: Any, new_scale: Any = None) -> Any:
            run.skipped_steps += _skipped(scaler)
            return update(scaler, new_scale)

        kind.scale, kind.update = watched_scale, watched_update

    def close(self) -> list[str]:
        if self._originals is not None:
            torch.amp.GradScaler.scale, torch.amp.GradScaler.update = self._originals
            self._originals = None
        return []


def _skipped(scaler: Any) -> int:
    with torch._C.DisableTorchFunction():
        states = getattr(scaler, "_per_optimizer_states", {}).values()
        return sum(any(float(one) for one in state["found_inf_per_device"].values()) for state in states)
