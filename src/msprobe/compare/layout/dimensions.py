"""How the ranks of a run are arranged: the dimensions of its mesh, as recorded, from its groups, or guessed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from msprobe.compare.sources import Source
from msprobe.dump.parallel import Parallel
from msprobe.dump.reader import RankDump
from msprobe.messages import Message

MICROBATCH = "microbatch"
ALL_RANKS = "ranks"
"""The name of the dimension if no mesh is known."""


@dataclass(frozen=True)
class Grid:
    """Each rank's place along every dimension; the last dimension varies fastest."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    places: Mapping[int, tuple[int, ...]]
    known: bool = False
    """Recorded in the dump or given by the user, not guessed."""

    def of_ranks(self, ranks: Sequence[int]) -> Optional[Grid]:
        """The part of the grid that consists of these ranks; None if they are not a part of it."""
        kept = [axis for axis in range(len(self.names)) if len({self.places[rank][axis] for rank in ranks}) > 1]
        used = [sorted({self.places[rank][axis] for rank in ranks}) for axis in kept]
        places = {
            rank: tuple(values.index(self.places[rank][axis]) for axis, values in zip(kept, used)) for rank in ranks
        }
        sizes = tuple(len(values) for values in used)
        if len(set(places.values())) != len(ranks) or math.prod(sizes) != len(ranks):
            return None
        return Grid(tuple(self.names[axis] for axis in kept), sizes, places, self.known)

    def groups(self, axis: int) -> list[list[int]]:
        """The groups of ranks that differ along one dimension only."""
        found: dict[tuple[int, ...], list[int]] = {}
        for rank, place in sorted(self.places.items()):
            found.setdefault((*place[:axis], *place[axis + 1 :]), []).append(rank)
        return list(found.values())


def arrangements(sources: Sequence[Source]) -> list[Grid]:
    """The possible arrangements of the ranks, the surest first."""
    ranks = [rank_of(place, source) for place, source in enumerate(sources)]
    found = [*_from_meshes(sources, ranks), *_from_groups(sources, ranks), *_guesses(ranks)]
    kept: dict[tuple[tuple[int, ...], ...], Grid] = {}
    for grid in found:
        kept.setdefault(tuple(grid.places[rank] for rank in ranks), grid)
    return list(kept.values())


def _from_meshes(sources: Sequence[Source], ranks: Sequence[int]) -> Iterable[Grid]:
    meshes = {mesh: None for source in sources for mesh in parallel_of(source).meshes}
    for mesh in sorted(meshes, key=lambda one: (-len(one.ranks), -len(one.shape))):
        places = {rank: place for rank in ranks if (place := mesh.coordinate_of(rank)) is not None}
        if len(places) == len(ranks):
            names = mesh.names or tuple(f"dimension {axis}" for axis in range(len(mesh.shape)))
            yield Grid(names, mesh.shape, places, known=True)


def rank_of(place: int, source: Source) -> int:
    return place if source.rank is None else source.rank


def parallel_of(source: Source) -> Parallel:
    """What a rank recorded about the layout; empty for dumps of graphs."""
    return source.parallel if isinstance(source, RankDump) else Parallel()


def _from_groups(sources: Sequence[Source], ranks: Sequence[int]) -> Iterable[Grid]:
    """Groups that divide the ranks into parts of one size are a dimension; what they leave is another."""
    groups: set[tuple[int, ...]] = set()
    for source in sources:
        listed = source.run.get("groups")
        for group in listed if isinstance(listed, list) else []:
            if isinstance(group, list) and 1 < len(group) < len(ranks):
                groups.add(tuple(sorted(group)))
    divisions: list[list[tuple[int, ...]]] = []
    for size in sorted({len(group) for group in groups}):
        waiting = sorted(group for group in groups if len(group) == size)
        while waiting:
            division: list[tuple[int, ...]] = []
            for group in list(waiting):
                if not any(set(group) & set(other) for other in division):
                    division.append(group)
                    waiting.remove(group)
            if sorted(rank for group in division for rank in group) == sorted(ranks):
                divisions.append(division)
    names = _group_names(sources)
    for count in (3, 2, 1):
        for chosen in itertools.combinations(divisions, count):
            grid = _grid_of(chosen, ranks, names)
            if grid is not None:
                yield grid


def _grid_of(
    divisions: Sequence[Sequence[tuple[int, ...]]], ranks: Sequence[int], names: Mapping[tuple[int, ...], str]
) -> Optional[Grid]:
    """One dimension for each division: the place of a rank along it is its place in its group."""
    inside = [{rank: group.index(rank) for group in division for rank in group} for division in divisions]
    places = {rank: tuple(one[rank] for one in inside) for rank in ranks}
    if len(divisions) == 1:  # what is left is the other dimension
        groups = {rank: number for number, group in enumerate(sorted(divisions[0])) for rank in group}
        places = {rank: (groups[rank], *places[rank]) for rank in ranks}
    sizes = tuple(len({place[axis] for place in places.values()}) for axis in range(len(next(iter(places.values())))))
    if len(set(places.values())) != len(ranks) or math.prod(sizes) != len(ranks):
        return None
    said = [next((names[group] for group in division if group in names), "") for division in divisions]
    return Grid(_distinct(["", *said] if len(said) < len(sizes) else said, sizes), sizes, places)


def _distinct(names: Sequence[str], sizes: Sequence[int]) -> tuple[str, ...]:
    """A name for each dimension; those without one are called by their size."""
    made: list[str] = []
    for name, size in zip(names, sizes):
        plain = name or f"group of {size}"
        made.append(plain if plain not in made else f"{plain} ({len(made) + 1})")
    return tuple(made)


def _group_names(sources: Sequence[Source]) -> dict[tuple[int, ...], str]:
    """The names of groups of ranks; torch calls those of a mesh `mesh_tp`."""
    found: dict[tuple[int, ...], str] = {}
    for source in sources:
        for name, ranks in parallel_of(source).groups.items():
            if not name.isdigit() and name != "default_pg":
                found.setdefault(tuple(sorted(ranks)), name.removeprefix("mesh_"))
    return found


def _guesses(ranks: Sequence[int]) -> Iterable[Grid]:
    """All ranks as one group, then consecutive groups of each size that divides their number."""
    count = len(ranks)
    yield Grid((ALL_RANKS,), (count,), {rank: (place,) for place, rank in enumerate(ranks)})
    for size in range(2, count // 2 + 1):
        if count % size == 0:
            places = {rank: divmod(place, size) for place, rank in enumerate(ranks)}
            sizes = (count // size, size)
            yield Grid(_distinct(["", ""], sizes), sizes, places)
    if count >= 8 and count % 4 == 0:
        three = {rank: (place // 4, place // 2 % 2, place % 2) for place, rank in enumerate(ranks)}
        yield Grid(_distinct(["", "", ""], (count // 4, 2, 2)), (count // 4, 2, 2), three)


def ranks_text(ranks: Iterable[int]) -> Message:
    """`ranks 0-3, 6`."""
    listed = sorted(ranks)
    runs: list[list[int]] = []
    for rank in listed:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    text = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
    return Message("ranks", number=len(listed), listed=text)
