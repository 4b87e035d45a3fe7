"""Follows a script for `msprobe precision --emulate`: emulates a format and notes the loss of each step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from msprobe.config.emulation import EmulationOrder
from msprobe.pytorch.emulation.linear import Emulation
from msprobe.stats.formats import BY_NAME


class ScriptEmulation:
    """Installed after the script has imported torch. The script ends after the last wanted step."""

    def __init__(self, order: EmulationOrder) -> None:
        self._order = order
        self._losses: list[float] = []
        self._open: list[float] = []
        self._emulation: Optional[Emulation] = None

    def install(self) -> None:
        if self._order.format:
            self._emulation = Emulation(BY_NAME[self._order.format], self._order.keep, self._order.stochastic)
            self._emulation.install()
        original, note = torch.Tensor.backward, self._note

        def backward(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            note(tensor)
            return original(tensor, *args, **kwargs)

        torch.Tensor.backward = backward
        register_optimizer_step_post_hook(self._step_ended)

    def _note(self, tensor: Any) -> None:
        if tensor.numel() == 1:
            self._open.append(float(tensor.detach()))

    def _step_ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._open:
            self._losses.append(sum(self._open) / len(self._open))
            self._open = []
        if len(self._losses) >= self._order.steps:
            raise SystemExit(0)

    def finish(self) -> None:
        """Writes what was seen, when the script has ended."""
        found = self._emulation
        report = {
            "losses": self._losses,
            "emulated": sorted(found.emulated) if found else [],
            "kept": sorted(found.kept) if found else [],
        }
        Path(self._order.report).write_text(json.dumps(report), encoding="utf-8")
