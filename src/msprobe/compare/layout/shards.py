"""The shards of one row: what each rank and microbatch recorded of it, arranged along the dimensions of the mesh."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from msprobe.compare.layout.dimensions import MICROBATCH, Grid, ranks_text
from msprobe.compare.layout.flat import PartItem
from msprobe.compare.layout.joined import Held
from msprobe.compare.layout.ways import Array, R, Way, shard
from msprobe.compare.measure.distance import damaged_statistic, number
from msprobe.compare.reasons import Kind, Reason
from msprobe.compare.rows import Item, is_tensor
from msprobe.compare.sources import Source
from msprobe.dump.errors import DumpError
from msprobe.dump.tensor_files import codec
from msprobe.messages import Message

_LARGEST = 1 << 48


class Place(NamedTuple):
    """Where a shard is: the rank, and the name of the call in its dump."""

    rank: int
    microbatch: int
    source: Source
    name: str


@dataclass(frozen=True)
class Shards:
    """`cells` is an array of places in `held` and `items`, with one dimension for each of `names`."""

    held: Sequence[Place]
    items: Sequence[dict[str, Any]]
    names: tuple[str, ...]
    cells: Array

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.cells.shape)

    @property
    def first(self) -> dict[str, Any]:
        return self.items[int(self.cells.flat[0])]

    @property
    def saved(self) -> bool:
        return all(item.get("data_name") for item in self.items)

    @property
    def known(self) -> bool:
        """Whether the values are known: saved, or of one element each, whose mean is its value."""
        return all(item.get("data_name") or _single_value(item) is not None for item in self.items)

    def shapes(self) -> Array:
        found: Array = np.empty(self.cells.shape, dtype=object)
        for index in np.ndindex(self.cells.shape):
            found[index] = tuple(local_shape(self.items[int(self.cells[index])]))
        return found

    def arrays(self) -> Array:
        """Raises DumpError if a file cannot be read, or if there is none and the tensor has several elements."""
        found: Array = np.empty(self.cells.shape, dtype=object)
        for index in np.ndindex(self.cells.shape):
            place = int(self.cells[index])
            held, item = self.held[place], self.items[place]
            value = _single_value(item)
            if item.get("data_name"):
                array = _read(held.source.tensor_path(item["data_name"]))
                found[index] = item.cut(array) if isinstance(item, PartItem) else array
            elif value is None:
                raise DumpError("only statistics were collected")
            else:
                found[index] = np.full(local_shape(item), value)
        return found

    @property
    def pieces(self) -> Optional[Way]:
        """How the elements that each rank has of a flattened parameter are put together; None for other items."""
        ranges: Array = np.empty(self.cells.shape, dtype=object)
        for index in np.ndindex(self.cells.shape):
            item = self.items[int(self.cells[index])]
            if not isinstance(item, PartItem) or item.piece is None:
                return None
            ranges[index] = (item.piece.first, item.piece.last)
        copied = [bool((ranges == np.roll(ranges, 1, axis)).all()) for axis in range(ranges.ndim)]
        return Way(tuple(R if same else shard(0) for same in copied))

    def ranks_at(self, axes: Sequence[int], place: Sequence[int]) -> list[int]:
        """The ranks at a place along some dimensions."""
        index: list[Any] = [slice(None)] * self.cells.ndim
        for axis, one in zip(axes, place):
            index[axis] = one
        found = np.asarray(self.cells[tuple(index)]).reshape(-1)
        return sorted({self.held[int(one)].rank for one in found})

    @property
    def ranks(self) -> list[int]:
        return sorted({one.rank for one in self.held})


def _single_value(item: dict[str, Any]) -> Optional[float]:
    mean = number(item.get("Mean"))
    return mean if mean is not None and prod(local_shape(item)) == 1 else None


@functools.lru_cache(maxsize=4096)
def _read(path: Path) -> Array:
    """Maps the file and does not copy it; a row is read more than once."""
    array: Array = codec.load(path, mmap=True)
    return array


def forget_files() -> None:
    """Forgets the mapped files: they may have changed at the next comparison."""
    _read.cache_clear()


def local_shape(item: dict[str, Any]) -> list[int]:
    """The shape of what a rank holds; a DTensor's `shape` is that of the complete tensor."""
    local = item.get("local_shape")
    return local if isinstance(local, list) else item["shape"]


def _damage(item: Item) -> Optional[Message]:
    """What cannot be used to put shards together: a shape that is not one, a statistic that is not a number."""
    shape = local_shape(item) if item is not None else None
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < _LARGEST for size in shape):
        return Message("damaged.shape", shape=str(shape)[:40])
    return damaged_statistic(item) if item is not None else None


def arrange(held: Sequence[Held], items: Sequence[Item], grid: Grid) -> Union[Shards, Reason]:
    """Returns the reason if some rank has no such tensor and the others are not a part of the mesh."""
    kept = [(one, item) for one, item in zip(held, items) if item is not None and is_tensor(item)]
    if not kept:
        return Reason(Kind.UNMATCHED, Message("absent.no_rank"))
    for one, item in kept:
        damage = _damage(item)
        if damage:
            return Reason(Kind.UNREADABLE, Message("damaged.of_rank", rank=one.rank, damage=damage))
    if len({len(local_shape(item)) for _, item in kept if item is not None}) > 1:
        return Reason(Kind.SHAPE, Message("shape.dimensions"))
    ranks = sorted({one.rank for one, _ in kept})
    counts = {rank: sum(one.rank == rank for one, _ in kept) for rank in ranks}
    lacking = sorted({one.rank for one in held} - set(ranks))
    part = grid.of_ranks(ranks)
    if part is None or len(set(counts.values())) != 1:
        short = lacking or [rank for rank in ranks if counts[rank] < max(counts.values())]
        why = Message("absent.ranks", ranks=ranks_text(short)) if short else Message("absent.odd_ranks")
        return Reason(Kind.UNMATCHED, why)
    parts = counts[ranks[0]]
    shape = (*part.sizes, parts) if parts > 1 else part.sizes
    cells: Array = np.zeros(shape, dtype=np.int64)
    seen: dict[int, int] = {}
    for place, (one, _) in enumerate(kept):
        index = part.places[one.rank]
        if parts > 1:
            index = (*index, seen.get(one.rank, 0))
            seen[one.rank] = seen.get(one.rank, 0) + 1
        cells[index] = place
    names = (*part.names, MICROBATCH) if parts > 1 else part.names
    return Shards([Place(*one[:4]) for one, _ in kept], [item for _, item in kept if item is not None], names, cells)


def load(shards: Shards) -> Union[Array, Reason]:
    """The files of a row; the reason if one cannot be read, or has a different shape than its rank recorded."""
    try:
        arrays = shards.arrays()
    except DumpError as error:
        return Reason(Kind.UNREADABLE, Message("error", text=str(error)))
    for array, shape in zip(arrays.flat, shards.shapes().flat):
        if array.shape != shape:
            why = Message("damaged.file_shape", file=str(list(array.shape)), record=str(list(shape)))
            return Reason(Kind.UNREADABLE, why)
    return arrays
