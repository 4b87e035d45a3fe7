"""The answer of `msprobe precision` on one screen, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Union

from msprobe.dump.plural import count
from msprobe.messages import beside
from msprobe.precision.estimate import Estimate, Row, Verdict, reason
from msprobe.precision.snippets import TARGETS, snippet
from msprobe.report.screen import NAME, TEXT, Column, Screen
from msprobe.rerun.emulate import EmulatedRun
from msprobe.stats.damage import Damage

_NAMED = 6
_COLUMNS = (
    Column("module", NAME), Column("role"), Column("SNR dB"), Column("bulk dB"), Column("worst block"),
    Column("zero", drop=4), Column("saturated", drop=3), Column("denormal", drop=2), Column("scales 2^", drop=1),
    Column("outlier", drop=5), Column("kurtosis", drop=1), Column("along", drop=2), Column("why", TEXT, 3),
)  # fmt: skip


def show_estimate(path: Path, found: Estimate, everything: bool) -> None:
    screen = Screen(everything)
    for place, verdict in enumerate(found.verdicts):
        screen.say([*([""] if place else []), *_headline(verdict)])
        below = verdict.below
        rows = verdict.rows if everything else (below or verdict.rows)
        screen.table(
            _COLUMNS,
            [_cells(row, verdict.usual) for row in rows],
            f"{verdict.form.name}, the most damaged first",
            len(verdict.rows),
        )
    if found.notes:
        screen.say(["", *(f"{note}." for note in found.notes)])
    if any(verdict.keep_modules for verdict in found.verdicts):
        form = next(verdict.form.name for verdict in found.verdicts if verdict.keep_modules)
        screen.say(
            ["", f"As configuration: msprobe precision {path} --format {form} --snippet torchao (or te)"], drop=1
        )
    screen.show()


def show_emulation(script: str, runs: Sequence[EmulatedRun], everything: bool) -> None:
    """The losses of a script as it is, and of its runs in emulated formats."""
    screen = Screen(everything)
    bare = runs[0]
    steps = count(len(bare.losses), "step")
    lines = []
    for run in runs[1:]:
        number = f"{len(run.emulated)} Linear module{'s' if len(run.emulated) > 1 else ''}"
        number += f" in {run.format}" + (", gradients rounded stochastically" if run.stochastic else "")
        if math.isnan(run.final):
            lines.append(f"{run.format}: the loss of {script} is not finite after {steps} with {number}")
        else:
            change = f"{abs(run.gap(bare)):.3g} {'higher' if run.gap(bare) > 0 else 'lower'}"
            lines.append(f"{run.format}: the loss of {script} is {change} after {steps} with {number}")
    screen.say(lines)
    screen.table(
        [Column("run"), Column("loss"), Column("gap"), Column("first step"), Column("modules"), Column("kept", drop=1)],
        [
            [run.format or "as it is", _loss(run.final), "" if run is bare else _loss(run.gap(bare)),
             _loss(run.losses[0]), len(run.emulated), len(run.kept)]
            for run in runs
        ],
        "Mean loss of the last tenth of the steps",
    )  # fmt: skip
    screen.show()


def _loss(value: float) -> str:
    return f"{value:.5g}"


def _headline(verdict: Verdict) -> list[str]:
    name, places, keep = verdict.form.name, verdict.places, verdict.keep
    budget = f"{verdict.budget:.1f} dB"
    usual = f"({name} gives {verdict.usual.level:.1f} dB for normally distributed numbers)"
    if not keep:
        meets = "the only product meets" if len(places) == 1 else f"all {len(places)} products meet"
        return [f"{name}: {meets} the budget of {budget} {usual}"]
    if len(keep) == len(places):
        every = "the only product" if len(keep) == 1 else f"all {len(keep)} products"
        lines = [f"{name}: keep {every} in bf16: none meets the budget of {budget} {usual}"]
    else:
        products = count(len(places), "product")
        lines = [f"{name}: keep {len(keep)} of {products} in bf16; the others meet {budget} {usual}"]
    first = {place: next(row for row in verdict.below if row.place == place) for place in keep[:_NAMED]}
    for place, row in first.items():
        why = reason(row.damage, verdict.usual)
        lines.append(f"  {place}: {row.role} {_decibel(row.damage.level)}" + (f": {why}" if why else ""))
    if len(keep) > _NAMED:
        lines.append(f"  and {len(keep) - _NAMED} more: --all, or --json")
    return lines


def _cells(row: Row, usual: Damage) -> list[object]:
    damage = row.damage
    return [
        row.place, row.role, _number(damage.snr), _number(damage.bulk), _number(damage.worst),
        _percent(damage.underflow), _percent(damage.saturated), _percent(damage.denormal), damage.scale_range,
        _times(damage.outlier), _times(damage.kurtosis), damage.orientation, reason(damage, usual),
    ]  # fmt: skip


def _number(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else "exact" if value > 0 else "-inf"


def _decibel(value: float) -> str:
    return f"{value:.1f} dB" if math.isfinite(value) else "exact" if value > 0 else "no signal left"


def _percent(share: float) -> str:
    return "0" if not share else "<0.01%" if share < 1e-4 else f"{100 * share:.3g}%"


def _times(value: float) -> str:
    return f"{value:.3g}"


def as_json(path: Path, found: Estimate) -> dict[str, Any]:
    return {
        "path": str(path),
        "formats": [_verdict_json(verdict) for verdict in found.verdicts],
        "notes": found.notes,
        **beside({"notes": found.notes}, "", "notes"),
    }


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    form = verdict.form
    block: list[Union[int, None]] = [size or None for size in form.block]
    return {
        "format": form.name,
        "element": form.element.name,
        "block": block,
        "budget_db": verdict.budget,
        "usual_db": verdict.usual.level,
        "noise": verdict.noise,
        "verdict": "below" if verdict.below else "meets",
        "keep": verdict.keep,
        "keep_modules": verdict.keep_modules,
        "snippets": {target: snippet(verdict, target) for target in TARGETS},
        "rows": [row.as_record() for row in verdict.rows],
    }
