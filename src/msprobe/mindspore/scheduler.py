"""The debugger in msrun's scheduler, which runs the script up to communication.init() and is not a rank: it does
nothing there. Otherwise a start() before init(), as at level L2, would take the directory of a rank."""

from __future__ import annotations

from typing import Any

from msprobe.config import Settings


class SchedulerLifecycle:
    """Replaces a lifecycle."""

    probe = None
    closed = False

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self, model: Any = None, token_range: Any = None) -> None:
        """Nothing runs here."""

    def stop(self) -> None:
        """Nothing runs here."""

    def step(self) -> None:
        """Nothing runs here."""

    def save(self, variable: Any, name: str, save_backward: bool = True) -> None:
        """Nothing runs here."""

    def set_init_step(self, step: int) -> None:
        """Nothing runs here."""

    def close(self) -> None:
        """Nothing runs here."""
