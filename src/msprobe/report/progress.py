"""A progress bar on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, Optional, TypeVar

T = TypeVar("T")
_SHOW_BAR_AFTER = 2.0


class _Bar:
    """One bar for all iterations that run inside each other: an inner one moves it within one item of the outer one."""

    def __init__(self, what: str) -> None:
        self.open: list[list[float]] = []
        """The items done and the total, from the outermost iteration inwards."""
        self._what = what
        self._since = time.monotonic()
        self._shown: Any = None

    @property
    def done(self) -> float:
        """The part that is done, from 0 to 1."""
        part = 0.0
        for done, total in reversed(self.open):
            part = min((done + part) / total, 1.0) if total else 1.0
        return part

    def update(self) -> None:
        if self._shown is None and time.monotonic() - self._since > _SHOW_BAR_AFTER:
            from rich.console import Console
            from rich.progress import Progress

            self._shown = Progress(console=Console(stderr=True), transient=True)
            self._shown.add_task(self._what, total=1.0)
            self._shown.start()
        if self._shown is not None:
            self._shown.update(self._shown.task_ids[0], completed=self.done)

    def stop(self) -> None:
        if self._shown is not None:
            self._shown.stop()


_bar: Optional[_Bar] = None


def progress(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Yields the items; shows a bar on standard error after two seconds if that is a terminal."""
    global _bar
    if not sys.stderr.isatty():
        yield from items
        return
    bar = _bar = _bar or _Bar(what)
    level = [0.0, float(total)]
    bar.open.append(level)
    try:
        bar.update()
        for done, item in enumerate(items, 1):
            yield item
            level[0] = done
            bar.update()
    finally:
        bar.open.remove(level)
        if not bar.open:
            bar.stop()
            _bar = None
