"""What is watched: a target is one thing that has statistics at each step, such as the gradient of one parameter.

A target is written `kind/name` everywhere: in alarms, exports and tags (`grad/blocks.0.attn.qkv.weight`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

# Kinds of tensors that a configuration can ask for, in the order in which a step produces them.
INPUT = "input"
OUTPUT = "output"
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
    OUTPUT_GRAD,
    INPUT_GRAD,
    GRAD_LOCAL,
    GRAD_BEFORE_CLIP,
    GRAD,
    STATE,
    UPDATE,
    WEIGHT,
)
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
"""The only statistic of a scalar. An update has `ratio` instead: norm of the change / norm of the weight."""
RATIO = "ratio"


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


def is_kind(kind: str) -> bool:
    """Whether a target can have this kind: those of a configuration, the state of an optimizer, a scalar."""
    return kind in KINDS or is_state(kind) or kind == SCALAR


def phase(kind: str, name: str = "") -> int:
    """The position of a kind in a step: it orders the alarms of one step."""
    if kind == SCALAR:
        return KINDS.index(OUTPUT_GRAD) * 2 - 1 if name == LOSS else len(KINDS) * 2
    return KINDS.index(STATE if is_state(kind) else kind) * 2


def order_of(kind: str, name: str, position: int) -> tuple[int, int]:
    """Sorts targets by their place in a step: forward by depth, then the loss, then backward from the end."""
    return phase(kind, name), -position if kind in BACKWARD_KINDS else position
