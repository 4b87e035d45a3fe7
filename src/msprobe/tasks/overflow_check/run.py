"""overflow_check: counts over the steps of a run, and the messages at its end."""

from __future__ import annotations

from dataclasses import dataclass, field

from msprobe.dump.plural import count, were
from msprobe.stats.dtype_ranges import Ranges
from msprobe.tasks.overflow_check.saturation import Saturations


@dataclass
class OverflowRun:
    """`limit` is overflow_nums; `scaled` counts the overflows of a scaled loss, which are expected."""

    limit: int
    ranges: Ranges = field(default_factory=Ranges)
    saturations: Saturations = field(default_factory=Saturations)
    largest: dict[str, float] = field(default_factory=dict)
    """The largest number of each dtype of `saturations`."""
    counted: int = 0
    producers: int = 0
    propagators: int = 0
    scaled: int = 0
    skipped_steps: int = 0
    made_infinity: bool = False
    first: str = ""

    def summary(self) -> list[str]:
        """The messages at the end of the run."""
        messages = []
        if self.producers or self.propagators:
            messages.append(
                f"overflow_check: {count(self.producers, 'call')} produced NaN or infinity and "
                f"{self.propagators} propagated it; the first: {self.first}."
            )
        else:
            messages.append("overflow_check: no call produced NaN or infinity.")
        if self.scaled or self.skipped_steps:
            skipped = f"{count(self.skipped_steps, 'optimizer step')} {were(self.skipped_steps)} skipped"
            messages.append(
                f"overflow_check: {self.scaled} of them are in gradients of a loss that a loss scaler scaled, and do "
                f"not count; {skipped} for them, as expected."
            )
        return messages + self.saturations.messages(self.largest) + self.ranges.tables()
