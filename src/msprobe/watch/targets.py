"""What is watched: a target is one thing that has statistics at each step, such as the gradient of one parameter.

A target is written `kind/name` everywhere: in alarms, exports and tags (`grad/blocks.0.attn.qkv.weight`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

# Kinds of tensors that a configuration can ask for, in the order in which a step produces them.
INPUT = "input"
OUTPUT = "output"
ATTENTION_LOGITS = "attention_logits"
OUTLIERS = "outliers"
QUANTISATION = "quantisation"
OUTPUT_GRAD = "output_grad"
INPUT_GRAD = "input_grad"
GRAD_LOCAL = "grad_local"
GRAD_BEFORE_CLIP = "grad_before_clip"
GRAD = "grad"
STATE = "state"
UPDATE = "update"
WEIGHT = "weight"
KINDS = (
    INPUT,
    OUTPUT,
    ATTENTION_LOGITS,
    OUTLIERS,
    QUANTISATION,
    OUTPUT_GRAD,
    INPUT_GRAD,
    GRAD_LOCAL,
    GRAD_BEFORE_CLIP,
    GRAD,
    STATE,
    UPDATE,
    WEIGHT,
)
HEALTH_KINDS = frozenset({ATTENTION_LOGITS, OUTLIERS, QUANTISATION})
"""Low-precision health. Each has numbers of its own and costs more than the others: "all" does not contain them."""
MODULE_KINDS = frozenset({INPUT, OUTPUT, OUTPUT_GRAD, INPUT_GRAD})
GRADIENT_KINDS = frozenset({GRAD_LOCAL, GRAD_BEFORE_CLIP, GRAD})
BACKWARD_KINDS = frozenset({OUTPUT_GRAD, INPUT_GRAD, *GRADIENT_KINDS})
SCALAR = "scalar"
"""Loss, learning rate, gradient scale and other numbers given to `step()`: written without a kind."""
LOSS, LEARNING_RATE, SCALE = "loss", "lr", "scale"

# Statistics of a tensor. Counts are numbers of elements, shares lie between 0 and 1.
NORM, MAX, MIN, MEAN, NAN, INF, ZERO, UNDERFLOW, SATURATION = range(9)
STATISTICS = ("norm", "max", "min", "mean", "nan", "inf", "zero", "underflow", "saturation")
VALUE = "value"
"""The only statistic of a scalar."""
RATIO = "ratio"
BOUND, MEDIAN, SNR, SCALE_RANGE = "bound", "median", "snr", "scale_range"
RATIO_COLUMN = MEAN
"""The column of an update's ratio: an update has no mean, so the ratio is stored there."""
BOUND_COLUMN = MEDIAN_COLUMN = MIN
SNR_COLUMN, SCALE_RANGE_COLUMN, ROWS_COLUMN = MIN, MEAN, ZERO
"""The rows of a matrix that is quantised are not stored: the rule about noise needs their number."""
ENCODED = {
    UPDATE: ((NORM, "norm"), (RATIO_COLUMN, RATIO)),
    ATTENTION_LOGITS: ((MAX, "max"), (BOUND_COLUMN, BOUND)),
    OUTLIERS: ((NORM, RATIO), (MAX, "max"), (MEDIAN_COLUMN, MEDIAN)),
    QUANTISATION: (
        (NORM, "norm"),
        (MAX, "max"),
        (SNR_COLUMN, SNR),
        (SCALE_RANGE_COLUMN, SCALE_RANGE),
        (UNDERFLOW, "underflow"),
        (SATURATION, "saturation"),
    ),
}
"""Kinds with numbers of their own: the column in which each is kept during a step, and its name.

An update: the norm of the change, and its ratio to the weight's norm. Attention logits: the largest logit of a head
(exact; absent in other steps), and a bound for it. Outliers: the largest magnitude over the median. Quantisation: of
one format, see msprobe.stats.damage; underflow and saturation are shares of the nonzero elements."""
ALL_STATISTICS = (*STATISTICS, RATIO, VALUE, BOUND, MEDIAN, SNR, SCALE_RANGE)
WEIGHT_ROLE, INPUT_ROLE, GRADIENT_ROLE = "weight", "input", "output_grad"
"""The last word of the name of a quantised tensor; before it is the module."""


class Figures(NamedTuple):
    """All statistics of one tensor, in the order of STATISTICS. The last two are NaN without `low_precision`."""

    norm: float
    max: float
    min: float
    mean: float
    nan: float
    inf: float
    zero: float
    underflow: float
    saturation: float


@dataclass(frozen=True)
class Target:
    """One row of the table of targets. `position` sorts targets of a kind in the order of the model.

    `shard` is empty if this rank has the complete tensor. Otherwise it says which part the rank has: ranks with the
    same text have the same part.
    """

    kind: str
    name: str
    position: int = 0
    shape: tuple[int, ...] = ()
    dtype: str = ""
    shard: str = ""

    @property
    def label(self) -> str:
        return label_of(self.kind, self.name)


def label_of(kind: str, name: str) -> str:
    return name if kind == SCALAR else f"{kind}/{name}"


def is_state(kind: str) -> bool:
    """Optimizer state has the kind `state.exp_avg` and the like."""
    return kind.startswith("state.")


def quantised_kind(form: str) -> str:
    """A tensor in a low-precision format has the kind `quantisation.mxfp8` and the like."""
    return f"{QUANTISATION}.{form}"


def format_of(kind: str) -> str:
    """The format of a quantised tensor; empty for other kinds."""
    head, _, form = kind.partition(".")
    return form if head == QUANTISATION else ""


def general(kind: str) -> str:
    """The kind as a configuration names it."""
    return STATE if is_state(kind) else QUANTISATION if format_of(kind) else kind


def is_kind(kind: str) -> bool:
    """Whether a target can have this kind: those of a configuration, the state of an optimizer, a scalar."""
    return general(kind) in KINDS or kind == SCALAR


def phase(kind: str, name: str = "") -> int:
    """The position of a kind in a step: it orders the alarms of one step."""
    if kind == SCALAR:
        return KINDS.index(OUTPUT_GRAD) * 2 - 1 if name == LOSS else len(KINDS) * 2
    return KINDS.index(general(kind)) * 2


def order_of(kind: str, name: str, position: int) -> tuple[int, int]:
    """Sorts targets by their place in a step: forward by depth, then the loss, then backward from the end."""
    return phase(kind, name), -position if kind in BACKWARD_KINDS else position
