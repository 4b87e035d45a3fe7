"""How far a row may be off: its own rounding, and what it inherits from rows before it.

Each row has two limits. The largest element of rounding noise says little, so the limit of maximum and minimum is wide.
In norm and mean, rounding averages out; in coarse types their limit is narrow, and finds an error of a few percent even
if the elements are noisy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Optional

from msprobe.compare.calls import BACKWARD, FORWARD, Match
from msprobe.compare.judge.rounding import Context, epsilon_of
from msprobe.compare.measure import distance
from msprobe.compare.measure.distance import epsilon
from msprobe.compare.operators import VIEWS, word_of
from msprobe.compare.rows import Row, is_tensor

AMPLIFICATION = 16.0
"""How many times larger than all earlier noise the worst element may be and still count as noise."""
WIDEST = 0.4
"""The widest limit of an extreme, for any noise and any dtype."""
COARSE = 2.0**-16
"""Dtypes with a larger epsilon have a separate limit for norm and mean."""
AVERAGE_CAP = 0.04
"""The widest limit of the norm of a tensor with many elements, for any noise."""
SUM_CAP = 0.08
"""The widest limit of the norm of the gradient of a vector, for any number of rows that a coarse dtype adds up."""
SQUARED = 4.0
"""A product may be as far off as its factors, a square twice as far; its norm is that of its largest elements."""
COMPUTED_ARGUMENT = 1e-3
"""How far off a plain float argument may be if the runs differ by rounding: it may be computed from their values."""
NOISE_MARGIN = 8.0
"""How many times the measured noise of a row (`--noise`) is still noise."""
TAIL = 8.0
"""The worst element of rounding noise is about this many times its root mean square."""


class Limits(NamedTuple):
    extreme: float
    average: float


class Noise:
    """The noise seen so far in one rank: `level` is the largest difference that was accepted, 0 while the runs agree
    bit for bit; `at_start` what it was when the step began."""

    def __init__(self) -> None:
        self.level = 0.0
        self.at_start = 0.0
        self.kinks = 0.0
        self.ported = False
        """The complete run computes in a different dtype."""
        self.average = 0.0
        """The largest difference of a norm or mean that was accepted in this step."""
        self._forward = 0.0
        self._coarsest = 0.0
        self._own: dict[tuple[str, Optional[str]], list[float]] = {}
        """The coarsest results of calls that only the target, or only the golden run makes, by module."""

    def start_step(self, ported: bool) -> None:
        self._own.clear()
        self.at_start = self.level
        self.ported = ported
        self.average = 0.0

    def learn(self, row: Row, away: float, context: Context) -> None:
        self.level = max(self.level, away)
        self._coarsest = max(self._coarsest, epsilon_of(row))
        if context.direction == FORWARD:
            self._forward = max(self._forward, away)
        elif context.has_kink:
            self.kinks = max(self.kinks, away)

    def expect(self, match: Match, rows: Sequence[Row]) -> None:
        """Where both runs compute something by calls of their own, and the golden run in a coarse dtype, their results
        are rounded differently. A cast only moves the rounding."""
        if match.how != "unmatched" or word_of(match.call.key) in VIEWS:
            return
        made = [row.golden or row.target or {} for row in rows if not row.is_input]
        rounding = max([epsilon(item) for item in made if is_tensor(item)], default=0.0)
        ours, theirs = self._own.setdefault((match.call.direction, match.call.parent), [0.0, 0.0])
        if match.target is None:
            theirs = max(theirs, rounding)
        else:
            ours = max(ours, rounding)
        self._own[match.call.direction, match.call.parent] = [ours, theirs]
        if ours and theirs > COARSE:
            self.level = max(self.level, theirs)

    def knows(self, away: float, context: Context) -> bool:
        """Whether such a difference is already known."""
        if away > self.level or self._coarsest == 0.0:
            return False
        return away <= self._forward if context.direction == FORWARD else not context.has_kink

    def limits(self, row: Row, context: Context, measured: Optional[float]) -> Limits:
        """`measured` is the noise of the row between two golden runs, with `--noise`."""
        eps = epsilon_of(row)
        level = self.at_start if row.slot.startswith("parameters.") else self.level
        if eps == 0.0:
            is_float = row.golden is not None and isinstance(row.golden.get("value"), float)
            both = min(AMPLIFICATION * level, COMPUTED_ARGUMENT) if is_float else 0.0
            return Limits(both, both)
        own = context.rounding(row, eps, quiet=level == 0.0)
        cap = min(max(4.0 * math.sqrt(max(eps, self._coarsest)), own, 4.0 * self.kinks), WIDEST)
        if measured is not None:
            both = min(max(own, NOISE_MARGIN * measured), max(cap, 1.0))
            return Limits(both, both)
        given = 0.0 if row.is_input else context.accepted
        if given > 0.0 and context.takes_root:
            given = 2.0 * math.sqrt(given)  # a root enlarges errors that are small relative to the largest element
        if given > cap and context.is_relative:
            cap = min(given, WIDEST)  # a product or a quotient passes on the error of its inputs
        extreme = min(max(own, AMPLIFICATION * level * context.stretch(row), given), cap)
        if context.has_kink and context.direction == BACKWARD:
            extreme = min(max(extreme, TAIL * math.sqrt(self._forward)), WIDEST)
        if self.ported and level:
            eps = max(eps, self._coarsest)  # float32 calls of a port get inputs that are not float32
        if eps <= COARSE or row.golden is None:
            return Limits(extreme, extreme)
        root = math.sqrt(max(distance.count(row.golden), 1))
        if level == 0.0:
            return Limits(extreme, min(extreme, max(0.75 * eps, 2.0 * own / root)))
        kinks = max(self.kinks, math.sqrt(self._forward)) if self.kinks and context.direction != FORWARD else 0.0
        spread = 2.0 * min(extreme, max(8.0 * eps, 1.5e-3, kinks), 0.25) / root
        average_given, extreme_given = (0.0, 0.0) if row.is_input and context.direction == FORWARD else context.given()
        if context.direction != FORWARD and len(row.golden["shape"]) == 1:
            # Kernels add the gradients of biases and norms up in the type itself; a port rounds what they add up, too.
            rounded = (1.0 if self.ported else 0.5) * eps
            spread = max(spread, min(rounded * math.sqrt(context.summed(distance.count(row.golden))), SUM_CAP))
        own_share = 2.0 if context.direction == FORWARD else 3.0  # a backward adds values that were rounded twice
        floor = max(min(own_share * eps, 0.01 * own_share), spread, 4.0 * average_given)
        cap = max(min(5.0 * eps, AVERAGE_CAP), spread, 1.1 * average_given)
        inherited = 0.0
        if context.is_relative:
            inherited = max(SQUARED * average_given, extreme_given)
        elif self.ported:
            # A norm does not show how far off elements are, until they cancel or get other weights. A fault
            # of a call shows in the first step; later the weights differ too.
            inherited = 2.0 * max(extreme_given, self._forward) if self.at_start else max(extreme_given, 0.5 * kinks)
            if context.has_calls and context.direction != FORWARD:
                inherited = max(inherited, 2.0 * self.average)  # it adds up the results of the calls inside
                extreme = max(extreme, inherited)
        floor, cap = max(floor, inherited), max(cap, inherited)
        return Limits(extreme, min(extreme, floor, cap))
