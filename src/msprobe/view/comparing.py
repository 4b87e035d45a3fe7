"""Compares two dumps for the page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Optional

from msprobe.compare import Comparison, Origin, compare
from msprobe.compare.align.mapping import map_names
from msprobe.compare.calls import Match, forward_name
from msprobe.compare.inputs import open_inputs
from msprobe.compare.layout.dimensions import ranks_text
from msprobe.compare.layout.report import joined_label
from msprobe.compare.origin.source import frame_of, made_frames, model_frames
from msprobe.compare.result import UnitResult
from msprobe.compare.rows import ERROR, WARNING, Row
from msprobe.compare.sources import Pair
from msprobe.dump.errors import DumpError
from msprobe.messages import Message
from msprobe.view.material import Answer, Material, Progress, Sides


def load_comparison(
    target: Path, golden: Path, mapping: Mapping[str, str], progress: Optional[Progress] = None
) -> Material:
    translation = map_names(mapping) if mapping else None
    show = progress or (lambda things, total, text: things)
    material = of_comparison(compare(target, golden, mapping=translation, progress=show))
    inputs = open_inputs(target, golden)
    pairs = [*inputs.pairs, *(Pair(ranks.target[0], ranks.golden[0]) for ranks in inputs.joins)]
    labels = [pair.target.label if inputs.pairs else joined_label(pair.target) for pair in pairs]
    sides: dict[str, Sides] = {label: (pair.target, pair.golden) for label, pair in zip(labels, pairs)}
    gone = [unit.label for unit in material.units if unit.label not in sides]
    if gone:
        raise DumpError(f"{gone[0]} was deleted or moved while msprobe compared it: open the dumps again.")
    material.sides = [sides[unit.label] for unit in material.units]
    material.living = any(pair.target.unfinished or pair.golden.unfinished for pair in pairs)
    return material


def of_comparison(comparison: Comparison) -> Material:
    summary = comparison.summary()
    answer = Answer(comparison.verdict, notes=list(comparison.notes))
    origin = comparison.origin
    if origin is not None:
        answer.sentence = origin.sentence
        answer.facts = _facts(origin)
        answer.ranks = list(origin.ranks)
        found = _locate(comparison.units, origin)
        if found is not None:
            answer.unit, match, answer.row = found
            unit = comparison.units[answer.unit]
            answer.about_row = bool(origin.slot) or origin.kind != "training"
            loop = origin.kind == "training" and (origin.source or origin.golden_source)
            lines = [frame_of(line) if line else [] for line in (origin.source, origin.golden_source)]
            answer.stacks = (lines[0], lines[1]) if loop else stacks_of(unit, match)
            if origin.module and (origin.made or origin.golden_made):
                answer.made = made_frames(unit.made, origin.module)
            if origin.module and (origin.model or origin.golden_model):
                answer.model = model_frames(unit.made, origin.module)
    counts = {key: summary[key] for key in ("rows", "pass", "warning", "error", "not_compared")}
    counts["not_compared_reasons"] = summary["not_compared_reasons"]
    return Material("comparison", comparison.target, comparison.golden, answer, comparison.units, summary=counts)


_DIRECTIONS = {
    "forward": Message("phase.forward"),
    "backward": Message("phase.backward"),
    "after the backward": Message("phase.after"),
}
_SHOWN = ("evidence.target", "evidence.golden")
"""Evidence that the page shows as a table."""


def _facts(origin: Origin) -> list[tuple[str, str]]:
    where = [] if origin.step is None else [Message("place.step", step=origin.step)]
    ranks = origin.ranks or (() if origin.rank is None else (origin.rank,))
    where += [ranks_text(ranks)] if ranks else []
    about_loop = origin.kind == "training"  # such a finding has no call of its own, only one that shows it
    facts = [
        ("seen_in" if about_loop else "call", origin.name if origin.slot or not about_loop else ""),
        ("module", origin.module or ""),
        ("collective", origin.collective),
        ("where", Message("place", parts=[*where, _DIRECTIONS[origin.direction]])),
        ("source", origin.source or origin.golden_source or ""),
        ("inside", origin.library or origin.golden_library or ""),
        ("made", origin.made or origin.golden_made or ""),
        ("model_made", origin.model or origin.golden_model or ""),
        *(("evidence", one) for one in origin.evidence if one.id not in _SHOWN and not _is_said(origin, one)),
        ("then", Message("spread", number=origin.spread["calls"]) if origin.spread.get("calls") else ""),
        ("next", origin.next or ""),
        *(("called", line) for line in origin.callers or origin.golden_callers),
        *(("called_golden", line) for line in origin.golden_callers if origin.is_called_differently),
    ]
    return [(key, text) for key, text in facts if text]


def _is_said(origin: Origin, evidence: Message) -> bool:
    """Whether the sentence says it: `eps is 0.001, not 1e-05`."""
    return origin.kind == "argument" and evidence.id == "named"


def _locate(units: list[UnitResult], origin: Origin) -> Optional[tuple[int, Match, Optional[Row]]]:
    """The unit, the call and the row that the origin names; of the training loop, the first row that differs if no
    call of it does."""
    for number, unit in enumerate(units):
        if unit.step != origin.step or (unit.rank != origin.rank and not unit.ranks):
            continue
        if origin.kind == "training" and not origin.slot:
            shown = ((match, row) for match, rows in unit.groups for row in rows if row.verdict in (WARNING, ERROR))
            match, row = next(shown, (None, None))
            return None if match is None else (number, match, row)
        for match, rows in unit.groups:
            weight = "parameters." in origin.slot and any(row.name == origin.name for row in rows)
            if match.call.name == origin.name or weight:
                named = [row for row in rows if row.slot == origin.slot or row.name == origin.name]
                found = named or rows
                return number, match, found[0] if found else None
    return None


def stacks_of(unit: UnitResult, match: Match) -> tuple[list[str], list[str]]:
    """The frames of a call in the target and in the golden run; empty where a run does not make it."""
    target, golden = (
        [] if call is None else known.get(call.name) or known.get(forward_name(call)) or []
        for call, known in zip((match.target, match.golden), unit.stacks)
    )
    return target, golden
