"""How a run was spread over its ranks: the member "parallel" of run.json and the member "layout" of a tensor.

A dump is untrusted: everything is checked here, and an invalid value is a DumpError with one sentence. A `Layout` has
its mesh itself, so layouts of different ranks can be used together although each rank numbers its meshes on its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Optional

from msprobe.dump.errors import DumpError
from msprobe.dump.untrusted.json_values import as_flag, as_list, as_object, as_text, as_whole, shown

REDUCTIONS = ("sum", "avg", "max", "min", "product")
"""How the parts of a partial tensor are joined; `norm2` and similar ones mean the norm of the parts."""
_PLACEMENT = re.compile(r"(?:S\((\d{1,3})(?:,(\d{1,6}))?\)|P\((sum|avg|max|min|product|norm[0-9.einf+-]{1,12})\)|(R))")
_MOST_DIMENSIONS = 64


@dataclass(frozen=True)
class Placement:
    """What one dimension of a mesh does to a tensor. `kind` is "S" (shard), "R" (replicate) or "P" (partial)."""

    kind: str
    dimension: int = 0
    """S: the dimension of the tensor that is cut, as torch.chunk cuts."""
    factor: int = 1
    """S: each of this many equal parts of the dimension is cut (FSDP2 on top of tensor parallel)."""
    reduction: str = ""
    """P: one of REDUCTIONS, or `norm` with the order of the norm."""

    def __str__(self) -> str:
        if self.kind == "S":
            return f"S({self.dimension})" if self.factor == 1 else f"S({self.dimension},{self.factor})"
        return f"P({self.reduction})" if self.kind == "P" else self.kind


@dataclass(frozen=True)
class Mesh:
    """Ranks in a grid. `ranks` lists them in row-major order; `coordinate` is the place of the rank that wrote the
    file."""

    names: Optional[tuple[str, ...]]
    shape: tuple[int, ...]
    ranks: tuple[int, ...]
    coordinate: Optional[tuple[int, ...]] = None

    def coordinate_of(self, rank: int) -> Optional[tuple[int, ...]]:
        """The place of a global rank in the grid; None if it is not in the grid."""
        if rank not in self.ranks:
            return None
        place, index = [], self.ranks.index(rank)
        for size in reversed(self.shape):
            index, at = divmod(index, size)
            place.append(at)
        return tuple(reversed(place))


@dataclass(frozen=True)
class Layout:
    """How a tensor is spread over a mesh. `shape` is the shape of the complete tensor. `shape` and `mesh` are None
    if only the way in which it is cut is known (Megatron's attributes without a known group)."""

    shape: Optional[tuple[int, ...]]
    mesh: Optional[Mesh]
    placements: tuple[Placement, ...]
    stride: int = 1
    """Megatron's partition_stride."""
    sequence_parallel: bool = False
    """Megatron: each rank sees a part of the sequence, and the gradient is summed over the ranks."""
    allreduce: bool = True
    """Megatron: False for the weights of an expert, which data-parallel ranks do not share."""


@dataclass(frozen=True)
class FlatPart:
    """The elements `first` to `last` (not included) of one flattened parameter that are in a flat parameter."""

    name: str
    shape: tuple[int, ...]
    first: int
    last: int


@dataclass(frozen=True)
class Pipeline:
    """`stage` lists the stages of this rank; `models` gives the stage of each model passed to start()."""

    stages: int
    stage: tuple[int, ...]
    schedule: str
    microbatches: Optional[int]
    models: tuple[Optional[int], ...] = ()


@dataclass(frozen=True)
class Context:
    """Context parallelism: the sequence is cut over the mesh. `order` is "contiguous", "load_balanced" (rank r of n
    has parts r and 2n-1-r of 2n), or None for another order. `sequence_dimension` is the dimension of each buffer
    that is cut."""

    mesh: Mesh
    order: Optional[str]
    sequence_dimension: tuple[int, ...]


@dataclass(frozen=True)
class BatchPart:
    """Which part of the global batch this rank has. `order` is "strided" (sample i goes to rank i modulo `of`)."""

    part: int
    of: int
    order: Optional[str] = None


@dataclass(frozen=True)
class Parallel:
    """Everything that one rank knows about the layout of the run. Empty for a run on one device."""

    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    meshes: tuple[Mesh, ...] = ()
    parameters: Mapping[str, Layout] = field(default_factory=dict)
    flat: Mapping[str, tuple[FlatPart, ...]] = field(default_factory=dict)
    shared: Mapping[str, str] = field(default_factory=dict)
    """Names of parameters that are another one in a flat parameter: tied weights."""
    pipeline: Optional[Pipeline] = None
    context: Optional[Context] = None
    batch: Optional[BatchPart] = None
    modules: Mapping[str, str] = field(default_factory=dict)
    """The path in the complete model of a module that has another path on this rank."""

    def layout_of(self, item: Any) -> Optional[Layout]:
        """The layout of a tensor in a record; None if it is complete on this rank, or its layout is not known."""
        found = item.get("layout") if isinstance(item, dict) else None
        return _layout(found, self.meshes, "the layout of a tensor") if isinstance(found, dict) else None


def read_parallel(value: Any, file: Path) -> Parallel:
    """Reads the member "parallel" of run.json; empty without it."""
    try:
        return Parallel() if value is None else _parse(value)
    except DumpError as error:
        raise DumpError(f"{file} is damaged: {error}") from None


def _parse(value: Any) -> Parallel:
    parts = as_object(value, '"parallel"')
    meshes = tuple(
        _mesh(one, f"mesh {number}") for number, one in enumerate(as_list(parts.get("meshes", []), '"meshes"'))
    )
    layouts, flat, shared = {}, {}, {}
    modules = as_object(parts.get("modules", {}), '"modules"')
    for name, one in as_object(parts.get("parameters", {}), '"parameters"').items():
        where = f"the layout of parameter {name!r}"
        if as_object(one, where).get("flat") is True:
            flat[name] = tuple(_flat_parts(one.get("parts"), where))
            tied = as_object(one.get("shared", {}), f'"shared" of {where}')
            shared.update({other: as_text(first, f'a name in "shared" of {where}') for other, first in tied.items()})
        else:
            layouts[name] = _layout(one, meshes, where)
    return Parallel(
        {
            name: _ranks(ranks, f"group {name!r}")
            for name, ranks in as_object(parts.get("groups", {}), '"groups"').items()
        },
        meshes,
        layouts,
        flat,
        shared,
        _pipeline(parts["pipeline"]) if parts.get("pipeline") is not None else None,
        _context(parts["context"], meshes) if parts.get("context") is not None else None,
        _batch(parts["batch"]) if parts.get("batch") is not None else None,
        {path: as_text(full, f"the path of module {path!r}") for path, full in modules.items()},
    )


def _mesh(value: Any, where: str) -> Mesh:
    parts = as_object(value, where)
    shape: list[int] = []
    level = parts.get("ranks")
    while isinstance(level, list) and len(shape) < _MOST_DIMENSIONS:
        shape.append(len(level))
        level = level[0] if level else None
    ranks = _ranks(list(_grid(parts.get("ranks"), shape, where)), where)
    if not shape or not ranks:
        raise DumpError(f"{where} has no ranks.")
    names = parts.get("names")
    if names is not None:
        names = tuple(as_text(one, f"a name of {where}") for one in as_list(names, f"the names of {where}"))
        if len(names) != len(shape):
            raise DumpError(f"{where} has {len(shape)} dimensions and {len(names)} names.")
    coordinate = parts.get("coordinate")
    if coordinate is not None:
        coordinate = tuple(
            as_whole(one, f"the coordinate in {where}") for one in as_list(coordinate, f"the coordinate in {where}")
        )
        if len(coordinate) != len(shape) or any(at >= size for at, size in zip(coordinate, shape)):
            raise DumpError(f"coordinate {list(coordinate)} is outside of {where}, whose shape is {shape}.")
    return Mesh(names, tuple(shape), ranks, coordinate)


def _grid(value: Any, shape: list[int], where: str) -> Iterator[Any]:
    """The numbers of nested lists. All lists of one depth must have the same length."""
    if not shape:
        yield value
        return
    if not isinstance(value, list) or len(value) != shape[0]:
        raise DumpError(f"the ranks of {where} are not a grid.")
    for one in value:
        yield from _grid(one, shape[1:], where)


def _layout(value: Any, meshes: tuple[Mesh, ...], where: str) -> Layout:
    parts = as_object(value, where)
    number, shape, mesh = parts.get("mesh"), parts.get("shape"), None
    if number is not None:
        mesh = _mesh_of(number, meshes, where)
    if shape is not None:
        shape = _shape(shape, where)
    placements = tuple(_placement(one, where) for one in as_list(parts.get("placements"), f"the placements of {where}"))
    dimensions = 1 if mesh is None else len(mesh.shape)
    if len(placements) != dimensions:
        raise DumpError(f"{where} has {len(placements)} placements for a mesh of {dimensions} dimensions.")
    for placement in placements:
        if shape is not None and placement.kind == "S" and placement.dimension >= len(shape):
            raise DumpError(f"{where} cuts dimension {placement.dimension} of a tensor of shape {list(shape)}.")
    return Layout(
        shape,
        mesh,
        placements,
        as_whole(parts.get("stride", 1), f"the stride of {where}", 1),
        as_flag(parts.get("sequence_parallel", False), f'"sequence_parallel" of {where}'),
        as_flag(parts.get("allreduce", True), f'"allreduce" of {where}'),
    )


def _placement(value: Any, where: str) -> Placement:
    found = _PLACEMENT.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise DumpError(f"{where} has the placement {shown(value)}, which is not one of S(0), S(0,2), R and P(sum).")
    dimension, factor, reduction, _ = found.groups()
    if dimension is not None:
        return Placement("S", int(dimension), as_whole(int(factor or 1), f"the split factor of {where}", 1))
    return Placement("P", reduction=reduction) if reduction else Placement("R")


def _flat_parts(value: Any, where: str) -> Iterator[FlatPart]:
    for one in as_list(value, f"the parts of {where}"):
        if not isinstance(one, list) or len(one) != 4:
            raise DumpError(f"a part of {where} is not [name, shape, first, last].")
        name, shape = as_text(one[0], f"a name in {where}"), _shape(one[1], where)
        first, last = (as_whole(place, f"a range in {where}") for place in one[2:])
        if not first <= last <= prod(shape):
            raise DumpError(f"{where} has elements {first} to {last} of {name!r}, whose shape is {list(shape)}.")
        yield FlatPart(name, shape, first, last)


def _pipeline(value: Any) -> Pipeline:
    parts = as_object(value, '"pipeline"')
    stages = as_whole(parts.get("stages"), 'the number of stages of "pipeline"', 1)
    own = tuple(as_whole(one, "a pipeline stage") for one in as_list(parts.get("stage"), 'the stages of "pipeline"'))
    if any(stage >= stages for stage in own):
        raise DumpError(f"this rank has pipeline stages {list(own)} of {stages}.")
    count = parts.get("microbatches")
    models = as_list(parts.get("models", []), 'the models of "pipeline"')
    return Pipeline(
        stages,
        own,
        as_text(parts.get("schedule"), "the schedule of the pipeline"),
        None if count is None else as_whole(count, "the number of microbatches", 1),
        tuple(None if one is None else as_whole(one, "the stage of a model") for one in models),
    )


def _context(value: Any, meshes: tuple[Mesh, ...]) -> Context:
    parts = as_object(value, '"context"')
    order = parts.get("order")
    if order not in ("contiguous", "load_balanced", None):
        raise DumpError(f'the order in "context" is {shown(order)}, neither "contiguous" nor "load_balanced".')
    dimensions = as_list(parts.get("sequence_dimension", []), 'the dimensions in "context"')
    return Context(
        _mesh_of(parts.get("mesh"), meshes, '"context"'),
        order,
        tuple(as_whole(one, "the sequence dimension") for one in dimensions),
    )


def _batch(value: Any) -> BatchPart:
    parts = as_object(value, '"batch"')
    part, of = as_whole(parts.get("part"), 'the part in "batch"'), as_whole(parts.get("of"), 'the parts of "batch"', 1)
    if part >= of:
        raise DumpError(f'"batch" names part {part} of {of}; parts count from 0.')
    order = parts.get("order")
    return BatchPart(part, of, None if order is None else as_text(order, 'the order in "batch"'))


def _mesh_of(number: Any, meshes: tuple[Mesh, ...], where: str) -> Mesh:
    found = as_whole(number, f"the mesh of {where}")
    if found >= len(meshes):
        raise DumpError(f"{where} refers to mesh {found}; the run has {len(meshes)}.")
    return meshes[found]


def _ranks(value: Any, where: str) -> tuple[int, ...]:
    found = tuple(as_whole(one, f"a rank of {where}") for one in as_list(value, where))
    if len(set(found)) != len(found):
        raise DumpError(f"{where} has the same rank twice.")
    return found


def _shape(value: Any, where: str) -> tuple[int, ...]:
    found = tuple(as_whole(one, f"a size in {where}", most=1 << 62) for one in as_list(value, f"the shape of {where}"))
    if len(found) > _MOST_DIMENSIONS:
        raise DumpError(f"the shape of {where} has {len(found)} dimensions.")
    return found
