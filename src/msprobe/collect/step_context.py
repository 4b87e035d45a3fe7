"""One step of one rank: the common data of all its hooks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from msprobe.collect.levels import Level
from msprobe.collect.parallel import RunHeader
from msprobe.collect.records.damage_texts import DamageTexts, MatrixAdapter
from msprobe.collect.records.recorder import Recorder, Writer
from msprobe.collect.records.selection import Selection
from msprobe.collect.records.values import Adapter, Values
from msprobe.collect.task import Task
from msprobe.config import Settings
from msprobe.dump.writing.writer import RankWriter


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

    def make_recorder(self, texts: MatrixAdapter, digests: Adapter, writer: Optional[Writer] = None) -> Recorder:
        """Makes a recorder of every wanted call. `texts` renders the tensors of records, `digests` the checksums of the
        first batch."""
        formats = self.settings.formats if self.task.name == "statistics" and self.level.sees_calls else ()
        wants_damage = bool(formats) and not self.level.kernels
        saves = self.selection.saves if self.selection.saves_any else None
        recorder = Recorder(
            writer or self.writer,
            Values(DamageTexts(texts, formats, saves) if wants_damage else texts),
            self.selection,
            with_data=self.task.with_data,
            with_stacks=self.settings.extra_info,
            batch=Values(digests),
        )
        if wants_damage:
            recorder.name_products()
        return recorder
