"""What overflow_check knows over the steps of a run, and tells at its end."""

from __future__ import annotations

from dataclasses import dataclass, field

from msprobe.stats.dtype_ranges import Ranges


@dataclass
class OverflowRun:
    """`limit` is overflow_nums; `scaled` counts what a loss scaler answers for, which does not count."""

    limit: int
    ranges: Ranges = field(default_factory=Ranges)
    counted: int = 0
    producers: int = 0
    propagators: int = 0
    scaled: int = 0
    skipped_steps: int = 0
    made_infinity: bool = False
    first: str = ""

    def summary(self) -> list[str]:
        """What is told when the run ends."""
        told = []
        if self.producers or self.propagators:
            told.append(
                f"overflow_check: {self.producers} calls made NaN or infinity and {self.propagators} handed it on; "
                f"the first: {self.first}."
            )
        else:
            told.append("overflow_check: no call returned NaN or infinity that it was not given.")
        if self.scaled or self.skipped_steps:
            told.append(
                f"overflow_check: {self.scaled} of them in gradients of a loss that a loss scaler had scaled, which do "
                f"not count; {self.skipped_steps} optimizer steps were skipped for it, as they should be."
            )
        return told + self.ranges.tables()
