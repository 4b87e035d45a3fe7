"""One record of a dump that overflowed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from msprobe.dump.names import BACKWARD, FORWARD, parse_name


@dataclass(frozen=True)
class Event:
    """One record that overflowed, or a collective, which may have carried an overflow."""

    step: Optional[int]
    rank: Optional[int]
    label: str
    name: str
    position: int
    epoch: int  # collectives of this rank before it
    given: int
    found: int
    producer: bool
    overflow: bool
    slots: tuple[str, ...]
    collective: Optional[tuple[object, ...]] = None  # the same on all ranks of one collective
    module: Optional[str] = None
    source: Optional[str] = None
    discarded: str = ""
    """The module whose outputs are still finite; empty if the overflow spread, or may have spread."""

    @property
    def direction(self) -> str:
        """Gradients of parameters count as backward, as do operators of a graph's gradient part."""
        graph = self.name.startswith("Gradients/")
        return FORWARD if not graph and parse_name(self.name).direction == FORWARD else BACKWARD
