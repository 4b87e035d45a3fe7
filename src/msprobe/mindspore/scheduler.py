"""The debugger in msrun's scheduler process does nothing.

The scheduler runs the script up to communication.init() and has no rank. Level L2 calls start() before init(), and in
the scheduler this would create the directory of a real rank.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msprobe.config import Settings


class SchedulerLifecycle:
    """Replaces the lifecycle; all methods do nothing."""

    probe = None
    closed = False
    wants_more = False

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self, model: Any = None, token_range: Any = None) -> None:
        """Does nothing."""

    def stop(self) -> None:
        """Does nothing."""

    def step(self) -> None:
        """Does nothing."""

    def save(self, variable: Any, name: str, save_backward: bool = True) -> None:
        """Does nothing."""

    def set_init_step(self, step: int) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""

    def close_replaced(self) -> None:
        """Does nothing."""

    def use_model(self, model: Any) -> None:
        """Does nothing."""

    def use_rank(self, rank: int) -> None:
        """Does nothing."""

    def use_dump_path(self, dump_path: Path) -> None:
        """Does nothing."""

    def finish_step(self) -> None:
        """Does nothing."""

    def give_up(self) -> None:
        """Does nothing."""
