"""Verdicts: is a difference more than rounding?

Tolerances come from the dtype and the length of the reduction, and from the noise seen so far: where two runs agree
bit for bit, a call may differ by its own rounding only; where they already differ by rounding (other thread counts,
other kernels), later calls may amplify that, but not jump. The cap keeps slow growth from hiding a fault. A golden
run against itself (`--noise`) replaces guesses by measurement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Optional

from msprobe.compare import distance
from msprobe.compare.calls import BACKWARD, FORWARD, GRADS, Match, module_class
from msprobe.compare.presets import Preset
from msprobe.compare.rows import ERROR, NOT_COMPARED, PASS, WARNING, Row, is_tensor
from msprobe.compare.translate import operation_of

AMPLIFICATION = 16.0
"""How much larger than all noise before it a difference may be and still be called noise."""
WARNING_BAND = 4.0
"""Up to this many tolerances a difference is a warning, beyond an error."""
COMPUTED_ARGUMENT = 1e-3
"""How far a plain float argument may be off where the runs differ by rounding: it may have been computed from them."""
NOISE_MARGIN = 8.0
"""How many times the measured noise of a row (`--noise`) is still noise."""

ALGORITHMS = 16.0
"""Convolutions have algorithms (direct, Winograd, FFT) whose rounding differs by this much."""
TAIL = 8.0
"""The worst element of rounding noise is some times its root mean square."""

_FLOAT32 = 2.0**-23
_KINKS = {
    "relu", "relu_", "relu6", "leaky_relu", "hardtanh", "hardswish", "hardsigmoid", "clamp", "clip", "threshold", "abs",
    "max", "min", "amax", "amin", "maximum", "minimum", "median", "topk", "sort", "max_pool1d", "max_pool2d",
    "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "maxpool", "maxpool2d", "sign", "where",
}  # fmt: skip
"""Operations whose gradient jumps: rounding before one flips the gradient of the few elements beside the jump."""
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
BENIGN = ("uninitialised", "receive buffer", "recomputed", "covered")
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
        self._recomputed = False
        self._gradient_scale: dict[str, float] = {}

    def start_step(self, recomputed: bool = False) -> None:
        """`recomputed` where one run recomputes forwards: it may run them without gradients the first time."""
        self._at_start = self.level
        self._recomputed = recomputed

    def judge(self, match: Match, rows: Iterable[Row]) -> None:
        """Sets verdict, tolerance and reason of a call's rows, which are measured."""
        rows = list(rows)
        call = match.call
        if call.kind == "module" and call.direction == BACKWARD:
            self._remember_gradient(call.key, rows)
        skipped = _never_judged(match)
        context: Optional[_Context] = None
        for row in rows:
            if row.distance is None or (skipped and _is_skipped(row, skipped)):
                _not_compared(row, skipped if skipped and _is_skipped(row, skipped) else "")
            elif row.verdict != NOT_COMPARED:
                continue
            elif row.distance == 0.0:
                row.verdict = PASS
                self._requires_grad(row)
            elif self.preset is not None:
                row.verdict, row.reason = self.preset.judge(row)
            else:
                context = context or _Context(match, rows, self._gradient_scale)
                self._judge_difference(row, context)
                self._requires_grad(row)

    def _judge_difference(self, row: Row, context: _Context) -> None:
        away = context.relative_to_inputs(row, self._away(row, context))
        row.tolerance = self._tolerance(row, context)
        if away <= row.tolerance:
            row.verdict = PASS
            self._learn(row, away, context)
        elif away <= WARNING_BAND * row.tolerance:
            row.verdict = WARNING
        else:
            row.verdict = ERROR

    def _away(self, row: Row, context: _Context) -> float:
        """Between runs that agree bit for bit the worst element counts; under noise its tail must not."""
        assert row.distance is not None
        quiet = not self.level and not context.has_algorithms
        if row.measured is None or quiet or row.measured.special:
            return row.distance
        return min(row.distance, TAIL * row.measured.relative_l2)

    def _learn(self, row: Row, away: float, context: _Context) -> None:
        self.level = max(self.level, away)
        if context.direction == FORWARD:
            self._forward_level = max(self._forward_level, away)
        elif context.has_kink:
            self._kinks = max(self._kinks, away)

    def _tolerance(self, row: Row, context: _Context) -> float:
        eps = _epsilon(row)
        level = self._at_start if row.slot.startswith("parameters.") else self.level
        if eps == 0.0:
            is_float = row.golden is not None and isinstance(row.golden.get("value"), float)
            return min(AMPLIFICATION * level, COMPUTED_ARGUMENT) if is_float else 0.0
        own = context.rounding(row, eps)
        cap = max(4.0 * math.sqrt(eps), own, 4.0 * self._kinks)
        if self.noise is not None:
            return min(max(own, NOISE_MARGIN * self.noise.get(row.golden_name or "", 0.0)), max(cap, 1.0))
        usual = min(max(own, AMPLIFICATION * level), cap)
        if context.has_kink and context.direction == BACKWARD:
            return max(usual, TAIL * math.sqrt(self._forward_level))
        return usual

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


class _Context:
    """What a call's own tensors say about the rounding to expect from it."""

    def __init__(self, match: Match, rows: list[Row], gradient_scale: Mapping[str, float]) -> None:
        call = match.call
        floats = [r for r in rows if r.golden and is_tensor(r.golden) and distance.epsilon(r.golden)]
        inputs = [r.golden for r in floats if r.is_input and r.golden]
        outputs = [r.golden for r in floats if not r.is_input and r.golden]
        self.module = call.kind == "module"
        self.sizes = [distance.count(item) for item in inputs]
        self.widest = max([item["shape"][-1] for item in inputs if item["shape"]], default=1)
        self.output_floor = min([s for s in map(distance.scale, outputs) if s > 0], default=0.0)
        self.input_floor = min([s for s in map(distance.scale, inputs) if s > 0], default=0.0)
        if call.direction == GRADS:
            self.input_floor = gradient_scale.get(call.key, 0.0)
        self.direction = call.direction
        word = module_class(call.key) if self.module else call.key.rpartition(".")[2]
        self.has_kink = word.lower() in _KINKS
        self.has_algorithms = word.lower().startswith("conv")

    def relative_to_inputs(self, row: Row, away: float) -> float:
        """A result that cancels to nothing is rounding of what went in: measured against that, not against itself."""
        if row.golden is None or not is_tensor(row.golden) or not math.isfinite(away):
            return away
        floor = 0.01 * self.output_floor if row.is_input else self.input_floor
        own = distance.scale(row.golden)
        return away * own / floor if 0 < own < floor else away

    def rounding(self, row: Row, eps: float) -> float:
        if row.slot.startswith("parameters."):
            return 2.0 * eps
        if row.is_input:
            return 8.0 * eps  # what is not recorded between two calls (views, elementwise operations) may round
        assert row.golden is not None
        length = float(self.reduction(max(distance.count(row.golden), 1)))
        factor = 4.0 if self.module or self.direction != FORWARD else 2.0
        if self.has_algorithms:
            factor *= ALGORITHMS
        return factor * max(eps, math.sqrt(length) * min(eps, _FLOAT32))

    def reduction(self, size: int) -> float:
        """How many terms go into one output element, guessed from the numbers of elements."""
        length = float(self.widest)
        if self.sizes:
            length = max(length, max(self.sizes) / size)
        if len(self.sizes) > 1 and len(set(self.sizes)) > 1:
            first, second = sorted(self.sizes)[-2:]
            length = max(length, math.sqrt(first * second / size))
        return length


def _epsilon(row: Row) -> float:
    """The coarser of the two types' spacings; 0 where values must be equal."""
    if row.target is None or row.golden is None or not is_tensor(row.golden):
        return 0.0
    ours, theirs = distance.epsilon(row.target), distance.epsilon(row.golden)
    return max(ours, theirs) if ours and theirs else 0.0


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


def is_collective(match: Match) -> bool:
    key = match.call.key
    return key.startswith(("Distributed.", "MintDistributed.")) or operation_of(key) in (
        "all_reduce",
        "all_gather",
        "reduce_scatter",
    )


def summary_of(item: Optional[dict[str, Any]]) -> str:
    """One side of a row in a few words, for evidence."""
    if not item:
        return "nothing"
    if "value" in item:
        return str(item["value"])
    parts = [f"{key.lower()} {item[key]:.6g}" for key in ("Max", "Min", "Mean", "Norm") if _is_number(item.get(key))]
    return f"{distance.dtype_name(item)}{item.get('shape', '')} " + (", ".join(parts) or item.get("md5", ""))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))
