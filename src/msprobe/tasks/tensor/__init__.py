"""Task tensor: records statistics and saves every tensor. It can send what it saves to an online check."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from msprobe.collect.levels import LEVELS
from msprobe.collect.run.online import OnlineSender
from msprobe.collect.task import Task
from msprobe.config.settings import TensorSettings


class Tensor(Task):
    name = "tensor"
    files = True
    _sender: Optional[OnlineSender] = None

    def describe_files(self, parameter_bytes: int) -> Optional[tuple[str, int]]:
        writes_parameters = LEVELS[self.settings.level].needs_model
        return "full tensors", 2 * parameter_bytes if writes_parameters else 0

    def open_step(self, directory: Path, rank: Optional[int]) -> None:
        section = self.settings.section
        assert isinstance(section, TensorSettings)
        if section.online_run_ut:
            self._sender = self._sender or OnlineSender(section, rank)
            self._sender.open_directory(directory)

    def finish(self) -> list[str]:
        if self._sender is not None:
            self._sender.end()
        return []


TASK = Tensor
