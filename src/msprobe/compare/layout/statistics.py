"""Merges the statistics of shards into those of the complete tensor, if that is exact.

The maximum, the minimum, the mean (by the number of elements) and the norm (by squares) of slices give those of the
complete tensor, in any order of the slices. Parts of a sum cannot be merged: only their means add up.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from msprobe.compare.layout.fitting import Fit
from msprobe.compare.layout.shards import Shards, local_shape
from msprobe.compare.layout.ways import REDUCED, A, R, Way, assemble, whole_shape
from msprobe.compare.measure import distance

KEYS = ("Max", "Min", "Mean", "Norm")
Item = dict[str, Any]


def merge(shards: Shards, way: Way) -> list[Item]:
    """The items of the complete tensor, one for each place along the dimensions where it should be the same."""
    copies = way.along(R)
    found = []
    for place in itertools.product(*(range(shards.sizes[axis]) for axis in copies)):
        index: list[Any] = [slice(None)] * shards.cells.ndim
        for axis, one in zip(copies, place):
            index[axis] = one
        cells = np.asarray(shards.cells[tuple(index)]).reshape(-1)
        found.append(_merge([shards.items[int(cell)] for cell in cells], shards, way))
    return found


def _merge(items: Sequence[Item], shards: Shards, way: Way) -> Item:
    first = items[0]
    plain = {key: value for key, value in first.items() if key not in ("md5", *KEYS, "local_shape", "layout")}
    plain["shape"] = list(whole_shape(shards.shapes(), way) or local_shape(first))
    if len(items) == 1:
        return {**plain, **{key: first[key] for key in ("md5", *KEYS) if key in first}}
    values = {key: [distance.number(item.get(key)) for item in items] for key in KEYS}
    known: dict[str, Optional[list[float]]] = {
        key: None if any(one is None for one in found) else [one for one in found if one is not None]
        for key, found in values.items()
    }
    if any(one in REDUCED for one in way.placements):
        if known["Mean"] is None:
            return plain
        if _is_single(plain) and all(_is_single({"shape": local_shape(item)}) for item in items):
            return {**plain, **_of_numbers(known["Mean"], shards, way)}
        parts = math.prod(size for size, one in zip(shards.sizes, way.placements) if one == A)
        added = sum(mean * math.prod(local_shape(item)) for mean, item in zip(known["Mean"], items))
        return {**plain, "Mean": added / max(math.prod(plain["shape"]), 1) / parts}
    sizes = [math.prod(local_shape(item)) for item in items]
    if known["Max"] is not None and known["Min"] is not None:
        plain["Max"], plain["Min"] = max(known["Max"]), min(known["Min"])
    if known["Mean"] is not None:
        plain["Mean"] = sum(mean * size for mean, size in zip(known["Mean"], sizes)) / max(sum(sizes), 1)
    if known["Norm"] is not None:
        plain["Norm"] = math.sqrt(sum(norm * norm for norm in known["Norm"]))
    return plain


def _is_single(item: Item) -> bool:
    return math.prod(item["shape"]) == 1


def _of_numbers(values: Sequence[float], shards: Shards, way: Way) -> Item:
    """For tensors of one element the mean is the value: every reduction of them is known."""
    sizes = [size for size, one in zip(shards.sizes, way.placements) if one != R]
    boxed: Any = np.empty(sizes, dtype=object)
    for place, value in zip(np.ndindex(*sizes), values):
        boxed[place] = np.asarray(value)
    kept = Way(tuple(one for one in way.placements if one != R))
    total = float(assemble(boxed, kept)[0])
    return {"Max": total, "Min": total, "Mean": total, "Norm": abs(total)}


def error_of(ours: Item, theirs: Item, factor: float = 1.0) -> float:
    """How far the statistics are apart, as a fraction of the tensor's size; infinite if nothing can be compared."""
    if ours.get("shape") != theirs.get("shape"):
        return math.inf
    if ours.get("md5") and ours.get("md5") == theirs.get("md5"):
        return 0.0
    size = max(factor * distance.scale(ours), distance.scale(theirs))
    worst, seen = 0.0, 0
    for key in KEYS:
        a, b = distance.number(ours.get(key)), distance.number(theirs.get(key))
        if a is None or b is None or (math.isnan(a) and math.isnan(b)):
            continue
        seen += 1
        if key in ("Max", "Min") and factor < 0:
            return math.inf
        a *= factor
        own = max(abs(a), abs(b), 0.0 if key == "Norm" else size)
        if a != b:
            worst = max(worst, abs(a - b) / own if math.isfinite(a) and math.isfinite(b) and own else math.inf)
    return worst if seen else math.inf


def fit(ours: Item, theirs: Item) -> Fit:
    """The factor between two tensors, if all their statistics have the same factor."""
    norms = distance.number(ours.get("Norm")), distance.number(theirs.get("Norm"))
    if not norms[0] or not norms[1] or not all(math.isfinite(one) for one in norms if one is not None):
        return Fit(math.inf)
    factor = norms[1] / norms[0]
    return Fit(error_of(ours, theirs, factor), factor)


def may_add_up(target: Shards, golden: Shards, factor: float) -> bool:
    """Whether the norms allow that the tensors of the side with more shards add up to the other's."""
    ours, theirs = ([distance.number(item.get("Norm")) or 0.0 for item in side.items] for side in (target, golden))
    if len(ours) >= len(theirs):
        return abs(factor) * sum(ours) >= 0.999 * max(theirs)
    return sum(theirs) >= 0.999 * abs(factor) * max(ours)


def of_array(item: Item, array: Any) -> Item:
    """The item of an assembled tensor: what the first shard says, with the figures of the complete tensor."""
    plain = {
        key: value for key, value in item.items() if key not in ("md5", *KEYS, "local_shape", "layout", "data_name")
    }
    plain["shape"] = list(array.shape)
    if array.size and array.dtype.kind != "c":
        wide = np.abs(array) if array.dtype.kind == "c" else np.asarray(array).astype(np.float64)
        with np.errstate(all="ignore"):
            plain["Max"], plain["Min"] = float(wide.max()), float(wide.min())
            plain["Mean"], plain["Norm"] = float(wide.mean()), float(np.sqrt((wide * wide).sum()))
    return plain
