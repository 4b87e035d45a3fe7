"""The input of the rules: all figures of one watched step as arrays, one row per target."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import numpy as np

from msprobe.watch import targets as of
from msprobe.watch.step_figures import StepFigures
from msprobe.watch.targets import Target

Array = np.ndarray[Any, Any]


class Rows:
    """The targets seen so far, with the properties that the rules need: each is an array with one row per target."""

    def __init__(self) -> None:
        self.targets: list[Target] = []
        self._index: dict[tuple[str, str], int] = {}
        self._masks: dict[str, Array] = {}

    def __len__(self) -> int:
        return len(self.targets)

    def add(self, target: Target) -> None:
        self._index[target.kind, target.name] = len(self.targets)
        self.targets.append(target)
        self._masks.clear()

    def find(self, kind: str, name: str) -> Optional[int]:
        return self._index.get((kind, name))

    def mask(self, what: str) -> Array:
        """Which rows are gradients, weights, matrices, … The names are the keys of _MASKS."""
        mask = self._masks.get(what)
        if mask is None:
            test = _MASKS[what]
            mask = self._masks[what] = np.array([test(target) for target in self.targets], bool)
        return mask

    def partner(self, kind: str) -> Array:
        """For each row, the row with the same name and another kind, or -1."""
        key = f"partner {kind}"
        rows = self._masks.get(key)
        if rows is None:
            found = [self._index.get((kind, target.name), -1) for target in self.targets]
            rows = self._masks[key] = np.array(found, np.int64)
        return rows

    def parts(self) -> Array:
        """Which share of a target one part is: one expert of a stack of matrices; 1 for all others."""
        shares = self._masks.get("parts")
        if shares is None:
            found = [1 / t.shape[0] if len(t.shape) == 3 and min(t.shape[1:]) >= 32 else 1.0 for t in self.targets]
            shares = self._masks["parts"] = np.array(found, float)
        return shares

    def elements(self) -> Array:
        sizes = self._masks.get("elements")
        if sizes is None:
            sizes = self._masks["elements"] = np.array([math.prod(t.shape) for t in self.targets], float)
        return sizes

    def root_logs(self) -> Array:
        """log10 of the square root of the number of elements: a norm minus this is the size of an element."""
        logs = self._masks.get("root logs")
        if logs is None:
            logs = self._masks["root logs"] = 0.5 * np.log10(np.maximum(self.elements(), 1))
        return logs


def _is_health(target: Target) -> bool:
    """Whether its numbers are not those of a tensor."""
    return of.general(target.kind) in of.HEALTH_KINDS


_FIRST_MOMENTS = frozenset({"exp_avg", "momentum_buffer", "moment1", "moments1", "moments"})
_MASKS: dict[str, Callable[[Target], bool]] = {
    "gradient": lambda t: t.kind == of.GRAD,
    "any gradient": lambda t: t.kind in of.BACKWARD_KINDS,
    "scaled": lambda t: t.kind in of.BACKWARD_KINDS and t.kind != of.GRAD,
    "weight": lambda t: t.kind == of.WEIGHT,
    "update": lambda t: t.kind == of.UPDATE,
    "state": lambda t: of.is_state(t.kind),
    "second moment": lambda t: t.kind == "state.exp_avg_sq",
    "first moment": lambda t: of.is_state(t.kind) and t.kind.partition(".")[2] in _FIRST_MOMENTS,
    "module": lambda t: t.kind in of.MODULE_KINDS,
    "output": lambda t: t.kind == of.OUTPUT,
    "matrix": lambda t: len(t.shape) >= 2,
    "spiking": lambda t: t.kind not in (of.WEIGHT, of.UPDATE) and not _is_health(t),
    "health": _is_health,
    "logits": lambda t: t.kind == of.ATTENTION_LOGITS,
    "outliers": lambda t: t.kind == of.OUTLIERS,
    "quantised": lambda t: bool(of.format_of(t.kind)),
    "quantised gradient": lambda t: bool(of.format_of(t.kind)) and t.name.rpartition(".")[2] == of.GRADIENT_ROLE,
    "cast": lambda t: of.format_of(t.kind) in ("", "fp16", "bf16"),
}


@dataclass
class Frame:
    """One watched step. `figures` has one row per target and one column per statistic; a row without numbers is NaN
    and False in `present`.

    `skipped`: a gradient scaler skipped this optimizer step. `idle`: parameters with learning rate 0. `stale`: a
    parameter whose gradient still had the values of an earlier step when the backward pass came to it.
    """

    step: int
    rows: Rows
    figures: Array
    present: Array
    scalars: Mapping[str, float] = field(default_factory=dict)
    skipped: bool = False
    idle: frozenset[str] = frozenset()
    trainable: frozenset[str] = frozenset()
    stale: str = ""
    every: int = 1
    _logs: Optional[Array] = None

    def column(self, statistic: int) -> Array:
        column: Array = self.figures[:, statistic]
        return column

    def logs(self) -> Array:
        """log10 of the norms; NaN for zero, for infinity and for missing norms."""
        if self._logs is None:
            with np.errstate(all="ignore"):
                self._logs = np.log10(self.column(of.NORM))
            self._logs[~np.isfinite(self._logs)] = np.nan
        return self._logs

    def steps_needed(self, steps: int) -> int:
        """How many watched steps correspond to this many steps; at least 5."""
        return max(5, -(-steps // self.every))


def frame_of(step: int, rows: Rows, found: StepFigures, **facts: Any) -> Frame:
    """A frame from the figures of some rows."""
    figures, present = found.arrays(len(rows))
    return Frame(step, rows, figures, present, **facts)
