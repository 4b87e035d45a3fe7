"""An alarm: what began, at which step and target, in one sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Optional

from msprobe.watch.targets import label_of


@dataclass(frozen=True)
class Alarm:
    """`value` triggered the alarm, `usual` is what the rule compared it with, `around` holds (step, value) before it.

    `rank` None means the rank of the database that stores the alarm.
    """

    step: int
    rule: str
    kind: str
    name: str
    sentence: str
    value: float = math.nan
    usual: float = math.nan
    around: tuple[tuple[int, float], ...] = field(default=())
    position: int = 0
    rank: Optional[int] = None

    @property
    def target(self) -> str:
        return label_of(self.kind, self.name)

    def as_json(self) -> dict[str, Any]:
        """JSON has no NaN and no infinity: they become strings."""
        return {
            "step": self.step,
            "rank": self.rank or 0,
            "target": self.target,
            "rule": self.rule,
            "sentence": self.sentence,
            "value": plain(self.value),
            "usual": plain(self.usual),
            "around": [[step, plain(value)] for step, value in self.around],
        }


def plain(value: float) -> Any:
    return value if math.isfinite(value) else str(value)
