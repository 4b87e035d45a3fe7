"""Weights that differ before anything ran: on some ranks, in the shard of one rank, or as other slices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

import numpy as np

from msprobe.compare.calls import module_path
from msprobe.compare.layout.case import Case
from msprobe.compare.layout.dimensions import parallel_of, ranks_text
from msprobe.compare.layout.faults.evidence import CLOSE, Diagnosis, Loaded, copies_of, name_dimensions
from msprobe.compare.layout.faults.guilty import of_slice
from msprobe.compare.layout.flat import read_flat
from msprobe.compare.layout.ways import Array, R, assemble
from msprobe.compare.origin.trace import Trace
from msprobe.compare.origin.wording import Candidate
from msprobe.dump.parallel import Layout, Mesh
from msprobe.messages import Message


def of_weight(found: Candidate, case: Case, trace: Trace, views: Optional[Loaded]) -> Optional[Diagnosis]:
    row = case.row
    if not row.slot.startswith("parameters.") or found.kind != "weight" or case.layout is None:
        return None
    name, module = row.slot.partition(".")[2], row.match.call.key
    copies = copies_of(case, views)
    bad = [one for one in copies if one.bad]
    if bad and len(bad) < len(copies):
        ranks = tuple(sorted({rank for one in bad for rank in one.ranks}))
        dimension = name_dimensions(case.target, case.layout.target.along(R))
        fine = sorted({rank for one in copies if not one.bad for rank in one.ranks})
        copies_said = {"ranks": ranks_text(ranks), "fine": ranks_text(fine)}
        said = Message("fault.replica", name=name, module=module, **copies_said)
        return Diagnosis("replica not synchronised", said, ranks, dimension)
    if views is None:
        return None
    return of_slice(found, case, trace, views) or _of_stored_shard(case, views)


def _of_stored_shard(case: Case, views: Loaded) -> Optional[Diagnosis]:
    """For a weight that the ranks store in shards and join before use: the ranks whose shards differ."""
    try:
        whole = assemble(views.shards, views.layout.target)[0]
    except ValueError:
        return None
    wrong = np.abs(whole.astype(np.float64) - views.golden) > CLOSE * np.abs(views.golden).max()
    found = _wrong_shards(case, wrong)
    if found is None:
        return None
    ranks, dimension = found
    name, module = case.row.slot.partition(".")[2], case.row.match.call.key
    said = Message("fault.shard", name=name, module=module, ranks=ranks_text(ranks), number=len(ranks))
    return Diagnosis("weight", said, ranks, dimension)


def _wrong_shards(case: Case, wrong: Array) -> Optional[tuple[tuple[int, ...], str]]:
    """The ranks that keep the wrong elements of a weight, and the dimension of the mesh; None where all keep some."""
    held = case.target.held[0]
    path, slot = module_path(held.name.rpartition(".forward.")[0]), case.row.slot.partition(".")[2]
    stored = parallel_of(held.source).parameters.get(f"{path}.{slot}")
    dimension = ""
    if stored is not None and stored.mesh is not None and stored.shape == wrong.shape:
        shards = {rank: _cut(wrong, part) for rank, part in _slices(stored, stored.mesh).items()}
        dimension = ", ".join(stored.mesh.names or ())
    else:
        full = f"{module_path(case.row.match.call.key)}.{slot}"
        pieces = {one.rank: read_flat(one.source).parameters.get(full) for one in case.target.held}
        shards = {rank: wrong.reshape(-1)[one.first : one.last] for rank, one in pieces.items() if one is not None}
    ranks = tuple(sorted(rank for rank, part in shards.items() if part.any()))
    return (ranks, dimension) if ranks and len(ranks) < len(case.target.ranks) else None


def _slices(stored: Layout, mesh: Mesh) -> Mapping[int, dict[int, tuple[int, int]]]:
    """The part of the complete tensor that each rank stores, by axis; empty if two dimensions cut one axis."""
    axes = [one.dimension for one in stored.placements if one.kind == "S"]
    if not axes or len(set(axes)) < len(axes):
        return {}
    found: dict[int, dict[int, tuple[int, int]]] = {}
    for rank in mesh.ranks:
        place = mesh.coordinate_of(rank) or ()
        part = {}
        for at, size, placement in zip(place, mesh.shape, stored.placements):
            if placement.kind == "S" and placement.dimension is not None and stored.shape is not None:
                step = -(-stored.shape[placement.dimension] // size)
                part[placement.dimension] = (at * step, (at + 1) * step)
        found[rank] = part
    return found


def _cut(array: Array, part: Mapping[int, tuple[int, int]]) -> Array:
    cut: Array = array[tuple(slice(*part[axis]) if axis in part else slice(None) for axis in range(array.ndim))]
    return cut
