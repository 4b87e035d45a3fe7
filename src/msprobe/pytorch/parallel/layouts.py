"""The layout of a DTensor as JSON text: global shape, number of the mesh, placements.

A model has few different layouts and uses them at every call, so the text is made once for each and then looked up.
This module imports nothing from torch.distributed.tensor: a script without DTensors does not load it.
"""

from __future__ import annotations

import json
from typing import Any, Optional

import torch

from msprobe.collect.parallel import ParallelRecord
from msprobe.pytorch.tensors import nonplain_tensors
from msprobe.system.interrupts import let_through


class Layouts:
    """The layouts of one step."""

    def __init__(self, record: ParallelRecord) -> None:
        self._record = record
        self._texts: dict[Any, str] = {}
        self._meshes: dict[Any, int] = {}

    def member(self, spec: Any) -> str:
        """The member "layout" of a tensor, with a comma before it; "" if it cannot be read."""
        try:
            key = (spec.mesh, spec.placements, spec.tensor_meta.shape, getattr(spec, "shard_order", None))
            text = self._texts.get(key)
            if text is None:
                text = self._texts[key] = f', "layout": {json.dumps(self.describe(spec))}'
            return text
        except Exception as error:  # symbolic sizes, a spec without a shape
            let_through(error)
            return ""

    def describe(self, spec: Any) -> dict[str, Any]:
        """The layout in the form of the files."""
        shape = [int(size) for size in spec.tensor_meta.shape]
        placements = [_placement_text(one, len(shape)) for one in _ordered(spec)]
        return {"shape": shape, "mesh": self.mesh_number(spec.mesh), "placements": placements}

    def mesh_number(self, mesh: Any) -> int:
        number = self._meshes.get(mesh)
        if number is None:
            with torch._C.DisableTorchFunction(), nonplain_tensors.without_modes():
                names, coordinate = mesh.mesh_dim_names, mesh.get_coordinate()
                ranks = mesh.mesh.tolist()
            number = self._record.mesh(
                list(names) if names else None, ranks, None if coordinate is None else list(coordinate)
            )
            self._meshes[mesh] = number
        return number

    def group_mesh(self, name: str, ranks: list[int]) -> int:
        """The number of a mesh of one dimension: a group of ranks that has no DeviceMesh."""
        return self._record.mesh([name], ranks, [ranks.index(torch.distributed.get_rank())])


def _ordered(spec: Any) -> Any:
    """The placements. If several mesh dimensions cut one tensor dimension in another order than their own, they
    become strided shards, which mean the same."""
    order = getattr(spec, "shard_order", None)
    if not order or all(tuple(entry.mesh_dims) == tuple(sorted(entry.mesh_dims)) for entry in order):
        return spec.placements
    return spec._convert_shard_order_to_StridedShard(order, spec.placements, spec.mesh)


def _placement_text(placement: Any, dimensions: int) -> str:
    dimension: Optional[int] = getattr(placement, "dim", None)
    if dimension is not None:
        factor = int(getattr(placement, "split_factor", 1))
        dimension %= max(dimensions, 1)
        return f"S({dimension})" if factor == 1 else f"S({dimension},{factor})"
    norm = getattr(placement, "norm_type", None)
    if norm is not None:
        return f"P(norm{float(norm):g})"
    reduction = getattr(placement, "reduce_op", None)
    return "R" if reduction is None else f"P({reduction})"
