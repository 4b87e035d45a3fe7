"""enable_dataloader (deprecated): each iteration of a DataLoader is a step; the script needs no calls."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import dataloader

from msprobe.collect import notices
from msprobe.collect.run.lifecycle import Lifecycle


class CollectionFinished(SystemExit):
    """Ends the run after the last wanted step, as enable_dataloader documents. The exit code is 0."""


class DataLoaderDriver:
    """Starts a step when a batch is fetched and ends it when the next batch is fetched."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._running = False
        self._next: Any = None

    def install(self) -> None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            notices.warn_once("enable_dataloader supports one process: a distributed run may miss data.")
        base = dataloader._BaseDataLoaderIter
        original = self._next = base.__next__

        def following(iterator: Any) -> Any:
            if self._lifecycle.closed:
                base.__next__ = original
                return original(iterator)
            self._end_step()
            batch = original(iterator)
            self._lifecycle.start()
            self._running = True
            return batch

        base.__next__ = following

    def _end_step(self) -> None:
        if self._running:
            self._running = False
            self._lifecycle.step()
        if not self._lifecycle.wants_more:
            dataloader._BaseDataLoaderIter.__next__ = self._next
            raise CollectionFinished(0)
