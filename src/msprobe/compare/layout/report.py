"""The notes of a comparison of two layouts: which layout was found, and how the rows were compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msprobe.compare.layout.case import Case
from msprobe.compare.layout.dimensions import Grid, ranks_text
from msprobe.compare.layout.dispatch import tokens_note
from msprobe.compare.layout.unit import JoinedUnit, JoinTask
from msprobe.compare.reasons import SIDES
from msprobe.compare.sources import Source
from msprobe.messages import Message

Stacks = tuple[dict[str, list[str]], dict[str, list[str]]]


def joined_stacks(unit: JoinedUnit, task: JoinTask) -> Stacks:
    """The stacks of both sides by the names that the joined run has."""
    return _stacks(unit.names.target, task.target), _stacks(unit.names.golden, task.golden)


def _stacks(names: Mapping[str, tuple[int, str]], sources: Sequence[Source]) -> dict[str, list[str]]:
    known = {place if one.rank is None else one.rank: one.stacks for place, one in enumerate(sources)}
    found = {}
    for name, (rank, real) in names.items():
        frames = known[rank].get(real)
        if frames is not None:
            found[name] = frames
    return found


def joined_label(first: Source) -> str:
    """How a report names the ranks of one step: `step0`."""
    return first.label.rpartition("/")[0] or first.label


def joined_notes(unit: JoinedUnit) -> list[Message]:
    cases = [row.joined for _, rows in unit.groups for row in rows if row.joined is not None]
    notes = []
    for side, grid, stages in (
        ("target", unit.grids.target, unit.stages.target),
        ("golden", unit.grids.golden, unit.stages.golden),
    ):
        if len(grid.places) > 1 or unit.microbatches.target > 1:
            parts = _arrangement(grid, stages)
            if parts:
                notes.append(_layout_note(SIDES[side], parts, cases, grid))
    for side, number in (("target", unit.microbatches.target), ("golden", unit.microbatches.golden)):
        if number > 1:
            notes.append(Message("note.microbatches", side=SIDES[side], number=number))
    return [*tokens_note(unit.groups), *notes, *_by_statistics(cases)]


def _arrangement(grid: Grid, stages: Sequence[Sequence[int]]) -> list[Message]:
    said = []
    if len(stages) > 1:
        said.append(Message("note.pipeline", stages=[ranks_text(stage) for stage in stages]))
    part = grid.of_ranks(stages[0]) if stages else grid
    for axis, name in enumerate(part.names if part is not None else ()):
        groups = part.groups(axis)  # type: ignore[union-attr]
        first, more = ranks_text(groups[0]), len(groups) - 1
        said.append(
            Message("note.dimension_more", name=name, ranks=first, more=more)
            if more
            else Message("note.dimension", name=name, ranks=first)
        )
    return said


def _layout_note(side: Message, parts: Sequence[Message], cases: Sequence[Case], grid: Grid) -> Message:
    """Says what was found, and with which confidence."""
    recorded = sum(case.recorded for case in cases)
    explained = sum(case.explained for case in cases)
    how = Message("note.mesh_recorded" if grid.known else "note.from_values")
    if recorded:
        how = Message("note.as_recorded")
    return Message("note.layout", side=side, parts=parts, how=how, explained=explained, all=len(cases))


def _by_statistics(cases: Sequence[Case]) -> list[Message]:
    counted = Counter(
        case.saved for case in cases if any(size > 1 for size in (*case.target.sizes, *case.golden.sizes))
    )
    if not counted[False]:
        return []
    rows = counted[False]
    text = Message("note.merged", number=rows)
    if any(_is_sum(case) for case in cases):
        text = Message("also", parts=[text, Message("note.sums_unmerged")])
    return [text]


def _is_sum(case: Case) -> bool:
    layout = case.layout
    return layout is not None and any(
        one in ("P", "A") for one in (*layout.target.placements, *layout.golden.placements)
    )
