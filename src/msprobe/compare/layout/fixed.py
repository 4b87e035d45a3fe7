"""Placements that are already known: those that the dump recorded, and those of the user's layout file."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

from msprobe.compare.align.mapping import read_document
from msprobe.compare.layout.dimensions import Grid, parallel_of, rank_of
from msprobe.compare.layout.shards import Shards
from msprobe.compare.layout.ways import A, N, P, R, X
from msprobe.compare.sources import Source
from msprobe.dump.errors import DumpError
from msprobe.dump.parallel import Mesh, Placement

Placements = Mapping[str, str]
"""By the name of the dimension of the mesh."""
_REDUCTIONS = {"sum": P, "avg": A, "max": X, "norm2": N, "norm2.0": N}
_WRITTEN = re.compile(r"S\(\d{1,3}\)|R|P|A")


class LayoutFile(NamedTuple):
    """`target` and `golden` are the sizes of dimensions by name, the last varies fastest; `rows` are placements by
    patterns of rows' names."""

    path: Path
    target: Mapping[str, int]
    golden: Mapping[str, int]
    rows: Mapping[str, Placements]


def read_layout(path: Path) -> LayoutFile:
    """`{target: {dp: 2, tp: 2}, golden: {}, rows: {"*.qkv.*.parameters.weight": {tp: "S(0)"}}}`, each part optional."""
    content = read_document(path)
    if not isinstance(content, dict) or not set(content) <= {"target", "golden", "rows"}:
        raise DumpError(f"{path} must be a mapping with the keys target, golden and rows, each of them optional.")
    rows = content.get("rows") or {}
    if not isinstance(rows, dict):
        raise DumpError(f'{path}: "rows" must map patterns of names to placements, like {{tp: "S(0)"}}.')
    return LayoutFile(
        path,
        _sizes(content.get("target"), "target", path),
        _sizes(content.get("golden"), "golden", path),
        {str(pattern): _placements(value, str(pattern), path) for pattern, value in rows.items()},
    )


def _sizes(value: Any, side: str, path: Path) -> dict[str, int]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(type(size) is int and size > 0 for size in value.values()):
        raise DumpError(f"{path}: {side!r} must map the names of dimensions to their sizes, like {{dp: 2, tp: 4}}.")
    return {str(name): size for name, size in value.items()}


def _placements(value: Any, pattern: str, path: Path) -> dict[str, str]:
    if not isinstance(value, dict):
        raise DumpError(f'{path}: {pattern!r} must map dimensions to placements, like {{tp: "S(0)"}}.')
    for placement in value.values():
        if not isinstance(placement, str) or _WRITTEN.fullmatch(placement) is None:
            raise DumpError(
                f"{path}: the placement {placement!r} of {pattern!r} is not one of: R, S(0), S(1), …, P, A."
            )
    return {str(name): placement for name, placement in value.items()}


def grid_of_file(sizes: Mapping[str, int], ranks: Sequence[int], path: Path) -> Optional[Grid]:
    """None if the file says nothing about this side. Raises DumpError if it does not fit the dump."""
    if not sizes:
        return None
    if math.prod(sizes.values()) != len(ranks):
        listed = " x ".join(f"{name} {size}" for name, size in sizes.items())
        raise DumpError(f"{path}: {listed} makes {math.prod(sizes.values())} ranks; the dump has {len(ranks)}.")
    places = {}
    for index, rank in enumerate(sorted(ranks)):
        place = []
        for size in reversed(list(sizes.values())):
            index, at = divmod(index, size)
            place.append(at)
        places[rank] = tuple(reversed(place))
    return Grid(tuple(sizes), tuple(sizes.values()), places, known=True)


def fixed_placements(shards: Shards, name: str, grid: Grid, file: Optional[LayoutFile]) -> dict[str, str]:
    """The known placements of a row. Raises DumpError if ranks contradict each other."""
    pieces = shards.pieces
    if pieces is not None:
        return dict(zip(shards.names, pieces.placements))
    found = _recorded(shards, name, grid)
    for pattern, placements in file.rows.items() if file is not None else ():
        if fnmatch.fnmatchcase(name, pattern):
            found.update(placements)
            break
    return {dimension: placement for dimension, placement in found.items() if dimension in shards.names}


class Balanced(NamedTuple):
    """A dimension of the mesh along which sequences are cut so that causal attention is balanced: rank r of n has
    parts r and 2n-1-r of 2n, along one of the `axes` of a tensor."""

    dimension: str
    axes: tuple[int, ...]

    def order(self, ranks: int, length: int) -> Optional[tuple[int, ...]]:
        """Where each element of a sequence is in the parts of all ranks, one after the other."""
        if length % (2 * ranks):
            return None
        part = length // (2 * ranks)
        places = [0] * length
        for rank in range(ranks):
            for half, number in enumerate((rank, 2 * ranks - 1 - rank)):
                for at in range(part):
                    places[number * part + at] = (2 * rank + half) * part + at
        return tuple(places)


def balanced_sequence(sources: Sequence[Source], grid: Grid) -> Optional[Balanced]:
    """What the ranks recorded about context parallelism; None if sequences are not cut, or cut in order."""
    for place, source in enumerate(sources):
        context = parallel_of(source).context
        if context is not None and context.order == "load_balanced" and len(context.mesh.shape) == 1:
            dimension = _dimension(context.mesh, 0, rank_of(place, source), grid)
            if dimension is not None:
                return Balanced(dimension, tuple(sorted(set(context.sequence_dimension))))
    return None


def _recorded(shards: Shards, name: str, grid: Grid) -> dict[str, str]:
    found: dict[str, tuple[int, str]] = {}
    shapes: dict[tuple[int, ...], int] = {}
    for held, item in zip(shards.held, shards.items):
        if "layout" not in item:
            continue
        layout = parallel_of(held.source).layout_of(item)
        if layout is None or layout.mesh is None:
            continue
        if layout.shape is not None:
            shapes.setdefault(layout.shape, held.rank)
        if len(shapes) > 1:
            (one, first), (other, second) = list(shapes.items())[:2]
            raise DumpError(
                f"{name}: rank {first} recorded a tensor of shape {list(one)}, rank {second} one of {list(other)}: "
                "the ranks are not from the same run."
            )
        for axis, placement in enumerate(layout.placements):
            dimension = _dimension(layout.mesh, axis, held.rank, grid)
            text = _text(placement)
            if dimension is None or text is None:
                continue
            rank, known = found.setdefault(dimension, (held.rank, text))
            if known != text:
                raise DumpError(
                    f"{name}: rank {rank} recorded the placement {known} along {dimension}, rank {held.rank} {text}. "
                    "The dumps of these ranks contradict each other: collect them again in one run."
                )
    return {dimension: text for dimension, (_, text) in found.items()}


def _dimension(mesh: Mesh, axis: int, rank: int, grid: Grid) -> Optional[str]:
    """The dimension of the grid that has the same ranks as one of the mesh, seen from one rank."""
    place = mesh.coordinate_of(rank)
    if place is None or mesh.shape[axis] == 1 or rank not in grid.places:
        return None
    line = set()
    for other in mesh.ranks:
        at = mesh.coordinate_of(other)
        if at is not None and (*at[:axis], *at[axis + 1 :]) == (*place[:axis], *place[axis + 1 :]):
            line.add(other)
    for dimension, name in enumerate(grid.names):
        if any(set(group) == line for group in grid.groups(dimension) if rank in group):
            return name
    return None


def _text(placement: Placement) -> Optional[str]:
    if placement.kind == "S":
        return f"S({placement.dimension})"
    return R if placement.kind == "R" else _REDUCTIONS.get(placement.reduction)
