"""Where a tensor of a checkpoint is in other weights: under its name, tied, transposed, fused, or sharded over ranks.

Fused tensors (q, k and v in one; gate and up in one; all experts in one) are found by their content: rows of the
tensor are looked up in the fused one. Where the content differs, the places of the same tensors in other layers hold.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from msprobe.rollout.checkpoints import Stored, Weights

Array = np.ndarray[Any, Any]
_DIGITS = re.compile(r"\d+")
_KEY = 32
_SAMPLES = 5


@dataclass(frozen=True)
class Piece:
    """A part of a tensor: rows (or columns) of ours, and where they are in the other weights."""

    rank: int
    name: str
    axis: int
    ours: tuple[int, int]
    offset: int
    index: Optional[int] = None  # the expert in a tensor of all experts
    transposed: bool = False

    def read_ours(self, value: Array) -> Array:
        return value[self.ours[0] : self.ours[1]] if self.axis == 0 else value[:, self.ours[0] : self.ours[1]]

    def read_theirs(self, value: Array) -> Array:
        part = value if self.index is None else value[self.index]
        part = part.T if self.transposed else part
        size = self.ours[1] - self.ours[0]
        return part[self.offset : self.offset + size] if self.axis == 0 else part[:, self.offset : self.offset + size]


class Places:
    """The places of the tensors of `ours` in `theirs`."""

    def __init__(self, ours: Weights, theirs: Weights) -> None:
        self._ours = ours
        self.ranks = theirs.ranks or [theirs]
        self._tied = {**theirs.tied}
        self._fused: dict[str, dict[str, tuple[str, int, Optional[int], int]]] = {}
        self.used: set[str] = set()
        self._parents = self._group_fused()

    def find(self, name: str) -> list[Piece]:
        """The pieces of a tensor; empty if it is nowhere."""
        stored = self._ours.tensors[name]
        first = self.ranks[0].tensors
        place = name if name in first else self._tied.get(name, "")
        if place in first:
            self.used.add(place)
            return self._direct(stored, place)
        return self._in_fused(stored)

    def _direct(self, stored: Stored, place: str) -> list[Piece]:
        shape, there = stored.shape, self.ranks[0].tensors[place].shape
        rows = shape[0] if shape else 1
        if shape == there or not shape:
            return [Piece(rank, place, 0, (0, rows), 0) for rank in range(len(self.ranks))]
        if len(shape) == 2 and shape[::-1] == there:
            return [Piece(rank, place, 0, (0, rows), 0, transposed=True) for rank in range(len(self.ranks))]
        return self._sharded(shape, there, place, 0, None)

    def _sharded(
        self, shape: tuple[int, ...], there: tuple[int, ...], place: str, offset: int, index: Optional[int]
    ) -> list[Piece]:
        """One piece per rank, along the axis that is shorter. The last piece may be padded."""
        count = len(self.ranks)
        if len(shape) != len(there) or (count == 1 and shape[1:] != there[1:]):
            return []
        axis = next((axis for axis in range(min(len(shape), 2)) if shape[axis] != there[axis]), 0)
        if any(shape[other] != there[other] for other in range(len(shape)) if other != axis):
            return []
        size = there[axis]
        if size * count < shape[axis]:
            return []
        bounds = [(min(rank * size, shape[axis]), min((rank + 1) * size, shape[axis])) for rank in range(count)]
        return [Piece(rank, place, axis, bound, offset, index) for rank, bound in enumerate(bounds)]

    # Fused tensors.

    def _group_fused(self) -> dict[str, list[str]]:
        """Tensors of `theirs` that `ours` does not have, by their place: layer and last word."""
        groups: dict[str, list[str]] = defaultdict(list)
        for name, stored in self.ranks[0].tensors.items():
            if name not in self._ours.tensors and len(stored.shape) in (1, 2, 3):
                groups[_layer(name)].append(name)
        return groups

    def _in_fused(self, stored: Stored) -> list[Piece]:
        layer = _layer(stored.name)
        if layer not in self._fused:
            self._fused[layer] = self._place_all(layer)
        found = self._fused[layer].get(stored.name)
        if found is None:
            return []
        place, offset, index, axis = found
        self.used.add(place)
        return self._pieces(stored, place, offset, index, axis)

    def _pieces(self, stored: Stored, place: str, offset: int, index: Optional[int], axis: int) -> list[Piece]:
        size = stored.shape[axis] // len(self.ranks)
        return [
            Piece(rank, place, axis, (rank * size, (rank + 1) * size), offset if axis == 0 else 0, index)
            for rank in range(len(self.ranks))
        ]

    def _place_all(self, layer: str) -> dict[str, tuple[str, int, Optional[int], int]]:
        """The places of all tensors of a layer that are not under their own names."""
        waiting = [
            stored
            for name, stored in self._ours.tensors.items()
            if _layer(name) == layer and name not in self.ranks[0].tensors
        ]
        placed: dict[str, tuple[str, int, Optional[int], int]] = {}
        for place in self._parents.get(layer, []):
            fused = self.ranks[0].tensors[place]
            values = fused.read()
            blocks = [(None, values)] if values.ndim < 3 else list(enumerate(values))
            for index, block in blocks:
                inside = [one for one in waiting if self._may_be_in(one, place, index, block.shape)]
                placed.update(self._place(inside, place, index, block))
        return placed

    def _may_be_in(self, stored: Stored, place: str, index: Optional[int], shape: tuple[int, ...]) -> bool:
        if index is not None and not re.search(rf"experts\.{index}\.", stored.name):
            return False
        same_word = stored.name.rpartition(".")[2] == place.rpartition(".")[2].rpartition("_")[2]
        count = len(self.ranks)
        if not same_word or len(stored.shape) != len(shape):
            return False
        by_rows = stored.shape[1:] == shape[1:] and stored.shape[0] // count <= shape[0]
        by_columns = len(shape) == 2 and count > 1 and (stored.shape[0], stored.shape[1] // count) == shape
        return by_rows or by_columns

    def _place(
        self, inside: list[Stored], place: str, index: Optional[int], block: Array
    ) -> dict[str, tuple[str, int, Optional[int], int]]:
        count = len(self.ranks)
        rows = _row_index(block)
        found: dict[str, tuple[str, int, Optional[int], int]] = {}
        unsure: list[Stored] = []
        for stored in inside:
            if len(stored.shape) == 2 and stored.shape[1:] != block.shape[1:]:
                found[stored.name] = (place, 0, index, 1)
                continue
            offset = _find_offset(stored.read()[: stored.shape[0] // count], block, rows)
            if offset is None:
                unsure.append(stored)
            else:
                found[stored.name] = (place, offset, index, 0)
        taken = sorted((at, at + self._ours.tensors[n].shape[0] // count) for n, (_, at, _, _) in found.items())
        for stored in unsure:
            size = stored.shape[0] // count
            gap = _gap(taken, size, block.shape[0], exact=len(unsure) == 1 or bool(taken))
            if gap is not None and _is_complete(place, index, inside, block.shape[0] * count):
                found[stored.name] = (place, gap, index, 0)
                taken = sorted([*taken, (gap, gap + size)])
        return found


def _is_complete(place: str, index: Optional[int], inside: list[Stored], rows: int) -> bool:
    """Whether the candidates next to a fused tensor are together as long as it, so that none is there by chance."""
    parent = place.rpartition(".")[0].rpartition(".")[0]
    near = inside if index is not None else [one for one in inside if one.name.startswith(f"{parent}.")]
    return sum(one.shape[0] for one in near) == rows


def _layer(name: str) -> str:
    """Everything up to the last number that is not an expert's: `model.layers.3`."""
    plain = re.sub(r"experts\.\d+", "experts", name)
    numbers = list(_DIGITS.finditer(plain))
    return plain[: numbers[0].end()] if numbers else ""


def _bytes(row: Array) -> bytes:
    return np.ascontiguousarray(row).reshape(-1)[:_KEY].tobytes()


def _row_index(block: Array) -> dict[bytes, int]:
    """The row with each beginning; for a vector, each run of numbers."""
    if block.ndim == 1:
        return {_bytes(block[start : start + _KEY]): start for start in range(len(block))}
    return {_bytes(block[row]): row for row in range(block.shape[0])}


def _find_offset(part: Array, block: Array, rows: dict[bytes, int]) -> Optional[int]:
    """Where the rows of a tensor are in the fused one: the place that most of some sampled rows agree on."""
    if part.dtype != block.dtype:
        part = part.astype(block.dtype)
    votes: dict[int, int] = defaultdict(int)
    last = len(part) - (_KEY if part.ndim == 1 else 1)
    for row in np.unique(np.linspace(0, max(last, 0), _SAMPLES).astype(int)).tolist():
        key = _bytes(part[row : row + _KEY] if part.ndim == 1 else part[row])
        if key in rows:
            votes[rows[key] - row] += 1
    best = max(votes, key=lambda one: votes[one], default=None)
    return best if best is not None and 0 <= best <= len(block) - len(part) else None


def _gap(taken: list[tuple[int, int]], size: int, length: int, exact: bool) -> Optional[int]:
    """The first free place of this size."""
    at = 0
    for begin, end in [*taken, (length, length)]:
        if (begin - at == size) if exact else (begin - at >= size):
            return at
        at = max(at, end)
    return None
