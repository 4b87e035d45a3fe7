"""The csv files of `TrainerMon`, with the names and columns of mindstudio-probe: scripts can read them unchanged."""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path
from typing import Any, Optional

from msprobe.watch.alarms.frame import Rows
from msprobe.watch.recording import INITIAL
from msprobe.watch.step_figures import StepFigures
from msprobe.watch.targets import (
    GRAD,
    GRAD_LOCAL,
    INPUT,
    INPUT_GRAD,
    MODULE_KINDS,
    OUTPUT,
    OUTPUT_GRAD,
    STATISTICS,
    WEIGHT,
    Figures,
    Target,
)
from msprobe.watch.trainer_config import OPS, TrainerSettings

FILES = {
    GRAD_LOCAL: "grad_unreduced",
    GRAD: "grad_reduced",
    "state.exp_avg": "exp_avg",
    "state.exp_avg_sq": "exp_avg_sq",
    WEIGHT: "param_updated",
    INPUT: "actv",
    OUTPUT: "actv",
    INPUT_GRAD: "actv_grad",
    OUTPUT_GRAD: "actv_grad",
}
BEFORE = "param_origin"
_SQUASHED = re.compile(r"^.*?\.((?:layers?|embeddings?|final|output|norm).*)$")


class CsvFiles:
    """Appends the rows of each step; a file has `step_count_per_record` steps."""

    def __init__(self, settings: TrainerSettings) -> None:
        self._settings = settings
        self._folder = settings.watch.dump_path
        self._weights: dict[str, list[Any]] = {}

    def write(self, step: int, rows: Rows, found: StepFigures) -> None:
        lines: dict[str, list[list[Any]]] = {}
        weights: dict[str, list[Any]] = {}
        for row, figures in found.items():
            target = rows.targets[row]
            name = FILES.get(target.kind)
            if name is None:
                continue
            micro = [0] if target.kind in MODULE_KINDS else []
            numbers = self._numbers(target, figures)
            lines.setdefault(name, []).append([0, self._name(target), step, *micro, *numbers])
            if target.kind == WEIGHT:
                weights[self._name(target)] = numbers
        if self._weights and step != INITIAL:
            lines[BEFORE] = [[0, name, step, *numbers] for name, numbers in self._weights.items()]
        self._weights = weights
        if step != INITIAL:
            for name, listed in lines.items():
                self._append(name, step, listed)

    def _numbers(self, target: Target, figures: Figures) -> list[Any]:
        numbers: list[Any] = []
        for op in self._settings.ops:
            if op == "shape":
                numbers.append(list(target.shape))
            elif op == "dtype":
                numbers.append(target.dtype)
            else:
                value = round(figures[STATISTICS.index(OPS[op])], self._settings.ndigits)
                numbers.append("nan" if value != value else value)
        return numbers

    def _name(self, target: Target) -> str:
        suffix = f".{target.kind}" if target.kind in MODULE_KINDS else ""
        name = target.name + suffix
        squashed: Optional[re.Match[str]] = _SQUASHED.match(name) if self._settings.squash_name else None
        return squashed[1] if squashed else name

    def _append(self, name: str, step: int, lines: list[list[Any]]) -> None:
        size = self._settings.steps_a_file
        first = step // size * size
        path: Path = self._folder / f"{name}_{first}-{first + size - 1}.csv"
        is_new = not path.exists()
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o640)
        with os.fdopen(descriptor, "w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            if is_new:
                micro = ["micro_step"] if name.startswith("actv") else []
                writer.writerow(["vpp_stage", "name", "step", *micro, *self._settings.ops])
            writer.writerows(lines)
