"""One step of one rank: the common data of all its hooks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from msprobe.collect.levels import Level
from msprobe.collect.parallel import RunHeader
from msprobe.collect.records.recorder import Recorder, Writer
from msprobe.collect.records.selection import Selection
from msprobe.collect.records.values import Adapter, Values
from msprobe.collect.task import Task
from msprobe.config import Settings
from msprobe.dump.writing.writer import RankWriter
from msprobe.stats import CRC, LOW_PRECISION, STATS, XOR

_SUMMARIES = {"md5": STATS | CRC, "xor": XOR}


@dataclass(frozen=True)
class StepContext:
    settings: Settings
    task: Task
    level: Level
    writer: RankWriter
    selection: Selection
    step: int
    rank: Optional[int]
    header: RunHeader

    @property
    def statistics(self) -> int:
        """Which statistics of a tensor are wanted: flags of `msprobe.stats`."""
        wanted = _SUMMARIES.get(str(getattr(self.settings.section, "summary_mode", "")), STATS)
        return wanted | LOW_PRECISION if self.settings.precision == "low" else wanted

    def make_recorder(self, texts: Adapter, digests: Adapter, writer: Optional[Writer] = None) -> Recorder:
        """Makes a recorder of every wanted call. `texts` renders tensors, `digests` those of the first batch."""
        return Recorder(
            writer or self.writer,
            Values(texts),
            self.selection,
            with_data=self.task.with_data,
            with_stacks=self.settings.extra_info,
            batch=Values(digests),
        )
