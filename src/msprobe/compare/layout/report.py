"""The notes of a comparison of two layouts: which layout was found, and how the rows were compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msprobe.compare.layout.case import Case
from msprobe.compare.layout.dimensions import Grid, ranks_text
from msprobe.compare.layout.dispatch import tokens_note
from msprobe.compare.layout.unit import JoinedUnit, JoinTask
from msprobe.compare.sources import Source
from msprobe.dump.plural import count, were

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


def joined_notes(unit: JoinedUnit) -> list[str]:
    cases = [row.joined for _, rows in unit.groups for row in rows if row.joined is not None]
    notes = []
    for side, grid, stages in (
        ("target", unit.grids.target, unit.stages.target),
        ("golden run", unit.grids.golden, unit.stages.golden),
    ):
        if len(grid.places) > 1 or unit.microbatches.target > 1:
            text = _arrangement(grid, stages)
            if text:
                notes.append(f"layout of the {side}: {text}{_confidence(cases, grid)}")
    for side, parts in (("target", unit.microbatches.target), ("golden run", unit.microbatches.golden)):
        if parts > 1:
            notes.append(f"the {side} takes the batch in {parts} microbatches")
    return [*tokens_note(unit.groups), *notes, *_by_statistics(cases)]


def _arrangement(grid: Grid, stages: Sequence[Sequence[int]]) -> str:
    said = []
    if len(stages) > 1:
        said.append("pipeline of " + ", ".join(ranks_text(stage) for stage in stages))
    part = grid.of_ranks(stages[0]) if stages else grid
    for axis, name in enumerate(part.names if part is not None else ()):
        groups = part.groups(axis)  # type: ignore[union-attr]
        more = f" and {len(groups) - 1} more" if len(groups) > 1 else ""
        said.append(f"{name} = {ranks_text(groups[0])}{more}")
    return "; ".join(said)


def _confidence(cases: Sequence[Case], grid: Grid) -> str:
    recorded = sum(case.recorded for case in cases)
    explained = sum(case.explained for case in cases)
    how = (
        "as recorded"
        if recorded
        else "the mesh as recorded or given, the rest from the values"
        if grid.known
        else "found from the values"
    )
    return f"; {how}; {explained} of {len(cases)} rows agree"


def _by_statistics(cases: Sequence[Case]) -> list[str]:
    counted = Counter(
        case.saved for case in cases if any(size > 1 for size in (*case.target.sizes, *case.golden.sizes))
    )
    if not counted[False]:
        return []
    rows = counted[False]
    text = f"{count(rows, 'row')} {were(rows)} compared by statistics that were merged from the ranks"
    return [f"{text}; sums over ranks cannot be merged this way" if any(_is_sum(case) for case in cases) else text]


def _is_sum(case: Case) -> bool:
    layout = case.layout
    return layout is not None and any(
        one in ("P", "A") for one in (*layout.target.placements, *layout.golden.placements)
    )
