"""The parameters of a model that are parts of larger ones: DTensors, FSDP1's flat parameters, Megatron's attributes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Optional

import torch

from msprobe.pytorch.parallel.layouts import Layouts

_WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)(?:\.|$)")
_MEGATRON = ("megatron.core.parallel_state", "megatron.core.mpu", "megatron.mpu")


def parameter_layouts(models: Sequence[Any], layouts: Layouts) -> dict[str, dict[str, Any]]:
    """The layout of every such parameter, by its name in the model; with several models their number is before it."""
    found: dict[str, dict[str, Any]] = {}
    for start, model in _numbered(models):
        for path, module in model.named_modules():
            prefix = f"{start}{path}." if path else start
            for name, parameter in module._parameters.items():
                described = None if parameter is None else _describe(module, parameter, layouts)
                if described is not None:
                    found[f"{prefix}{name}"] = described
            handle: Any = getattr(module, "_handle", None)
            if getattr(handle, "uses_sharded_strategy", False):
                parts = list(_flat_parts(path, handle.flat_param))
                found[f"{prefix}_fsdp_wrapped_module._flat_param"] = {"flat": True, "parts": parts}
    return found


def paths_in_complete_model(models: Sequence[Any]) -> dict[str, str]:
    """Megatron counts the layers of a pipeline stage from 0 and keeps the number in the complete model beside them."""
    found = {}
    for start, model in _numbered(models):
        for path, module in model.named_modules():
            number, (above, _, last) = getattr(module, "layer_number", None), path.rpartition(".")
            if last.isdigit() and isinstance(number, int) and 0 < number != int(last) + 1:
                found[f"{start}{path}"] = f"{above}.{number - 1}" if above else str(number - 1)
    return found


def _numbered(models: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for index, model in enumerate(models):
        yield f"{index}." if len(models) > 1 else "", model


def _describe(module: Any, parameter: Any, layouts: Layouts) -> Optional[dict[str, Any]]:
    spec = getattr(parameter, "_spec", None)
    if spec is not None:
        return layouts.describe(spec)
    cut = getattr(parameter, "tensor_model_parallel", False) is True
    marks: dict[str, Any] = {}
    if getattr(parameter, "sequence_parallel", False) is True:
        marks["sequence_parallel"] = True
    if getattr(parameter, "allreduce", True) is False:
        marks["allreduce"] = False
    if not cut and not marks:
        return None
    ranks = _tensor_parallel_ranks(module, "allreduce" in marks)
    shape: Optional[list[int]] = list(parameter.shape)
    if not cut:
        placement = "R"
    else:
        dimension = int(getattr(parameter, "partition_dim", 0)) % max(parameter.dim(), 1)
        placement = f"S({dimension})"
        if ranks is None or not shape:
            shape = None
        else:
            shape[dimension] *= len(ranks)
        stride = int(getattr(parameter, "partition_stride", 1))
        if stride != 1:
            marks["stride"] = stride
    mesh = None if ranks is None else layouts.group_mesh("tp", ranks)
    return {"shape": shape, "mesh": mesh, "placements": [placement], **marks}


def _tensor_parallel_ranks(module: Any, of_expert: bool) -> Optional[list[int]]:
    """The ranks of the tensor-parallel group: the module's own, Megatron's, one that is called so, or the only one."""
    distributed = torch.distributed
    group = getattr(module, "tp_group", None)
    state = next((sys.modules[name] for name in _MEGATRON if name in sys.modules), None)
    if group is None and state is not None:
        names = ["get_expert_tensor_parallel_group"] if of_expert else []
        for name in (*names, "get_tensor_model_parallel_group"):
            try:
                group = group or getattr(state, name)()
            except (AttributeError, AssertionError):  # this version has no such group, or it was not made
                continue
    if isinstance(group, distributed.ProcessGroup):
        return [int(rank) for rank in distributed.get_process_group_ranks(group)]
    world, own = distributed.distributed_c10d._world, distributed.get_rank()
    known = [(getattr(one, "group_desc", ""), ranks) for one, ranks in world.pg_group_ranks.items() if own in ranks]
    called = [ranks for title, ranks in known if re.search(r"tensor_model_parallel|(^|_)tp($|_)", title.lower())]
    several = {tuple(ranks): ranks for ranks in called or (ranks for _, ranks in known) if len(ranks) > 1}
    if len(several) != 1:
        return None
    ranks = next(iter(several.values()))
    return sorted(ranks, key=ranks.get)


def _flat_parts(path: str, flat: Any) -> Iterator[list[Any]]:
    """The elements of each parameter that this rank has of an FSDP1 flat parameter."""
    above = _WRAPPERS.sub("", f"{path}." if path else "")
    for name, shape, info in zip(flat._fqns, flat._shapes, flat._shard_param_infos):
        if info.in_shard:
            yield [
                f"{above}{_WRAPPERS.sub('', name)}",
                [int(size) for size in shape],
                int(info.intra_param_start_idx),
                int(info.intra_param_end_idx) + 1,
            ]
