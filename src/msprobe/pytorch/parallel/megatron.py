"""Reads Megatron's attributes of parameters and its `parallel_state`. Nothing imports Megatron."""

from __future__ import annotations

import re
import sys
from typing import Any, Optional

import torch

from msprobe.pytorch.parallel.layouts import Layouts

_STATES = ("megatron.core.parallel_state", "megatron.mpu")
_CALLED_SO = re.compile(r"^tensor_model_parallel|(^|_)tp($|_)")


def describe(module: Any, parameter: Any, layouts: Layouts) -> Optional[dict[str, Any]]:
    """The layout of a parameter with Megatron's attributes; None for a parameter without them."""
    cut = getattr(parameter, "tensor_model_parallel", False) is True
    marks: dict[str, Any] = {}
    if getattr(parameter, "sequence_parallel", False) is True:
        marks["sequence_parallel"] = True
    if getattr(parameter, "allreduce", True) is False:
        marks["allreduce"] = False
    if not cut and not marks:
        return None
    ranks = _tensor_parallel_ranks(module, "allreduce" in marks)
    mesh = None if ranks is None else layouts.group_mesh("tp", ranks)
    shape: Optional[list[int]] = list(parameter.shape)
    if not cut:
        return {"shape": shape, "mesh": mesh, "placements": ["R"], **marks}
    dimension = int(getattr(parameter, "partition_dim", 0)) % max(parameter.dim(), 1)
    stride = int(getattr(parameter, "partition_stride", 1))
    if stride != 1:
        marks["stride"] = stride
    if ranks is None or not shape:
        shape = None
    else:
        shape[dimension] *= len(ranks)
    return {"shape": shape, "mesh": mesh, "placements": [f"S({dimension})"], **marks}


def pipeline_facts() -> Optional[dict[str, Any]]:
    """The stages of this rank; None without a pipeline of Megatron."""
    count, own = _ask("get_pipeline_model_parallel_world_size"), _ask("get_pipeline_model_parallel_rank")
    if not isinstance(count, int) or not isinstance(own, int) or count < 2:
        return None
    rounds = _ask("get_virtual_pipeline_model_parallel_world_size") or 1
    stages = [own + number * count for number in range(rounds)]
    return {"stages": count * rounds, "stage": stages, "models": stages, "schedule": "megatron"}


def _ask(name: str) -> Any:
    """The result of a function of parallel_state; None if it has none."""
    state = next((sys.modules[one] for one in _STATES if one in sys.modules), None)
    try:
        return getattr(state, name)()
    except (AttributeError, AssertionError):  # this version does not have the function, or the group was not created
        return None


def _tensor_parallel_ranks(module: Any, of_expert: bool) -> Optional[list[int]]:
    """The ranks of the tensor-parallel group: that of the module, that of Megatron, the one with this name, or the
    only one."""
    distributed = torch.distributed
    group = getattr(module, "tp_group", None)
    if group is None and of_expert:
        group = _ask("get_expert_tensor_parallel_group")
    group = group or _ask("get_tensor_model_parallel_group")
    if isinstance(group, distributed.ProcessGroup):
        return [int(rank) for rank in distributed.get_process_group_ranks(group)]
    world, own = distributed.distributed_c10d._world, distributed.get_rank()
    known = [(getattr(one, "group_desc", ""), ranks) for one, ranks in world.pg_group_ranks.items() if own in ranks]
    called = [ranks for title, ranks in known if _CALLED_SO.search(title.lower())]
    several = {tuple(ranks): ranks for ranks in called or (ranks for _, ranks in known) if len(ranks) > 1}
    if len(several) != 1:
        return None
    ranks = next(iter(several.values()))
    return sorted(ranks, key=ranks.get)
