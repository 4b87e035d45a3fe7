"""An alarm: what began, at which step and target, in one sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Optional

from msprobe.dump.strict_json import strict
from msprobe.messages import beside
from msprobe.watch.targets import label_of, order_of

OUTSIDE = "weight_outside"
"""The rule of a weight that something outside the optimizer changed. It is found at the end of the step, and happened
before."""


@dataclass(frozen=True)
class Alarm:
    """`value` triggered the alarm, `usual` is what the rule compared it with, `around` holds (step, value) before it.

    `rank` None means the rank of the database that stores the alarm. The sentence is a message, and plain text if an
    older msprobe stored it.
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
    def order(self) -> tuple[int, bool, tuple[int, int]]:
        """Sorts alarms by step, then by place in it (forward by depth, loss, backward from end, optimizer, weights)."""
        return self.step, self.rule != OUTSIDE, order_of(self.kind, self.name, self.position)

    @property
    def target(self) -> str:
        return label_of(self.kind, self.name)

    def as_json(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "rank": self.rank or 0,
            "target": self.target,
            "rule": self.rule,
            "sentence": self.sentence,
            **beside({"sentence": self.sentence}, "sentence"),
            "value": strict(self.value),
            "usual": strict(self.usual),
            "around": [[step, strict(value)] for step, value in self.around],
        }
