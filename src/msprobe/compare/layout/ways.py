"""Ways to put the shards of a tensor together: one placement for each dimension of the mesh, as in DTensor of torch.

`R` the same on every rank, `S(d)` a slice along dimension d, `P` a part of a sum, `A` a part of an average, `N` the
norm of a part, `X` the maximum of a part.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

Array = np.ndarray[Any, Any]
Shape = Sequence[int]
R, P, A, N, X = "R", "P", "A", "N", "X"
REDUCED = (P, A, N, X)


class Way(NamedTuple):
    """`placements` along the dimensions; `order` is the order in which the dimensions are joined, if it matters."""

    placements: tuple[str, ...]
    order: tuple[int, ...] = ()

    def along(self, placement: str) -> tuple[int, ...]:
        return tuple(place for place, one in enumerate(self.placements) if one == placement)


def shard(axis: int) -> str:
    return f"S({axis})"


def axis_of(placement: str) -> Optional[int]:
    return int(placement[2:-1]) if placement.startswith("S(") else None


def possible_ways(local: Shape, whole: Shape, sizes: Sequence[int], reductions: Sequence[str] = (P, A)) -> list[Way]:
    """The ways to make a tensor of a known shape from equal shards, the simplest first."""
    if len(local) != len(whole) or any(b % max(a, 1) if a else b for a, b in zip(local, whole)):
        return _uneven(local, whole, sizes)
    ratios = [b // a if a else 1 for a, b in zip(local, whole)]
    choices = [[R, *reductions, *(shard(axis) for axis, ratio in enumerate(ratios) if ratio > 1)] for _ in sizes]
    single = all(size == 1 for size in whole)  # a loss: averaged over ranks, summed over microbatches
    found = []
    for placements in itertools.product(*choices):
        if len({one for one in placements if one in REDUCED}) > 1 and not single:
            continue
        made = [1] * len(ratios)
        for placement, size in zip(placements, sizes):
            axis = axis_of(placement)
            if axis is not None:
                made[axis] *= size
        if made == ratios:
            found += [Way(placements, order) for order in _orders(placements)]
    return sorted(found, key=_plainness)


def _uneven(local: Shape, whole: Shape, sizes: Sequence[int]) -> list[Way]:
    """A dimension that the number of ranks does not divide: its shards have two lengths, along one axis."""
    if len(local) != len(whole):
        return []
    axes = [axis for axis, (a, b) in enumerate(zip(local, whole)) if a != b]
    if len(axes) != 1:
        return []
    found = []
    for place in range(len(sizes)):
        for rest in itertools.product((R, P), repeat=len(sizes) - 1):
            placements = (*rest[:place], shard(axes[0]), *rest[place:])
            found.append(Way(placements, ()))
    return sorted(found, key=_plainness)


def free_ways(local: Shape, sizes: Sequence[int], reductions: Sequence[str] = (P, A)) -> list[Way]:
    """The ways if the shape of the complete tensor is not known."""
    choices = [[R, *reductions, *(shard(axis) for axis in range(len(local)))] for _ in sizes]
    made = itertools.product(*choices)
    return sorted((Way(placements, order) for placements in made for order in _orders(placements)), key=_plainness)


def _orders(placements: Sequence[str]) -> Iterable[tuple[int, ...]]:
    """Two dimensions along one axis can be put together in two orders."""
    sliced = [place for place, one in enumerate(placements) if axis_of(one) is not None]
    usual = tuple(reversed(range(len(placements))))
    axes = [placements[place] for place in sliced]
    if len(set(axes)) == len(axes):
        return [usual]
    return [usual, tuple(range(len(placements)))]


def _plainness(way: Way) -> tuple[int, int, int]:
    reduced = sum(one in REDUCED for one in way.placements)
    return (
        sum(one in (A, N, X) for one in way.placements),
        reduced,
        int(way.order != tuple(reversed(range(len(way.order))))),
    )


def assemble(shards: Array, way: Way) -> list[Array]:
    """The complete tensor, once for each copy of it.

    `shards` is an array of arrays, one dimension of it for each dimension of the mesh. Raises ValueError if the shards
    do not fit together.
    """
    copies = way.along(R)
    found = []
    for place in itertools.product(*(range(shards.shape[axis]) for axis in copies)):
        index: list[Any] = [slice(None)] * shards.ndim
        for axis, one in zip(copies, place):
            index[axis] = one
        rest = shards[tuple(index)]
        kept = [axis for axis in range(shards.ndim) if axis not in copies]
        found.append(_join(rest if kept else _boxed(rest), kept, way))
    return found


def _boxed(value: Any) -> Array:
    box: Array = np.empty((), dtype=object)
    box[()] = value
    return box


def _join(shards: Array, kept: list[int], way: Way) -> Array:
    left = list(kept)
    for axis in way.order or tuple(reversed(range(len(way.placements)))):
        if axis not in left:
            continue
        place = left.index(axis)
        shards = _reduce(shards, place, way.placements[axis])
        left.remove(axis)
    whole: Array = shards[()]
    return whole


def _reduce(shards: Array, place: int, placement: str) -> Array:
    moved = np.moveaxis(shards, place, -1)
    out: Array = np.empty(moved.shape[:-1], dtype=object)
    for index in np.ndindex(out.shape):
        out[index] = join_line(list(moved[index]), placement)
    return out


def join_line(pieces: list[Array], placement: str) -> Array:
    axis = axis_of(placement)
    if axis is not None:
        return np.concatenate(pieces, axis)
    wide = [piece.astype(np.float64) for piece in pieces]
    if placement == N:
        return np.asarray(np.sqrt(np.sum([piece * piece for piece in wide], axis=0)))
    if placement == X:
        return np.asarray(np.max(wide, axis=0))
    total: Array = np.asarray(np.sum(wide, axis=0))
    return np.asarray(total / len(pieces)) if placement == A else total


def whole_shape(shapes: Array, way: Way) -> Optional[tuple[int, ...]]:
    """The shape of the complete tensor from those of the shards, which `shapes` has as an array of tuples."""
    first = shapes[(0,) * shapes.ndim]
    made = list(first)
    for place, placement in enumerate(way.placements):
        axis = axis_of(placement)
        if axis is None:
            continue
        if axis >= len(made):
            return None
        index: list[Any] = [0] * shapes.ndim
        index[place] = slice(None)
        line = [shape[axis] for shape in shapes[tuple(index)]]
        made[axis] = made[axis] * sum(line) // max(line[0], 1) if line[0] else sum(line)
    return tuple(made)
