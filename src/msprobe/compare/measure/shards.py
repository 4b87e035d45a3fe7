"""Element by element over shards: each piece of one side against its piece of the other, never the whole at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np

from msprobe.compare.measure.tensors import Array, NotComparable, TensorMetrics, compare_arrays, compare_pieces
from msprobe.compare.reasons import NO_REASON, Kind, Reason
from msprobe.dump.errors import DumpError
from msprobe.dump.tensor_files import codec as files


class ShardFiles(NamedTuple):
    """For a worker process: the files of both sides, and how they belong together."""

    target: tuple[Path, ...]
    golden: tuple[Path, ...]
    kind: str
    axis: int


def measure_shards(work: ShardFiles) -> tuple[Optional[TensorMetrics], Reason]:
    try:
        ours, theirs = _load(work.target), _load(work.golden)
        if work.kind == "same":
            _all_alike(ours)
            _all_alike(theirs)
            return compare_arrays(ours[0], theirs[0]), NO_REASON
        if work.kind == "sum":
            return compare_arrays(_sum(ours), _sum(theirs)), NO_REASON
        return compare_pieces(list(_pieces(ours, theirs, work.axis))), NO_REASON
    except NotComparable as error:
        return None, error.reason


def _load(paths: Sequence[Path]) -> list[Array]:
    try:
        return [files.load(path, mmap=True) for path in paths]
    except DumpError as error:
        raise NotComparable(Reason(Kind.UNREADABLE, str(error))) from None


def _all_alike(arrays: list[Array]) -> None:
    for other in arrays[1:]:
        if compare_arrays(other, arrays[0]).different:
            raise NotComparable(Reason(Kind.KIND, "the ranks hold other values of what looked like copies"))


def _sum(arrays: list[Array]) -> Array:
    total: Array = arrays[0] if len(arrays) == 1 else np.sum([a.astype(np.float64) for a in arrays], axis=0)
    return total


def _pieces(ours: list[Array], theirs: list[Array], axis: int) -> Iterator[tuple[Array, Array]]:
    """Cuts both sides at each other's boundaries along the axis."""
    i = j = a = b = 0
    while i < len(ours) and j < len(theirs):
        left, right = ours[i].shape[axis] - a, theirs[j].shape[axis] - b
        length = min(left, right)
        yield _slice(ours[i], axis, a, length), _slice(theirs[j], axis, b, length)
        i, a = (i + 1, 0) if length == left else (i, a + length)
        j, b = (j + 1, 0) if length == right else (j, b + length)


def _slice(array: Array, axis: int, start: int, length: int) -> Array:
    index: list[Any] = [slice(None)] * array.ndim
    index[axis] = slice(start, start + length)
    piece: Array = array[tuple(index)]
    return piece
