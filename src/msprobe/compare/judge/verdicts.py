"""Verdicts: is a difference more than rounding?

Tolerances come from the dtype and the length of the reduction, and from the noise seen so far: where two runs agree
bit for bit, a call may differ by its own rounding only; where they already differ by rounding (other thread counts,
other kernels), later calls may amplify that, but not jump. The cap keeps slow growth from hiding a fault. A golden
run against itself (`--noise`) replaces guesses by measurement.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Optional

from msprobe.compare.calls import BACKWARD, FORWARD, GRADS, Match
from msprobe.compare.judge.presets import Preset
from msprobe.compare.judge.rounding import Context, epsilon_of
from msprobe.compare.measure import distance
from msprobe.compare.rows import ERROR, NOT_COMPARED, OTHER_BYTES, PASS, WARNING, Row, is_tensor

AMPLIFICATION = 16.0
"""How much larger than all noise before it a difference may be and still be called noise."""
WARNING_BAND = 4.0
"""Up to this many tolerances a difference is a warning, beyond an error."""
COMPUTED_ARGUMENT = 1e-3
"""How far a plain float argument may be off where the runs differ by rounding: it may have been computed from them."""
NOISE_MARGIN = 8.0
"""How many times the measured noise of a row (`--noise`) is still noise."""

NOTHING_BUT_ROUNDING = 1e-2
"""A gradient that passes although it differs by this much is zero but for rounding (a bias before a normalisation)."""
MOST_OF_A_WEIGHT = 0.03
"""However noisy: beyond this a weight differs."""
TAIL = 8.0
"""The worst element of rounding noise is some times its root mean square."""

_UNINITIALISED = {"empty", "empty_like", "empty_strided", "new_empty", "empty_permuted", "emptylike"}
_RECEIVING = {
    "all_gather",
    "all_gather_into_tensor",
    "_all_gather_base",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "_reduce_scatter_base",
    "recv",
    "irecv",
    "scatter",
    "gather",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
}
BENIGN = ("uninitialised", "receive buffer", "recomputed", "covered", "rounding")
"""Reasons for not comparing that do not stand in the way of the verdict "same"."""

Noise = Mapping[str, float]


class Judge:
    """Judges the calls of one rank, in execution order, over all its steps."""

    def __init__(self, preset: Optional[Preset] = None, noise: Optional[Noise] = None) -> None:
        self.preset = preset
        self.noise = noise
        self.level = 0.0
        self._at_start = 0.0
        self._forward_level = 0.0
        self._kinks = 0.0
        self._coarsest = 0.0
        self._recomputed = False
        self._expected: set[tuple[str, ...]] = set()
        self._noise_gradients: set[str] = set()
        self._exempt: set[distance.ValueKey] = set()
        self._weights: set[distance.ValueKey] = set()
        self._gradient_scale: dict[str, float] = {}

    def start_step(self, groups: Sequence[tuple[Match, list[Row]]]) -> None:
        """To be called with all of a step's measured rows, before any of them is judged."""
        self._at_start = self.level
        # A run that recomputes forwards may run them without gradients the first time.
        self._recomputed = any(match.how == "unmatched" and match.call.recompute for match, _ in groups)
        self._expected = _expected_dtypes(groups)
        self._exempt.clear()
        self._weights.clear()
        if self._at_start:
            self._look_at_weights(groups)

    def _look_at_weights(self, groups: Sequence[tuple[Match, list[Row]]]) -> None:
        """What an optimizer that normalises (Adam) makes of noise: a gradient element near zero has a sign of its own,
        so that its weight takes a whole step the other way. Exempt where the whole gradient was rounding, else allowed
        for in the few elements that can be so."""
        for match, rows in groups:
            if match.call.kind != "module" or match.call.direction != FORWARD:
                continue
            for row in rows:
                name = row.slot.partition("parameters.")[2]
                key = distance.value_key(row.golden) if name and row.distance else None
                if key is None or row.distance is None:
                    continue
                if f"{match.call.key}.{name}" in self._noise_gradients:
                    self._exempt.add(key)
                elif row.distance <= self._weight_tolerance:
                    self._weights.add(key)
                else:
                    continue
                self._kinks = max(self._kinks, min(row.distance, 1.0))
                self.level = max(self.level, min(row.distance, 1.0))

    @property
    def _weight_tolerance(self) -> float:
        """The share of gradient elements that noise can turn round is about the noise; its root is their norm."""
        return min(math.sqrt(self._at_start), MOST_OF_A_WEIGHT)

    def judge(self, match: Match, rows: Iterable[Row]) -> None:
        """Sets verdict, tolerance and reason of a call's rows, which are measured."""
        rows = list(rows)
        call = match.call
        if call.kind == "module" and call.direction == BACKWARD:
            self._remember_gradient(call.key, rows)
        skipped = _never_judged(match)
        context: Optional[Context] = None
        for row in rows:
            if row.distance is None or (skipped and _is_skipped(row, skipped)):
                _not_compared(row, skipped if skipped and _is_skipped(row, skipped) else "")
            elif row.distance and row.is_input and self._exempt and distance.value_key(row.golden) in self._exempt:
                _not_compared(row, "rounding: its gradient was nothing else, and the optimizer may have scaled it up")
            elif row.verdict != NOT_COMPARED:
                continue
            elif row.reason == OTHER_BYTES:
                row.verdict = PASS if self.level else WARNING
            elif row.distance == 0.0 or (self._expected and self._is_expected(row)):
                row.verdict = PASS
                self._requires_grad(row)
            elif self.preset is not None:
                row.verdict, row.reason = self.preset.judge(row)
            else:
                context = context or Context(match, rows, self._gradient_scale)
                self._judge_difference(row, context)
                self._requires_grad(row)

    def _judge_difference(self, row: Row, context: Context) -> None:
        away = context.relative_to_inputs(row, self._away(row, context))
        row.tolerance = self._tolerance(row, context)
        if away <= row.tolerance:
            row.verdict = PASS
            self._learn(row, away, context)
        elif away <= WARNING_BAND * row.tolerance:
            row.verdict = WARNING
        else:
            row.verdict = ERROR

    def _away(self, row: Row, context: Context) -> float:
        """Between runs that agree bit for bit the worst element counts; under noise its tail must not."""
        assert row.distance is not None
        quiet = not self.level and not context.has_algorithms
        if row.measured is None or quiet or row.measured.special:
            return row.distance
        return min(row.distance, TAIL * row.measured.relative_l2)

    def _learn(self, row: Row, away: float, context: Context) -> None:
        self.level = max(self.level, away)
        self._coarsest = max(self._coarsest, epsilon_of(row))
        if context.direction == FORWARD:
            self._forward_level = max(self._forward_level, away)
        elif context.has_kink:
            self._kinks = max(self._kinks, away)
        if context.direction == GRADS and (row.distance or 0.0) > NOTHING_BUT_ROUNDING:
            self._noise_gradients.add(f"{context.key}.{row.slot.partition('parameters_grad.')[2]}")

    def _tolerance(self, row: Row, context: Context) -> float:
        eps = epsilon_of(row)
        level = self._at_start if row.slot.startswith("parameters.") else self.level
        if eps == 0.0:
            is_float = row.golden is not None and isinstance(row.golden.get("value"), float)
            return min(AMPLIFICATION * level, COMPUTED_ARGUMENT) if is_float else 0.0
        own = context.rounding(row, eps)
        cap = max(4.0 * math.sqrt(max(eps, self._coarsest)), own, 4.0 * self._kinks)
        if self.noise is not None:
            return min(max(own, NOISE_MARGIN * self.noise.get(row.golden_name or "", 0.0)), max(cap, 1.0))
        usual = min(max(own, AMPLIFICATION * level), cap)
        if row.is_input and self._weights and distance.value_key(row.golden) in self._weights:
            return max(usual, self._weight_tolerance)
        if context.has_kink and context.direction == BACKWARD:
            return max(usual, TAIL * math.sqrt(self._forward_level))
        return usual

    def _is_expected(self, row: Row) -> bool:
        """A dtype as argument that differs as most tensors of the two runs do."""
        if row.target is None or row.golden is None or is_tensor(row.golden):
            return False
        pair = tuple(str(item.get("value")).rpartition(".")[2].lower() for item in (row.target, row.golden))
        return pair in self._expected

    def _requires_grad(self, row: Row) -> None:
        if row.verdict != PASS or row.target is None or row.golden is None or self._recomputed:
            return
        ours, theirs = row.target.get("requires_grad"), row.golden.get("requires_grad")
        if ours is not None and theirs is not None and ours != theirs:
            row.verdict = WARNING
            row.reason = f"requires_grad is {ours}, not {theirs}"

    def _remember_gradient(self, key: str, rows: list[Row]) -> None:
        scales = [distance.scale(r.golden) for r in rows if r.is_input and r.golden and is_tensor(r.golden)]
        self._gradient_scale[key] = max([self._gradient_scale.get(key, 0.0), *scales])


def _expected_dtypes(groups: Sequence[tuple[Match, list[Row]]]) -> set[tuple[str, ...]]:
    """The pairs of dtypes that a large part of the tensors differ by: one run is in another precision."""
    pairs: Counter[tuple[str, ...]] = Counter()
    total = 0
    for _, rows in groups:
        for row in rows:
            if row.target and row.golden and "dtype" in row.target and "dtype" in row.golden:
                total += 1
                if row.target["dtype"] != row.golden["dtype"]:
                    pairs[(distance.dtype_name(row.target), distance.dtype_name(row.golden))] += 1
    return {pair for pair, seen in pairs.items() if pair[0] != pair[1] and seen >= total / 5}


def _never_judged(match: Match) -> str:
    call = match.call
    if call.kind != "api" or call.direction != FORWARD:
        return ""
    word = call.key.rpartition(".")[2]
    if word in _UNINITIALISED:
        return "uninitialised memory"
    if call.key.startswith(("Distributed.", "MintDistributed.")) and word in _RECEIVING:
        return "receive buffer of a collective"
    return ""


def _is_skipped(row: Row, why: str) -> bool:
    if why.startswith("uninitialised"):
        return not row.is_input
    return row.slot == "input.0" or row.slot.startswith("input.0.")


def _not_compared(row: Row, why: str) -> None:
    row.verdict = NOT_COMPARED
    if why:
        row.reason = why
    elif row.match.call.recompute and row.absent:
        row.reason = "recomputed: the other run did not recompute this call"
