"""`msprobe weights`: which tensors of two sets of weights differ, and how. Files are mapped and read in blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Optional

import numpy as np

from msprobe.messages import Message, beside
from msprobe.rollout.checkpoints import Weights, open_weights
from msprobe.rollout.weight_places import Piece, Places

Array = np.ndarray[Any, Any]
SAME, CAST, QUANTISED, STALE, DIFFERS, MISSING, EXTRA = (
    "same",
    "cast",
    "quantised",
    "stale",
    "differs",
    "missing",
    "extra",
)
HARMLESS = (SAME, CAST, QUANTISED)
_BLOCK = 8 << 20
_NARROW = {"F8_E4M3": 0.0715, "F8_E5M2": 0.143, "I8": 0.0}
"""The relative error that rounding to the dtype explains; int8: half a step instead."""


@dataclass
class TensorResult:
    """One tensor of the first weights: how it is in the second ones."""

    name: str
    kind: str
    detail: str = ""
    place: str = ""
    elements: int = 0
    different: int = 0
    largest: float = 0.0
    relative: float = 0.0
    ranks: list[int] = field(default_factory=list)


@dataclass
class WeightsComparison:
    """The answer."""

    results: list[TensorResult]

    @property
    def wrong(self) -> list[TensorResult]:
        return [one for one in self.results if one.kind not in HARMLESS and one.kind != EXTRA]

    @property
    def exit_code(self) -> int:
        return 1 if self.wrong else 0

    def summary(self) -> dict[str, Any]:
        rows = [{**asdict(one), **beside({"detail": one.detail}, "detail")} for one in self.results if one.kind != SAME]
        return {"verdict": "differs" if self.wrong else "same", "counts": self.counts, "tensors": rows}

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(one.kind for one in self.results))


def compare_weights(first: Path, second: Path, older: Optional[Path] = None) -> WeightsComparison:
    """Compares all tensors of two sets of weights. If the first are an engine's, the two change places."""
    ours, theirs = open_weights(first), open_weights(second)
    if ours.engine and not theirs.engine:
        ours, theirs = theirs, ours
    before = None if older is None else open_weights(older)
    places = Places(ours, theirs)
    results = [_compare(name, ours, places, before) for name in ours.tensors]
    scales = {name for rank in places.ranks for name in rank.tensors if _is_scale(name)}
    for name in places.ranks[0].tensors:
        if name not in places.used and name not in scales:
            results.append(TensorResult(name, EXTRA, Message("weights.extra")))
    return WeightsComparison(results)


def _is_scale(name: str) -> bool:
    return name.endswith(("_scale", "_scale_inv", ".scale", ".scales"))


def _compare(name: str, ours: Weights, places: Places, older: Optional[Weights]) -> TensorResult:
    stored = ours.tensors[name]
    pieces = places.find(name)
    if not pieces:
        return TensorResult(name, MISSING, Message("weights.missing"))
    result = TensorResult(name, SAME, place=_place(name, pieces))
    value = stored.read()
    before = older.tensors.get(name) if older is not None else None
    stale = before is not None and before.shape == stored.shape
    wrong: list[tuple[int, int]] = []
    error = size = 0.0
    for piece in pieces:
        there = places.ranks[piece.rank].tensors[piece.name]
        mine, other = piece.read_ours(value), piece.read_theirs(there.read())
        result.elements += mine.size
        if mine.shape != other.shape:
            shapes = {"first": str(list(mine.shape)), "second": str(list(other.shape))}
            return TensorResult(name, DIFFERS, Message("weights.shape", **shapes))
        if _equal(mine, other):
            continue
        if there.dtype in _NARROW and stored.dtype not in _NARROW:
            found = _quantised(mine, other, piece, there.dtype, places)
            if found:
                result.kind = QUANTISED if result.kind in HARMLESS else result.kind
                continue
        if stored.dtype != there.dtype and _equal(mine.astype(other.dtype), other):
            result.kind = CAST if result.kind in HARMLESS else result.kind
            result.detail = Message("weights.cast", first=stored.dtype, second=there.dtype)
            continue
        stale = stale and before is not None and _equal(piece.read_ours(before.read()).astype(other.dtype), other)
        result.kind = DIFFERS
        result.ranks.append(piece.rank)
        for row, block in _blocks(mine, other):
            result.different += int((block != 0).sum())
            result.largest = max(result.largest, float(np.abs(block).max(initial=0)))
            error += float((block**2).sum())
            wrong += _wrong_rows(block, row + piece.ours[0] if piece.axis == 0 else row)
        size += float((mine.astype(np.float64) ** 2).sum())
    if result.kind == DIFFERS:
        result.relative = float(np.sqrt(error / max(size, 1e-300)))
        result.kind = STALE if stale else DIFFERS
        result.detail = _describe(result, wrong, stored.shape, len(places.ranks), stale)
    return result


def _place(name: str, pieces: list[Piece]) -> str:
    first = pieces[0]
    parts = [] if first.name == name else [first.name]
    if first.index is not None:
        parts.append(f"expert {first.index}")
    if first.offset:
        parts.append(f"from row {first.offset}")
    if first.transposed:
        parts.append("transposed")
    return ", ".join(parts)


def _equal(first: Array, second: Array) -> bool:
    """Whether the bits are equal, block by block: most tensors are, and this is what takes the time."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return all(np.array_equal(a, b) for a, b in _pairs(_raw(first), _raw(second)))


def _raw(value: Array) -> Array:
    """The bits as whole numbers of the same size, without a copy."""
    kinds = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
    return value.view(kinds[value.dtype.itemsize])


def _pairs(first: Array, second: Array) -> Iterator[tuple[Array, Array]]:
    if first.ndim == 0:
        yield first, second
        return
    step = max(1, _BLOCK // max(1, first[:1].nbytes))
    for row in range(0, len(first), step):
        yield first[row : row + step], second[row : row + step]


def _blocks(first: Array, second: Array) -> Iterator[tuple[int, Array]]:
    """The differences in float64, some rows at a time, and the number of their first row."""
    row = 0
    for mine, other in _pairs(first, second):
        yield row, np.atleast_1d(mine.astype(np.float64) - other.astype(np.float64))
        row += len(mine) if mine.ndim else 1


def _wrong_rows(block: Array, first: int) -> list[tuple[int, int]]:
    """The ranges of rows with a difference."""
    rows = np.flatnonzero((block != 0).reshape(len(block), -1).any(1)) + first
    if not len(rows):
        return []
    breaks = np.flatnonzero(np.diff(rows) > 1)
    starts, ends = [rows[0], *rows[breaks + 1]], [*rows[breaks], rows[-1]]
    return [(int(a), int(b)) for a, b in zip(starts, ends)]


def _describe(
    result: TensorResult, wrong: list[tuple[int, int]], shape: tuple[int, ...], ranks: int, stale: bool
) -> Message:
    total = result.elements
    if result.different == 1:
        what = Message("weights.one", elements=total, row=wrong[0][0])
    elif result.different >= 0.9 * total:
        what = Message("weights.nearly_all")
    else:
        merged = wrong if len(wrong) == 1 else [(wrong[0][0], wrong[-1][1])] if len(wrong) > 3 else wrong
        rows = ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in merged)
        counts = {"different": result.different, "elements": total, "all": shape[0] if shape else 1}
        what = Message("weights.some", **counts, rows=rows)
    if 0 < len(result.ranks) < ranks:
        what = Message("weights.in_ranks", what=what, ranks=", ".join(map(str, result.ranks)))
    figures = {"largest": f"{result.largest:.3g}", "relative": f"{result.relative:.3g}"}
    return Message("weights.stale" if stale else "weights.differs", what=what, **figures)


def _quantised(mine: Array, other: Array, piece: Piece, dtype: str, places: Places) -> bool:
    """Whether the values, with their scale, are the rounded ones."""
    scale = _scale(piece, places, mine.shape)
    if scale is None:
        return False
    restored = other.astype(np.float64) * scale
    wide = mine.astype(np.float64)
    allowed = np.abs(scale) * 0.51 if dtype == "I8" else np.abs(wide) * _NARROW[dtype] + np.abs(scale) * 2.0**-9
    return bool((np.abs(restored - wide) <= allowed).mean() > 0.999)


def _scale(piece: Piece, places: Places, shape: tuple[int, ...]) -> Optional[Array]:
    tensors = places.ranks[piece.rank].tensors
    stem = piece.name.removesuffix(".weight")
    names = (f"{piece.name}_scale", f"{piece.name}_scale_inv", f"{stem}.scale", f"{stem}.scales")
    name = next((one for one in names if one in tensors), None)
    if name is None:
        return None
    value = tensors[name].read().astype(np.float64)
    if value.size == 1:
        return value.reshape(1)
    if value.ndim == 1 or (value.ndim == 2 and value.shape[1] == 1):
        return value.reshape(-1, 1)[piece.offset : piece.offset + shape[0]]
    block = [-(-size // parts) for size, parts in zip(shape, value.shape)]
    return value.repeat(block[0], 0).repeat(block[1], 1)[: shape[0], : shape[1]]
