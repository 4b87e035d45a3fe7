"""How much rounding to expect from a call, by its dtype, its shapes and its operation."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msprobe.compare.align.translate import operation_of
from msprobe.compare.calls import FORWARD, GRADS, Match, module_class
from msprobe.compare.measure import distance
from msprobe.compare.rows import Row, is_tensor, slots

ALGORITHMS = 16.0
"""Convolutions have algorithms (direct, Winograd, FFT) whose rounding differs by this much."""

MOST_STRETCHED = 256.0
"""The widest limit of a quotient, however small the divisor is."""

MORE_THAN_ROUNDING = 64.0
"""How many times larger than the rounding of a sum, and than the result of the other run, a real result is."""
FEW = 4
"""Fewer elements than this may be zero by chance."""

_FLOAT32 = 2.0**-23
_KINKS = {
    "relu", "relu_", "relu6", "leaky_relu", "hardtanh", "hardswish", "hardsigmoid", "clamp", "clip", "threshold", "abs",
    "max", "min", "amax", "amin", "maximum", "minimum", "median", "topk", "sort", "max_pool1d", "max_pool2d",
    "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "maxpool", "maxpool2d", "sign", "where",
}  # fmt: skip
"""Operations whose gradient jumps: rounding before such an operation changes the gradient of the few elements near the
jump."""
_DIVISORS = {"div": ("input.1", "input.other"), "addcdiv": ("input.2", "input.tensor2")}
"""Quotients, and the slots of what they divide by."""
_ROOTS = {"sqrt", "sqrt_", "_foreach_sqrt"}
_RELATIVE = {
    "mul", "div", "square", "pow", "sqrt", "rsqrt", "reciprocal", "exp", "addcmul", "addcdiv", "neg", "clone",
}  # fmt: skip
"""Operations that do not cancel: a small result is as accurate as a large one."""


class GradientSize(NamedTuple):
    """The size of the largest gradient that the backward of a module received."""

    scale: float = 0.0
    elements: int = 0


class Context:
    """What a call's own tensors say about the rounding to expect from it."""

    def __init__(
        self, match: Match, rows: Sequence[Row], gradients: Mapping[str, GradientSize], has_calls: bool = False
    ) -> None:
        """`has_calls`: calls inside this one were recorded, and show how far they cancel."""
        call = match.call
        self.has_calls = has_calls
        floats = [r for r in rows if r.golden and is_tensor(r.golden) and distance.epsilon(r.golden)]
        inputs = [r.golden for r in floats if r.is_input and r.golden]
        self.module = call.kind == "module"
        self.sizes = [distance.count(item) for item in inputs]
        self.widest = max([item["shape"][-1] for item in inputs if item["shape"]], default=1)
        self._floats = floats
        self._call = call
        self._gradients = gradients
        self.accepted = 0.0
        """The largest difference of an input that passed. A result with no larger difference introduces none."""
        self.is_misled = False
        """Whether an input does not pass. The results may still pass, but then they do not excuse later differences."""
        if match.how == "fused":
            self._take_whole_calls(match)
        self.direction = call.direction
        self.key = call.key
        word = (module_class(call.key) if self.module else call.key.rpartition(".")[2]).lower()
        self.has_kink = word in _KINKS
        self.takes_root = word in _ROOTS
        self.has_algorithms = word.startswith("conv")

    def _take_whole_calls(self, match: Match) -> None:
        """Rows of a fused match are only outputs: the records have the shapes of the inputs."""
        for call in (match.target, match.golden, *match.before):
            for _, item in slots(call) if call is not None else ():
                if item is not None and is_tensor(item) and item["shape"]:
                    self.widest = max(self.widest, *item["shape"])
        self.module = True

    def given(self) -> tuple[float, float]:
        """How far the inputs are off: the largest difference of a norm or mean, and of any element."""
        off = [row.measurement for row in self._floats if row.is_input and row.distance]
        return max([one.average for one in off], default=0.0), max([one.distance or 0.0 for one in off], default=0.0)

    @functools.cached_property
    def is_relative(self) -> bool:
        call = self._call
        return call.direction == FORWARD and call.kind == "api" and operation_of(call.key) in _RELATIVE

    def stretch(self, row: Row) -> float:
        """How much larger the relative error of a quotient may be: numbers that are small relative to the others are
        less accurate, and become the largest in the quotient."""
        divisor = _DIVISORS.get(operation_of(self._call.key))
        if row.is_input or self._call.direction != FORWARD or divisor is None:
            return 1.0
        by = next((r.golden for r in self._floats if r.slot in divisor), None)
        if by is None:
            return 1.0
        ends = [distance.number(by.get(key)) or 0.0 for key in ("Max", "Min")]
        least = min(map(abs, ends)) if ends[0] * ends[1] > 0 else 0.0
        return min(max(distance.scale(by) / least, 1.0), MOST_STRETCHED) if least else MOST_STRETCHED

    @functools.cached_property
    def _output_floor(self) -> float:
        return min([s for s in (_scale(r) for r in self._floats if not r.is_input) if s > 0], default=0.0)

    @functools.cached_property
    def _input_floor(self) -> float:
        if self.is_relative or (self.has_calls and self.direction == FORWARD):
            return 0.0
        return min([s for s in (_scale(r) for r in self._floats if r.is_input) if s > 0], default=0.0)

    def share_of_inputs(self, row: Row) -> float:
        """A result that cancels to almost zero is rounding of the inputs: it is measured against them, not against
        itself."""
        if row.golden is None or not is_tensor(row.golden):
            return 1.0
        if row.target is not None and distance.is_masked(row.target) != distance.is_masked(row.golden):
            return 1.0  # the size of one side is not known
        floor = 0.01 * self._output_floor if row.is_input else self._floor(distance.count(row.golden))
        own = _scale(row) if floor else 0.0
        return own / floor if 0 < own < floor else 1.0

    def is_real_in_one_run(self, row: Row, noise: float) -> bool:
        """Whether the gradient of a parameter is far more than rounding in one run, and much smaller in the other."""
        if self.direction != GRADS or is_of_one_size(row):
            return False
        elements = distance.count(row.golden or {"shape": []})
        rounding = max(epsilon_of(row) * math.sqrt(self.summed(elements)), noise)
        return _scale(row) > MORE_THAN_ROUNDING * rounding * self._floor(elements)

    def _floor(self, elements: int) -> float:
        """The size of the inputs of a result with this many elements. A gradient of a parameter is a sum over the rows
        of the batch: their rounding grows with the root of their number."""
        if self._call.direction == FORWARD or not elements:
            return self._input_floor
        if self._call.direction == GRADS:
            came = self._gradients.get(self._call.key, GradientSize())
            return came.scale * math.sqrt(max(came.elements / elements, 1.0))
        most = max(self.sizes, default=0)
        return self._input_floor * math.sqrt(max(most / elements, 1.0))

    def rounding(self, row: Row, eps: float, quiet: bool) -> float:
        """`quiet`: the runs agree bit for bit so far."""
        if row.slot.startswith("parameters."):
            return 2.0 * min(eps, _FLOAT32) if quiet and eps == _dtype_epsilon(row) else 2.0 * eps
        if row.is_input:
            if quiet and eps > _FLOAT32:
                return 2.0 * eps
            return 8.0 * eps  # operations between two recorded calls (views, elementwise operations) may round
        assert row.golden is not None
        length = float(self.reduction(max(distance.count(row.golden), 1)))
        factor = 4.0 if self.module or self.direction != FORWARD else 2.0
        if self.has_algorithms:
            factor *= ALGORITHMS
        return factor * max(eps, math.sqrt(length) * min(eps, _FLOAT32))

    def summed(self, size: int) -> float:
        """How many input elements are added for one element of the result, if it is a sum over the rows of a batch."""
        most = max(self.sizes, default=0) or self._gradients.get(self._call.key, GradientSize()).elements
        return max(most / max(size, 1), 1.0)

    def reduction(self, size: int) -> float:
        """How many terms go into one output element, guessed from the numbers of elements."""
        length = float(self.widest)
        if self.sizes or self.direction == GRADS:
            length = max(length, self.summed(size))
        if len(self.sizes) > 1 and len(set(self.sizes)) > 1:
            first, second = sorted(self.sizes)[-2:]
            length = max(length, math.sqrt(first * second / size))
        return length


def is_of_one_size(row: Row) -> bool:
    """Whether what is left of a sum that cancels has about the same size in both runs; a few numbers may cancel
    completely."""
    sizes = [distance.scale(item) for item in (row.target, row.golden) if item is not None and is_tensor(item)]
    few = row.golden is None or distance.count(row.golden) < FEW
    return few or len(sizes) < 2 or max(sizes) <= MORE_THAN_ROUNDING * min(sizes)


def _scale(row: Row) -> float:
    """The larger root mean square of the two sides."""
    if row.distance == 0.0:
        return distance.scale(row.golden) if row.golden is not None else 0.0
    sides = [distance.scale(item) for item in (row.target, row.golden) if item is not None and is_tensor(item)]
    return max(sides, default=0.0)


def _dtype_epsilon(row: Row) -> float:
    """The spacing of the dtype that both sides have; 0 if the dtypes differ."""
    if row.target is None or row.golden is None:
        return 0.0
    ours, theirs = distance.epsilon(row.target), distance.epsilon(row.golden)
    return ours if ours == theirs else 0.0


def epsilon_of(row: Row) -> float:
    """The larger spacing of the two dtypes; 0 if the values must be equal."""
    if row.target is None or row.golden is None or not is_tensor(row.golden):
        return 0.0
    ours, theirs = distance.epsilon(row.target), distance.epsilon(row.golden)
    return max(ours, theirs) if ours and theirs else 0.0


def is_normalised_step(row: Row) -> bool:
    """Whether Adam updated the weight and the difference is at most a reversed step, as noise in a gradient near zero
    causes."""
    match = row.match
    if row.is_input or match.target is None or match.golden is None or row.golden is None or row.target is None:
        return False
    if match.call.key.rpartition(".")[2] not in ("addcdiv_", "_foreach_addcdiv_"):
        return False
    values = [
        abs(value)
        for call in (match.target, match.golden)
        for slot, item in slots(call)
        for value in [item.get("value") if item else None]
        if slot.startswith("input") and isinstance(value, (int, float)) and not isinstance(value, bool)
    ]
    if len(values) < 2:
        return False
    step = 2.0 * max(values)
    pairs = [(distance.number(row.target.get(key)), distance.number(row.golden.get(key))) for key in ("Max", "Min")]
    return all(t is not None and g is not None and abs(t - g) <= step for t, g in pairs)
